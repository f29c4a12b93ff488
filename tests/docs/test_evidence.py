"""The tables of docs/results.md and docs/settings.md are what the results of the runs say."""

import re
import sys
from pathlib import Path

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
    assert rows.null_count().sum_horizontal().item() == 0


def test_only_the_rule_of_the_report_gives_verdicts(evidence):
    """The text around the tables gives none, so that it cannot contradict ``tpl report``."""
    text = (ROOT / "docs" / "results.md").read_text("utf-8")
    [table] = [m["table"] for m in evidence.PLACE.finditer(text) if m["name"] == "claims"]
    for name in ("oct", "chest-quarter", "kvasir"):
        for verdict in evidence.verdicts(evidence.run_of(name)):
            line = f"| {verdict.claim.text} | {verdict.evidence} | {verdict.word} |"
            assert (line in table) == verdict.tested
    rule = re.search(r"A claim is supported if .*?\n\n", text, re.S)[0]
    outside = text.replace(table, "").replace(rule, "")
    assert "supported" not in outside


def test_a_difference_by_hand(evidence):
    """From the rows themselves: pairs by trial, medians, and who is better."""
    run = evidence.run_of("oct")
    rows = pl.read_parquet(RESULTS / "oct" / "results.parquet").filter(pl.col("epoch") == 4)
    pairs = rows.pivot(on="model", index="trial", values="loss")
    found = (pairs["tpl1"] - pairs["base"]).to_list()
    middle = sorted(found)[len(found) // 2 - 1 : len(found) // 2 + 1]
    cell = evidence.difference(run, "loss", "tpl1", "base", 4)
    shown = float(re.search(r"[+−][\d.]+", cell)[0].replace("−", "-"))
    assert shown == pytest.approx(sum(middle) / 2, abs=5.1e-4)
    assert cell.endswith(f"({sum(value < 0 for value in found)}/{len(found)})")


def test_a_mean_over_epochs_by_hand(evidence):
    run = evidence.run_of("oct")
    rows = pl.read_parquet(RESULTS / "oct" / "results.parquet").filter(pl.col("epoch") <= 3)
    means = rows.group_by("trial", "model").agg(pl.col("accuracy").mean())
    pairs = means.pivot(on="model", index="trial", values="accuracy")
    found = pairs["tpl1"] - pairs["base"]
    cell = evidence.difference(run, "accuracy", "tpl1", "base", range(1, 4))
    shown = float(re.search(r"[+−][\d.]+", cell)[0].replace("−", "-"))
    assert shown == pytest.approx(found.median(), abs=5.1e-4)
    assert cell.endswith(f"({(found > 0).sum()}/{len(found)})")
