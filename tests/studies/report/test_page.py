"""The page of a run: its parts, and that its numbers are those of the rows."""

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
from tensorprojection.studies.errors import StudyError
from tensorprojection.studies.registry import STUDIES
from tensorprojection.studies.report import charts
from tensorprojection.studies.report import page as report_page
from tensorprojection.studies.report.run import read_run
from tensorprojection.studies.report.statistics import Estimate
from tensorprojection.studies.report.verdicts import UNDECIDED, decide, judge
from tensorprojection.studies.study import Claim


def data_of(page: str) -> dict:
    return json.loads(re.search(r'id="data">(.*?)</script>', page, re.S)[1])


def without_scripts(page: str) -> str:
    return re.sub(r"<(script|style)\b.*?</\1>", " ", page, flags=re.S)


def text_of(page: str) -> str:
    """What is read in a page: no scripts, no styles, no tags."""
    return " ".join(html.unescape(re.sub(r"<[^>]+>", " ", without_scripts(page))).split())


def write(folder, out):
    return report_page.write(read_run(folder), out)


@pytest.fixture
def run(tmp_path):
    return lambda name="run", **options: synthetic_run(tmp_path / name, **options)


# What is in it


def test_the_page_needs_nothing_else_and_has_every_part(run, tmp_path):
    page = write(run(), tmp_path / "out").read_text(encoding="utf-8")
    addresses = re.findall(r'(?:src|href)="([^"]*)"', without_scripts(page))
    assert addresses
    assert all(a.startswith(("#", "data:")) for a in addresses)
    text = text_of(page)
    for part in (
        *("Validation by epoch", "Paired differences", "Confusion matrices"),
        *("Learned projections", "Training", "Networks", "The paper's claims"),
        *("Seconds for an epoch MaxPooling 1.500", "Of 2 networks beside MaxPooling: "),
        *("MaxPooling (7 trials)", "The paper prints 1152, but 6 · 6 · 20 = 720."),
    ):
        assert part in text
    assert "not measured" not in text
    assert "University of Washington Interactive Data Lab" in text  # Vega's licence
    order = ("Data: phantoms", "Of 2 networks", "Medians and 25–75 %", "Validation by epoch")
    order += ("Paired differences", "Confusion matrices", "Learned projections", "Training ")
    order += ("Networks ", "Run Folder", "The paper's claims")
    places = [text.rindex(part) for part in order]
    assert places == sorted(places)


def test_segmentation_has_a_gallery_with_masks(run, tmp_path):
    folder = run(study="kvasir", models=("base", "tpl"))
    text = text_of(write(folder, tmp_path / "out").read_text(encoding="utf-8"))
    assert "best: Dice 0.900" in text
    assert "worst: Dice 0.100" in text
    assert "Confusion matrices" not in text


def test_what_an_older_run_has_not_recorded_is_marked(run, tmp_path):
    text = text_of(write(run(observed=False), tmp_path).read_text(encoding="utf-8"))
    for part in ("Confusion matrices and predictions", "Matrices U"):
        assert f"{part}: not measured." in text
    assert "date not recorded" in text


def test_corrupted_observations_are_left_out(run, tmp_path):
    folder = run(models=("base", "tpl1"))
    for file in folder.glob("trials/*/*.observed.npz"):
        file.write_bytes(file.read_bytes()[:50])
    text = text_of(write(folder, tmp_path).read_text(encoding="utf-8"))
    assert "Confusion matrices and predictions: not measured." in text


def test_names_with_markup_are_shown_and_not_run(run, tmp_path):
    evil = "</script><script>alert(1)</script>"
    folder = run(name="<b>run", class_names=(evil, "CNV", "DME", "DRUSEN"))
    page = write(folder, tmp_path).read_text(encoding="utf-8")
    assert "<script>alert" not in page
    assert "<b>run" not in page
    assert html.unescape(page).count(f'scope="row">{evil}<') == 3  # in each confusion matrix


def test_the_page_of_five_large_networks_stays_below_five_megabytes(run, tmp_path):
    """Any number of trials: the page shows medians, and pictures of the first trial."""
    models = ("base", "tpl", "tpl-mpca", "tcl", "other")
    folder = run(study="chest", models=models, trials=2, epochs=20, channels_of_U=(1280, 64))
    assert write(folder, tmp_path).stat().st_size < 5_000_000


def test_charts_label_whole_epochs_only(run):
    found = read_run(run(epochs=2, observed=False))
    assert charts.curves(found, "loss")["encoding"]["x"]["axis"]["values"] == [1, 2]


def test_the_training_loss_alone_has_a_page(run, tmp_path):
    found = read_run(run()).only(metrics=["train_loss"])
    report_page.write(found, tmp_path)
    assert "Training loss" in text_of((tmp_path / "report.html").read_text(encoding="utf-8"))


def test_the_same_run_gives_the_same_page(run, tmp_path):
    folder = run()
    first, second = (write(folder, tmp_path / str(k)).read_bytes() for k in range(2))
    assert first == second


def test_claims_come_last_and_those_that_a_run_does_not_decide_are_folded(run, tmp_path):
    page = write(run(models=("base", "tpl1"), trials=2), tmp_path).read_text(encoding="utf-8")
    claims = STUDIES["oct"].claims
    absent = [claim for claim in claims if "tpl2" in (claim.model, claim.than)]
    late = [claim for claim in claims if claim not in absent and claim.after >= 5]
    tested = len(claims) - len(absent) - len(late)
    text = text_of(page)
    assert "This run decides none of the paper's claims." in text
    assert f"Undecided by a run of this size: {tested}" in text
    assert f"that this run does not have: {len(absent) + len(late)}" in text
    apart = page.index("that this run does not have")
    assert "Not in this run" not in page[:apart]
    assert page[apart:].count("Not in this run: TensorProjection 2.") == len(absent)
    others = write(run("avg", models=("base", "avg")), tmp_path / "avg").read_text()
    assert "The paper's claims" not in others


def test_a_claim_that_is_decided_is_in_sight(run, tmp_path):
    curves = read_run(run(observed=False))
    page = report_page.as_html(shifted(curves, -0.3))
    shown = page[page.index("The paper's claims") :].partition("<details")[0]
    assert "Of the paper's claims, this run decides 1." in text_of(shown)
    assert "lower in 7 of 7 trials; 95 % interval" in text_of(shown)


def test_at_most_five_networks_are_on_at_first(run, tmp_path):
    models = ("base", "tpl1", "tpl2", "avg", "hope", "tcl", "mpca")
    folder = run(models=models, trials=2)
    page = write(folder, tmp_path).read_text(encoding="utf-8")
    on = re.findall(r'data-label="([^"]+)" aria-pressed="true"', page)
    found = read_run(folder)
    scores = {found.model_title(row.model): row.score[1] for row in found.comparisons[:7]}
    best = sorted(scores, key=scores.get)
    assert set(on) == {"MaxPooling", *[name for name in best if name != "MaxPooling"][:4]}


def test_a_gray_segmentation_study_has_a_page(run, tmp_path):
    """Its predictions are kept with an axis for their one channel."""
    folder = run(study="kvasir", models=("base", "tpl"), trials=1)
    for file in folder.glob("trials/*/*.observed.npz"):
        with np.load(file) as found:
            arrays = dict(found)
        np.savez(file, **{**arrays, "images": arrays["images"][..., :1]})
    text = text_of(write(folder, tmp_path / "out").read_text(encoding="utf-8"))
    assert "best: Dice 0.900" in text


def test_curves_are_the_medians_of_the_rows(run, tmp_path):
    folder = run()
    chart = data_of(write(folder, tmp_path).read_text())["specs"]["loss"]
    own = [p["value"] for p in chart["data"]["values"] if p["network"] == "TensorProjection 1"]
    rows = [
        [json.loads(text)["loss"] for text in file.read_text().splitlines()]
        for file in sorted(folder.glob("trials/*/tpl1.jsonl"))
    ]
    expected = [statistics.median(by_trial) for by_trial in zip(*rows, strict=True)]
    assert own == pytest.approx(expected, rel=1e-4)


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
    assert decide(claim, Estimate(0.0, *interval, p=0.5, trials=6, ratio=0)) == word
    assert decide(claim, Estimate(0.0, *interval, p=0.5, trials=5, ratio=0)) == UNDECIDED


def shifted(curves, by):
    """As if tpl1 were the base with these numbers added to its loss, and a little noise."""
    rng = np.random.default_rng(0)
    base = curves.values["loss", "base"]
    noise = rng.normal(scale=0.001, size=base.shape)
    return replace(curves, values={**curves.values, ("loss", "tpl1"): base + by + noise})


@pytest.mark.parametrize("measure", ["first", "each", "last"])
def test_a_clear_difference_is_seen_whichever_way_it_goes(run, measure):
    curves = read_run(run(observed=False))
    claim = Claim("", "loss", "tpl1", "base", "lower", measure)
    for by, word in ((-0.1, "supported"), (0.1, "not supported"), (0.0, UNDECIDED)):
        verdict = judge(shifted(curves, by), claim)
        assert verdict.word == word


def ended(curves, epoch):
    """As if the run had ended with this epoch."""
    return replace(
        curves,
        epochs=curves.epochs[:epoch],
        measured={model: there[:, :epoch] for model, there in curves.measured.items()},
        values={key: values[:, :epoch] for key, values in curves.values.items()},
    )


def test_the_first_epochs_are_a_quarter_of_those_planned(run):
    curves = read_run(run(epochs=8, observed=False))
    claim = Claim("", "loss", "tpl1", "base", "lower", "first")
    early = shifted(curves, np.array([-0.1, -0.1, *[0.3] * 6]))  # what comes later is nothing
    verdict = judge(early, claim)
    assert verdict.word == "supported"
    assert "mean of epochs 1 to 2" in verdict.evidence
    verdict = judge(ended(early, 1), claim)
    assert verdict.word == UNDECIDED
    assert "ends at epoch 1; the claim is about epochs 1 to 2" in verdict.evidence


def test_a_rise_is_from_the_lowest_to_the_last(run):
    curves = read_run(run(observed=False))
    flat = {**curves.values, ("loss", "base"): np.full((7, 5), 0.5)}
    flat = replace(curves, values=flat)
    claim = Claim("", "loss", "tpl1", "base", "higher", "rise", after=3)
    # Below the base at every epoch, and yet it rises: from its own lowest.
    rising = shifted(flat, np.array([-0.1, -0.4, -0.3, -0.3, -0.2]))
    verdict = judge(rising, claim)
    assert verdict.word == "supported"
    falling = shifted(flat, np.array([0.5, 0.4, 0.3, 0.2, 0.1]))
    assert judge(falling, replace(claim, direction="equal", margin=0.01)).word == (
        "supported"  # neither ends above its lowest
    )
    verdict = judge(ended(rising, 3), claim)
    assert verdict.word == UNDECIDED
    assert "epoch 3; the claim is about what comes after epoch 3" in verdict.evidence


def test_a_late_rise_is_of_one_network_and_its_epoch_is_chosen_on_the_other_trials(run):
    curves = read_run(run(observed=False))
    flat = replace(curves, values={**curves.values, ("loss", "base"): np.full((7, 5), 0.5)})
    claim = Claim("", "loss", "tpl1", "tpl1", "higher", "late")
    rising = judge(shifted(flat, np.array([0.3, 0.1, 0.0, 0.1, 0.2])), claim)
    assert rising.word == "supported"
    assert "TensorProjection 1 +0.2" in rising.evidence
    assert "higher in 7 of 7 trials" in rising.evidence
    assert judge(shifted(flat, np.array([0.5, 0.4, 0.3, 0.2, 0.1])), claim).word == UNDECIDED
    # Noise alone rises from its own lowest value in each trial, but not from that of the others.
    noise = np.random.default_rng(1).normal(size=(7, 5))
    assert judge(shifted(flat, noise), claim).word == UNDECIDED
    first = {key: values[:1] for key, values in flat.values.items()}
    assert judge(replace(flat, values=first), claim).word == UNDECIDED


def test_a_narrower_band_of_the_first_epochs_is_seen(run):
    curves = read_run(run(trials=20, epochs=8, observed=False))
    base = curves.values["loss", "base"]
    narrow = np.median(base, axis=0) + (base - np.median(base, axis=0)) / 10
    narrow[:, 2:] = 10 * base[:, 2:]  # wide, but later
    squeezed = replace(curves, values={**curves.values, ("loss", "tpl1"): narrow})
    claim = Claim("", "loss", "tpl1", "base", "lower", "spread")
    assert judge(squeezed, claim).word == "supported"
    turned = replace(claim, model="base", than="tpl1")
    assert judge(squeezed, turned).word == "not supported"


def test_one_trial_and_absent_networks_decide_nothing(run):
    curves = read_run(run(trials=1, observed=False))
    claim = Claim("", "loss", "tpl1", "base", "lower")
    assert judge(curves, claim).word == UNDECIDED
    absent = judge(curves, replace(claim, model="hope"))
    assert (absent.word, absent.evidence) == (UNDECIDED, "Not in this run: HOPE.")


# Several runs


def test_several_runs_are_compared_by_what_sets_them_apart(run, tmp_path):
    narrow = run("narrow", study="kvasir", models=("base", "tpl"), observed=False)
    wide = run("wide", study="kvasir", models=("base", "tpl"), observed=False, channels=64)
    runs = [read_run(narrow), read_run(wide)]
    page = report_page.write_several(runs, tmp_path / "out").read_text(encoding="utf-8")
    assert "channels 16 64" in text_of(page)
    assert "<svg" in page
    for one in runs:
        assert report_page.headline(one) in text_of(page)


def test_the_panels_of_several_runs_have_a_row_per_run_and_a_column_per_metric(run):
    metrics = ("loss", "accuracy", "f1")
    runs = [
        read_run(run(name, models=("base", "tpl1"), observed=False)).only(None, metrics)
        for name in ("a", "b")
    ]
    rows = charts.overview(runs)["vconcat"]
    assert [len(row["concat"]) for row in rows] == [3, 3]
    for row, one in zip(rows, runs, strict=True):
        for panel, metric in zip(row["concat"], metrics, strict=True):
            values = [p["value"] for p in panel["data"]["values"] if p["network"] == "MaxPooling"]
            medians = np.median(one.values[metric, "base"], axis=0)
            assert values == pytest.approx(medians.tolist(), rel=1e-4)


def test_a_network_looks_the_same_in_the_panels_of_all_runs_and_none_is_hidden(run):
    runs = [
        read_run(run(name, models=("base", other), observed=False))
        for name, other in (("a", "tpl1"), ("b", "tpl2"))
    ]
    found = charts.overview(runs)
    networks = ["MaxPooling", "TensorProjection 1", "TensorProjection 2"]
    assert [one["value"] for one in found["params"]] == [networks]
    for row in found["vconcat"]:
        for panel in row["concat"]:
            scale = panel["encoding"]["color"]["scale"]
            assert scale == {"domain": networks, "range": list(charts.COLOURS[:3])}


def test_tpl_report_of_several_runs_leaves_their_own_pages(run, capsys):
    app = App()
    app.command(report)
    a, b = run("a", observed=False), run("b", trials=6, observed=False)
    app(["report", str(a), str(b)], result_action="return_value")
    where = a / "with_b"
    assert f"Page: {where / 'report.html'}" in capsys.readouterr().out
    for kind in ("png", "svg", "pdf"):
        assert (where / "figures" / f"overview.{kind}").is_file()
    assert not (a / "report.html").exists()  # which is of that run alone
    with pytest.raises(StudyError, match="Expected --out other than"):
        app(["report", str(a), str(b), "--out", str(b)], result_action="return_value")


def test_only_runs_of_one_study_are_compared(run):
    app = App()
    app.command(report)
    a, b = run("a", observed=False), run("b", study="kvasir", observed=False)
    with pytest.raises(StudyError, match="Expected runs of one study"):
        app(["report", str(a), str(b)], result_action="return_value")
    c = run("c", observed=False)
    (c / "held_out.txt").write_text("new.npz")
    with pytest.raises(StudyError, match="Expected runs of one study"):
        app(["report", str(a), str(c)], result_action="return_value")
