"""The tables of docs/results.md and docs/settings.md are what the results of the runs say."""

import re
import sys
from pathlib import Path

import numpy as np
import polars as pl
import pytest

from tensorprojection.studies.config import read_run

ROOT = Path(__file__).parents[2]
RESULTS = ROOT / "docs" / "results"

pytestmark = pytest.mark.skipif(
    not RESULTS.is_dir(),
    reason="the results come with a clone of the project, not with the package",
)


@pytest.fixture(scope="module")
def evidence():
    sys.path.insert(0, str(ROOT / "docs" / "_ext"))
    try:
        import evidence

        yield evidence
    finally:
        sys.path.remove(str(ROOT / "docs" / "_ext"))


def test_every_table_is_the_results(evidence):
    shown = []
    for page in evidence.PAGES:
        text = page.read_text("utf-8")
        shown += [found["name"] for found in evidence.PLACE.finditer(text)]
        assert evidence.with_tables(text) == text, "python docs/_ext/evidence.py writes them anew"
    assert sorted(shown) == sorted(evidence.TABLES)


@pytest.mark.parametrize("folder", sorted(RESULTS.glob("*/")), ids=lambda folder: folder.name)
def test_results_are_whole_and_of_no_machine(folder):
    settings, _ = read_run(folder)
    assert re.fullmatch(r"\w+\.npz", settings["data"])
    rows = pl.read_parquet(folder / "results.parquet")
    planned = len(settings["models"]) * settings["trials"] * settings["epochs"]
    assert len(rows) == len(rows.unique(["model", "trial", "epoch"])) == planned
    measured = [name for name in rows.columns if not name.startswith("test_")]  # not every epoch
    assert rows.select(measured).null_count().sum_horizontal().item() == 0


def outside_of_tables(evidence):
    text = (ROOT / "docs" / "results.md").read_text("utf-8")
    return evidence.PLACE.sub("", text)


def test_only_the_rule_of_the_report_gives_verdicts(evidence):
    """The text around the tables gives none, so that it cannot contradict ``tpl report``."""
    table = evidence.TABLES["claims"]()
    for name in evidence.CLAIMED:
        for verdict in evidence.verdicts(evidence.run_of(name)):
            line = f"| {verdict.claim.text} | {verdict.evidence} | {verdict.word} |"
            assert (line in table) == verdict.tested
    assert "supported" not in outside_of_tables(evidence)


def test_the_page_says_what_the_report_says(evidence):
    """Each difference, interval, count and verdict of the first table is in ``table.md``."""
    from tensorprojection.studies.report.tables import as_markdown

    lines = iter(evidence.TABLES["found"]().splitlines()[2:])
    for name, models in evidence.FOUND.items():
        run = evidence.run_of(name)
        assert f"{run.title}, {run.score_title('loss')}," in next(lines)
        for model in models:
            network, _, loss, *shown, _ = (cell.strip() for cell in next(lines)[1:-1].split("|"))
            assert network == run.model_title(model)
            row = rf"\| {re.escape(network)} \| {loss} \[.*\] \| {re.escape(' | '.join(shown))} \|"
            assert re.search(row, as_markdown(run))
    assert not list(lines)


def test_every_difference_in_the_text_is_in_a_table(evidence):
    tables = "".join(make() for make in evidence.TABLES.values())
    text = outside_of_tables(evidence)
    said = re.findall(r"[+−]\d\.\d+", text)
    assert len(said) >= 8
    assert [number for number in said if number not in tables] == []


def test_the_charts_are_of_the_rows(evidence, tmp_path):
    """Each mark has its values as its label, which is the same whatever fonts there are."""
    page = (ROOT / "docs" / "results.md").read_text("utf-8")

    def marks(folder):
        svg = (folder / f"{name}.svg").read_text("utf-8")
        return re.findall(r'aria-label="([^"]*network: [^"]*)"', svg)

    for name, chart in evidence.CHARTS.items():
        assert f"(images/{name}.svg)" in page
        evidence.charts.draw(chart(), tmp_path / name)
        found = marks(ROOT / "docs" / "images")
        assert found, "python docs/_ext/evidence.py draws them anew"
        assert found == marks(tmp_path)


def test_every_network_of_a_run_by_size_is_in_its_table_and_chart(evidence):
    for name in evidence.SIZES:
        run = evidence.run_of(name)
        titles = {run.model_title(model) for model in run.models}
        assert len(evidence.TABLES[name]().splitlines()) == 2 + len(titles)
        if name in evidence.CHARTS:
            for panel in evidence.CHARTS[name]()["hconcat"]:
                assert {point["network"] for point in panel["data"]["values"]} == titles
    assert "kvasir-sizes" in evidence.SIZES or "kvasir-sizes" not in evidence.TABLES


def shown_in(cell):
    return float(re.search(r"[+−][\d.]+", cell)[0].replace("−", "-"))


def test_a_difference_by_hand(evidence):
    """From the rows themselves: pairs by trial, the mean, and who is better."""
    run = evidence.run_of("oct")
    rows = pl.read_parquet(RESULTS / "oct" / "results.parquet").filter(pl.col("epoch") == 4)
    pairs = rows.pivot(on="model", index="trial", values="loss")
    found = pairs["tpl1"] - pairs["base"]
    cell = evidence.difference(run, "loss", "tpl1", "base", 4)
    assert shown_in(cell) == pytest.approx(found.mean(), abs=5.1e-4)
    assert cell.endswith(f"({(found < 0).sum()}/{len(found)})")


def test_a_mean_over_epochs_by_hand(evidence):
    run = evidence.run_of("oct")
    rows = pl.read_parquet(RESULTS / "oct" / "results.parquet").filter(pl.col("epoch") <= 3)
    means = rows.group_by("trial", "model").agg(pl.col("accuracy").mean())
    pairs = means.pivot(on="model", index="trial", values="accuracy")
    found = pairs["tpl2"] - pairs["base"]
    cell = evidence.difference(run, "accuracy", "tpl2", "base", range(1, 4))
    assert shown_in(cell) == pytest.approx(found.mean(), abs=5.1e-4)
    assert cell.endswith(f"({(found > 0).sum()}/{len(found)})")


@pytest.mark.parametrize("seed", range(20))
def test_holms_correction_rejects_what_its_definition_does(seed, evidence):
    """At every level: the k-th smallest of m is compared with level / (m − k), until one fails."""
    ps = np.random.default_rng(seed).uniform(0, 0.1, size=5)
    adjusted = evidence.holm(ps.tolist())
    for level in (0.01, 0.05, 0.1, 0.3):
        rejected = set()
        for k, at in enumerate(np.argsort(ps)):
            if ps[at] > level / (5 - k):
                break
            rejected.add(at)
        assert {at for at, p in enumerate(adjusted) if p <= level} == rejected
    assert evidence.holm([0.01, 0.02, 0.03, 0.005]) == pytest.approx(
        [0.03, 0.04, 0.04, 0.02]
    )  # by hand


def test_primary_comparisons_have_p_values_corrected_by_holm(evidence):
    pairs = (("tpl1-block3", "base"), ("tpl1", "avg"), ("tpl1", "base"))
    made = evidence.primary([("oct", "loss", model, other) for model, other in pairs])
    cells = [[cell.strip() for cell in line[1:-1].split("|")] for line in made.splitlines()[2:]]
    plain, corrected = ([float(line[k]) for line in cells] for k in (6, 7))
    assert corrected == pytest.approx(
        [plain[0], 3 * plain[1], 2 * plain[2]]  # from the largest p to the smallest
        if plain[0] > plain[2] > plain[1]
        else [plain[0], 2 * plain[1], 3 * plain[2]],
        abs=2e-3,
    )
