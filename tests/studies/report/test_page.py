"""The page of a run: what is in it, and that its numbers are those of the rows."""

import html
import json
import re
import statistics
from dataclasses import replace

import numpy as np
import pytest
from cyclopts import App
from synthetic_runs import synthetic_run

from tensorprojection.cli.report import report
from tensorprojection.studies.claims import Claim
from tensorprojection.studies.errors import StudyError
from tensorprojection.studies.registry import STUDIES
from tensorprojection.studies.report.curves import read
from tensorprojection.studies.report.page import write
from tensorprojection.studies.report.page.numbers import differences, reaches
from tensorprojection.studies.report.page.verdicts import UNDECIDED, decide, verdicts


def data_of(page: str) -> dict:
    return json.loads(re.search(r'id="data">(.*?)</script>', page, re.S)[1])


def text_of(page: str) -> str:
    """What is read in a page: no scripts, no styles, no tags."""
    page = re.sub(r"<(script|style)\b.*?</\1>", " ", page, flags=re.S)
    return " ".join(html.unescape(re.sub(r"<[^>]+>", " ", page)).split())


@pytest.fixture
def run(tmp_path):
    return lambda name="run", **options: synthetic_run(tmp_path / name, **options)


# What is in it


def test_the_page_needs_nothing_else_and_has_every_part(run, tmp_path):
    page = write([run()], tmp_path / "out").read_text(encoding="utf-8")
    addresses = re.findall(r'(?:src|href)="([^"]*)"', page)
    assert addresses
    assert all(a.startswith(("#", "data:")) for a in addresses)
    text = text_of(page)
    for part in (
        *("What the paper claims", "Curves", "Scores", "Paired differences by epoch"),
        *("Epochs needed", "Confusion matrices", "The learned projections", "The images"),
        *("The networks", "The run", "Seconds of training for an epoch"),
        *("NORMAL (10)", "image-", "The paper prints 1152, but 6 · 6 · 20 = 720."),
    ):
        assert part in text
    assert "not recorded" not in text.replace("Data and machine not recorded", "")  # no record.json
    assert "Permission is hereby granted" in text  # uPlot's licence goes where uPlot goes


def test_segmentation_has_a_gallery_with_masks(run, tmp_path):
    folder = run(study="kvasir", models=("base", "tpl"))
    text = text_of(write([folder], tmp_path / "out").read_text(encoding="utf-8"))
    assert "best: Dice 0.900" in text
    assert "worst: Dice 0.100" in text
    assert "Confusion matrices" not in text


def test_what_an_older_run_has_not_recorded_is_said_to_be(run, tmp_path):
    text = text_of(write([run(observed=False)], tmp_path).read_text(encoding="utf-8"))
    for part in (
        "Confusion matrices",
        "Captured energy, orthogonality and low-pass shares",
        "Sample images",
    ):
        assert f"{part}: not recorded." in text
    assert "No networks were kept." in text


def test_damaged_observations_are_as_good_as_none(run, tmp_path):
    folder = run(models=("base", "tpl1"))
    for file in folder.glob("trials/*/*.observed.npz"):
        file.write_bytes(file.read_bytes()[:50])
    (folder / "samples.npz").write_bytes(b"PK\x03\x04")
    text = text_of(write([folder], tmp_path).read_text(encoding="utf-8"))
    assert "Confusion matrices: not recorded." in text
    assert "Sample images: not recorded." in text


def test_names_with_markup_are_shown_and_not_run(run, tmp_path):
    evil = "</script><script>alert(1)</script>"
    folder = run(name="<b>run", class_names=(evil, "CNV", "DME", "DRUSEN"), name_of=evil)
    page = write([folder], tmp_path).read_text(encoding="utf-8")
    assert "<script>alert" not in page
    assert "<b>run" not in page
    assert f"{evil} (10)" in html.unescape(page).replace(" <small>", " ")
    assert html.unescape(page).count(f"{evil}-") == 24  # the samples' file names


def test_thirty_trials_of_five_networks_stay_below_five_megabytes(run, tmp_path):
    models = ("base", "tpl", "tpl-mpca", "tcl", "other")
    rest = {"study": "chest", "epochs": 20}
    few, more = (
        write([run(f"of {trials}", models=models, trials=trials, **rest)], tmp_path / str(trials))
        .stat()
        .st_size
        for trials in (3, 6)
    )
    # Each trial adds as much as another.
    assert more + (30 - 6) * max(0, more - few) / (6 - 3) < 5_000_000


def test_the_same_run_gives_the_same_page(run, tmp_path):
    folder = run()
    first, second = (write([folder], tmp_path / str(k)).read_bytes() for k in range(2))
    assert first == second


def test_claims_that_a_run_cannot_speak_to_stand_apart(run, tmp_path):
    page = write([run(models=("base", "tpl1"), trials=2)], tmp_path).read_text(encoding="utf-8")
    text = text_of(page)
    claims = STUDIES["oct"].claims
    assert f"Of {len(claims)} claims: " in text
    apart = page.index("that this run does not have")
    heard = page[page.index("What the paper claims") : apart]
    assert "Not in this run" not in heard
    absent = [claim for claim in claims if "tpl2" in (claim.model, claim.than)]
    late = [claim for claim in claims if claim not in absent and claim.after >= 5]
    assert f"{len(absent) + len(late)} of them about networks, epochs or settings" in text
    rest = page[apart : page.index("The rule that decides")]
    assert rest.count("Not in this run: TensorProjection 2.") == len(absent)


# Several runs


def test_several_runs_are_compared_by_what_sets_them_apart(run, tmp_path):
    folders = [run("narrow", study="kvasir", models=("base", "tpl"))]
    folders.append(run("wide", study="kvasir", models=("base", "tpl"), channels=64, epochs=3))
    page = write(folders, tmp_path / "out").read_text(encoding="utf-8")
    text = text_of(page)
    assert "channels 16 64" in text
    assert "epochs 5 3" in text
    assert "2 runs side by side" in text
    lines = data_of(page)["charts"]["all"]["metrics"][0]["lines"]
    assert [(line["of"], line["model"]) for line in lines] == [
        (name, model) for name in ("narrow", "wide") for model in ("base", "tpl")
    ]
    assert lines[2]["median"][3:] == [None, None]  # which the shorter run has not


def test_different_studies_in_one_page_are_refused(run, tmp_path):
    folders = [run("a"), run("b", study="kvasir", models=("base", "tpl"))]
    with pytest.raises(StudyError, match=r"runs of one study in one page, got oct .*, kvasir"):
        write(folders, tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_tpl_report_takes_one_folder_or_several_and_names_the_page(run, capsys):
    app = App()
    app.command(report)
    a, b = run("a"), run("b", trials=6)
    app(["report", str(a), str(b)], result_action="return_value")
    printed = "".join(capsys.readouterr().out.split())
    assert f"Page:{a / 'report.html'}" in printed
    with pytest.raises(StudyError, match="folder of a run, got none"):
        app(["report"], exit_on_error=False, result_action="return_value")


def test_a_run_and_an_evaluation_on_held_out_images_are_not_compared(run, tmp_path):
    folders = [run("a"), run("b")]
    (folders[1] / "held_out.txt").write_text("new.npz")
    with pytest.raises(StudyError, match=r"got both: .*b is an evaluation") as error:
        write(folders, tmp_path / "out")
    assert "\n" not in str(error.value)


# Its numbers


def test_curves_are_the_medians_of_the_rows(run, tmp_path):
    folder = run()
    chart = data_of(write([folder], tmp_path).read_text())["charts"]["run1"]["metrics"][1]
    line = next(line for line in chart["lines"] if line["model"] == "tpl1")
    rows = [
        [json.loads(text)["loss"] for text in file.read_text().splitlines()]
        for file in sorted(folder.glob("trials/*/tpl1.jsonl"))
    ]
    expected = [statistics.median(by_trial) for by_trial in zip(*rows, strict=True)]
    assert line["median"] == pytest.approx(expected, rel=1e-4)
    assert np.array(line["trials"]) == pytest.approx(np.array(rows), rel=1e-4)


def test_differences_are_paired_by_trial_and_antisymmetric(run):
    curves = read(run())
    by_pair = {(d.metric, d.model, d.reference): d for d in differences(curves)}
    found, reverse = by_pair["loss", "tpl2", "tpl1"], by_pair["loss", "tpl1", "tpl2"]
    for k in range(5):
        pairs = zip(
            curves.values["loss", "tpl2"][:, k], curves.values["loss", "tpl1"][:, k], strict=True
        )
        d = [float(a - b) for a, b in pairs]
        assert found.median[k] == pytest.approx(statistics.median(d))
        assert found.low[k] <= found.median[k] <= found.high[k]
        assert found.ahead[k] == sum(value < 0 for value in d)  # less loss is better
        assert (found.ahead[k], found.behind[k]) == (reverse.behind[k], reverse.ahead[k])
    assert reverse.low == pytest.approx(-found.high)


def test_equal_networks_are_ahead_in_no_trial(run):
    curves = read(run())
    same = {**curves.values, ("accuracy", "tpl1"): curves.values["accuracy", "base"]}
    for d in differences(replace(curves, values=same)):
        if d.metric == "accuracy" and {d.model, d.reference} == {"base", "tpl1"}:
            assert set(d.ahead) == set(d.behind) == {0}


def test_epochs_to_reach_the_bases_best(run):
    curves = read(run(trials=6))
    for reach in reaches(curves):
        sign = -1 if reach.metric in ("accuracy", "f1") else 1
        needed = []
        for base, own in zip(
            sign * curves.values[reach.metric, "base"],
            sign * curves.values[reach.metric, reach.model],
            strict=True,
        ):
            there = [k for k, value in enumerate(own, start=1) if value <= min(base)]
            needed += there[:1]
        assert reach.reached == len(needed)
        assert reach.trials == 6
        if needed:
            assert reach.median == statistics.median(needed)


# The claims


@pytest.mark.parametrize("study", STUDIES.values(), ids=lambda study: study.name)
def test_claims_are_about_what_the_study_has(study):
    assert study.claims
    for claim in study.claims:
        assert {claim.model, claim.than} <= set(study.models)
        assert claim.metric in {metric.name for metric in study.measured}
        assert claim.measure != "rise" or claim.metric == "loss"  # of which less is better
        assert (claim.margin > 0) == (claim.direction == "equal")


@pytest.mark.parametrize(
    ("direction", "interval", "word"),
    [
        ("lower", (-0.3, -0.1), "supported"),
        ("lower", (0.1, 0.3), "not supported"),
        ("lower", (-0.1, 0.3), UNDECIDED),
        ("higher", (0.1, 0.3), "supported"),
        ("higher", (-0.3, -0.1), "not supported"),
        ("higher", (-0.3, 0.1), UNDECIDED),
        ("equal", (-0.01, 0.02), "supported"),
        ("equal", (0.03, 0.04), "not supported"),
        ("equal", (-0.04, -0.03), "not supported"),
        ("equal", (0.01, 0.03), UNDECIDED),
        ("lower", (float("nan"), float("nan")), UNDECIDED),
    ],
)
def test_the_rule(direction, interval, word):
    claim = Claim("", "loss", "tpl1", "base", direction, margin=0.02)
    assert decide(claim, *interval) == word


def shifted(curves, by):
    """As if tpl1 were the base with these numbers added to its loss, and a little noise."""
    rng = np.random.default_rng(0)
    base = curves.values["loss", "base"]
    noise = rng.normal(scale=0.001, size=base.shape)
    return replace(curves, values={**curves.values, ("loss", "tpl1"): base + by + noise})


@pytest.mark.parametrize("measure", ["first", "each", "last"])
def test_a_clear_difference_is_seen_whichever_way_it_goes(run, measure):
    curves = read(run())
    claim = Claim("", "loss", "tpl1", "base", "lower", measure)
    for by, word in ((-0.1, "supported"), (0.1, "not supported"), (0.0, UNDECIDED)):
        (verdict,) = verdicts(shifted(curves, by), (claim,))
        assert verdict.word == word


def test_the_first_epochs_are_a_quarter_of_those_planned(run):
    curves = read(run(epochs=8))
    claim = Claim("", "loss", "tpl1", "base", "lower", "first")
    early = shifted(curves, np.array([-0.1, -0.1, *[0.3] * 6]))  # what comes later is nothing
    (verdict,) = verdicts(early, (claim,))
    assert verdict.word == "supported"
    assert "mean of epochs 1 to 2" in verdict.evidence
    (verdict,) = verdicts(early.until(1), (claim,))
    assert verdict.word == UNDECIDED
    assert "epoch 1; the claim is about epochs 1 to 2" in verdict.evidence


def test_a_rise_is_from_the_lowest_to_the_last(run):
    curves = read(run())
    flat = {**curves.values, ("loss", "base"): np.full((7, 5), 0.5)}
    flat = replace(curves, values=flat)
    claim = Claim("", "loss", "tpl1", "base", "higher", "rise", after=3)
    # Below the base at every epoch, and yet it rises: from its own lowest.
    rising = shifted(flat, np.array([-0.1, -0.4, -0.3, -0.3, -0.2]))
    (verdict,) = verdicts(rising, (claim,))
    assert verdict.word == "supported"
    falling = shifted(flat, np.array([0.5, 0.4, 0.3, 0.2, 0.1]))
    assert verdicts(falling, (replace(claim, direction="equal", margin=0.01),))[0].word == (
        "supported"  # neither ends above its lowest
    )
    (verdict,) = verdicts(rising.until(3), (claim,))
    assert verdict.word == UNDECIDED
    assert "epoch 3; the claim is about what comes after epoch 3" in verdict.evidence


def test_a_narrower_band_of_the_first_epochs_is_seen(run):
    curves = read(run(trials=20, epochs=8))
    base = curves.values["loss", "base"]
    narrow = np.median(base, axis=0) + (base - np.median(base, axis=0)) / 10
    narrow[:, 2:] = 10 * base[:, 2:]  # wide, but later
    squeezed = replace(curves, values={**curves.values, ("loss", "tpl1"): narrow})
    claim = Claim("", "loss", "tpl1", "base", "lower", "spread")
    assert verdicts(squeezed, (claim,))[0].word == "supported"
    turned = replace(claim, model="base", than="tpl1")
    assert verdicts(squeezed, (turned,))[0].word == "not supported"


def test_one_trial_and_absent_networks_decide_nothing(run):
    curves = read(run(trials=1))
    claim = Claim("", "loss", "tpl1", "base", "lower")
    assert verdicts(curves, (claim,))[0].word == UNDECIDED
    absent = verdicts(curves, (replace(claim, model="hope"),))[0]
    assert (absent.word, absent.evidence) == (UNDECIDED, "Not in this run: HOPE.")
