"""The numbers of a report, its tables and figures, and the command that writes them."""

import csv
import math
import re
import statistics
from dataclasses import replace

import numpy as np
import polars as pl
import pytest
import scipy.stats
from cyclopts import App
from rich.console import Console

from tensorprojection.cli.report import render, report
from tensorprojection.studies.config import RunConfig, read_toml, resolve
from tensorprojection.studies.data.images import ImageSet
from tensorprojection.studies.errors import StudyError
from tensorprojection.studies.inputs import Samples, samples_of
from tensorprojection.studies.networks.unet import unet
from tensorprojection.studies.registry import STUDIES
from tensorprojection.studies.report import charts, tables
from tensorprojection.studies.report.run import read_run
from tensorprojection.studies.report.statistics import Estimate, corrected
from tensorprojection.studies.report.tables import as_csv, as_markdown, as_tex, number
from tensorprojection.studies.results import JobFiles, write_results

METRICS = {
    "oct": ["loss", "accuracy", "f1", "train_loss"],
    "chest": ["loss", "accuracy", "f1", "train_loss"],
    "kvasir": ["loss", "dice", "iou", "train_loss"],
}


@pytest.fixture
def run(tmp_path):
    """``run(study, models, trials, epochs)`` writes a run; ``change`` alters its results first."""

    def write(
        study="oct",
        models=("base", "tpl1", "tpl2"),
        trials=7,
        epochs=5,
        change=None,
        images=(700, 300),
        test=(),
        **settings,
    ):
        rng = np.random.default_rng(1)
        results = pl.DataFrame(
            [
                {"study": study, "model": model, "trial": trial, "epoch": epoch}
                | {name: float(rng.uniform(0.1, 0.9)) for name in METRICS[study]}
                | {"seconds": 1.0, "train_images": images[0], "validation_images": images[1]}
                | {f"test_{name}": float(rng.uniform(0.1, 0.9)) for name in test}
                | ({"test_images": images[2]} if test else {})
                for trial in range(trials)
                for model in models
                for epoch in range(1, epochs + 1)
            ]
        )
        folder = tmp_path / "run"
        folder.mkdir(exist_ok=True)
        asked = {"trials": trials, "epochs": epochs, "split": "image"} | settings
        config = resolve(STUDIES[study], "paper", None, asked)
        config = config.model_copy(update={"models": tuple(models)})
        (folder / "config.toml").write_bytes(config.as_toml())
        if change is not None:
            results = change(results)
        write_results(folder, results)
        return folder

    return write


def value(folder, metric, model, epoch):
    """The metric by trial, straight from the file."""
    frame = pl.read_parquet(folder / "results.parquet")
    frame = frame.filter((pl.col("model") == model) & (pl.col("epoch") == epoch))
    return dict(zip(frame["trial"], frame[metric], strict=True))


def best(folder, metric, model):
    """The metric by trial at the epoch with the lowest validation loss, straight from the file."""
    rows = pl.read_parquet(folder / "results.parquet").filter(model=model).to_dicts()
    lowest = {}
    for row in sorted(rows, key=lambda row: -row["loss"]):
        lowest[row["trial"]] = row[metric]
    return dict(sorted(lowest.items()))


def rows_of(folder):
    return {(row.metric, row.model): row for row in read_run(folder).comparisons}


def without(model, trial, after=0):
    """Leaves out what the model did in that trial after some epoch."""
    gone = (pl.col("model") == model) & (pl.col("trial") == trial) & (pl.col("epoch") > after)
    return lambda results: results.filter(~gone)


def tpl(*arguments):
    app = App(result_action="return_value")
    app.command(report, name="report")
    app(["report", *map(str, arguments)])


# Medians and differences


@pytest.mark.parametrize("tested", [False, True])
@pytest.mark.parametrize("study", METRICS)
def test_scores_are_of_each_trials_epoch_with_the_lowest_validation_loss(run, study, tested):
    measured = METRICS[study][:3] if tested else ()
    folder = run(study, ("base", "tpl"), trials=9, images=(600, 250, 150), test=measured)
    made = rows_of(folder)
    assert len(made) == 8
    for (metric, model), row in made.items():
        column = f"test_{metric}" if metric in measured else metric
        own = best(folder, column, model)
        last = list(value(folder, metric, model, 5).values())
        assert (row.trials, row.last_epoch) == (9, 5)
        assert row.last == pytest.approx(statistics.quantiles(last, n=4, method="inclusive"))
        quarters = statistics.quantiles(own.values(), n=4, method="inclusive")
        assert row.score == pytest.approx(quarters)
        if model == "base":
            assert row.difference is None
            continue
        base = best(folder, column, "base")
        differences = [own[t] - base[t] for t in base]
        assert row.difference.trials == 9
        assert row.difference.value == pytest.approx(statistics.fmean(differences))
        higher = metric in ("accuracy", "f1", "dice", "iou")
        assert row.better == sum((d > 0) if higher else (d < 0) for d in differences)
        expected = by_definition(differences, 150 / 600 if tested else 250 / 600)
        assert (row.difference.low, row.difference.high) == pytest.approx(expected)


def test_scores_of_the_test_part_are_reported_and_labelled(run):
    def as_written(results):
        """Test scores are measured only if the validation loss is the lowest so far."""
        lowest = pl.col("loss") == pl.col("loss").cum_min().over("model", "trial")
        tested = pl.when(lowest).then(pl.col("test_loss"))
        return results.with_columns(test_loss=tested)

    whole = run(models=("base", "tpl1"), images=(600, 250, 150), test=["loss"])
    expected = read_run(whole).only(metrics=["loss"]).comparisons
    folder = run(models=("base", "tpl1"), images=(600, 250, 150), test=["loss"], change=as_written)
    found = read_run(folder).only(metrics=["loss"])
    assert found.comparisons == expected
    text = as_markdown(found)
    assert "## Test loss" in text
    assert "on the test part, which neither trains nor selects" in text
    assert "with 0.25 test images for each training image" in text
    assert "optimistic" not in text
    validated = as_markdown(read_run(run()))
    assert "selected on the same data, hence optimistic" in validated


def test_a_test_part_that_is_split_by_image_is_labelled(run):
    measured = {"images": (600, 250, 150), "test": METRICS["oct"][:3]}
    note = "images of one patient may be in several"
    assert note in as_markdown(read_run(run(split="image", **measured)))
    assert note not in as_markdown(read_run(run(split="patient", **measured)))


def test_pairs_are_of_one_trial_whatever_the_order_of_rows(run):
    def shift(results):
        base = results.filter(pl.col("model") == "base")
        tpl1 = base.with_columns(model=pl.lit("tpl1"), loss=pl.col("loss") - 0.01)
        return pl.concat([base, tpl1]).sample(fraction=1, shuffle=True, seed=3)

    row = rows_of(run(models=("base", "tpl1"), change=shift))["loss", "tpl1"]
    found = row.difference
    assert (found.value, found.low, found.high) == pytest.approx((-0.01, -0.01, -0.01))
    assert (row.better, found.trials) == (7, 7)


def test_equal_is_not_better(run):
    made = rows_of(run(change=lambda r: r.with_columns(loss=pl.lit(0.5))))
    assert made["loss", "tpl1"].better == 0


def test_only_trials_that_reached_the_last_epoch_count(run):
    folder = run(models=("base", "tpl1"), change=without("tpl1", 6, after=3))
    made = rows_of(folder)
    row = made["loss", "tpl1"]
    assert (row.last_epoch, row.trials, row.difference.trials) == (5, 6, 6)
    six = [v for trial, v in best(folder, "loss", "tpl1").items() if trial < 6]
    assert row.score[1] == pytest.approx(statistics.median(six))
    assert made["loss", "base"].trials == 7
    assert "over 6 to 7 of 7 trials." in as_markdown(read_run(folder))


def test_the_last_epoch_is_one_that_all_models_have_reached(run):
    late = (pl.col("model") == "tpl2") & (pl.col("epoch") > 2)
    folder = run(change=lambda results: results.filter(~late))
    made = rows_of(folder)
    assert {row.last_epoch for row in made.values()} == {2}
    first = [value(folder, "loss", "base", epoch).values() for epoch in (1, 2)]
    lowest = [min(pair) for pair in zip(*first, strict=True)]
    assert made["loss", "base"].score[1] == pytest.approx(statistics.median(lowest))


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), None])
def test_what_is_not_finite_is_left_out_and_counted(run, bad):
    here = (pl.col("model") == "tpl1") & (pl.col("epoch") == 5) & (pl.col("trial") < 2)
    folder = run(
        change=lambda r: r.with_columns(loss=pl.when(here).then(bad).otherwise(pl.col("loss")))
    )
    rest = [v for trial, v in value(folder, "loss", "tpl1", 5).items() if trial >= 2]
    row = rows_of(folder)["loss", "tpl1"]
    assert row.last[1] == pytest.approx(statistics.median(rest))
    found = read_run(folder)
    assert "2 values of the validation loss are not finite, and left out." in as_markdown(found)


# Intervals


def by_definition(differences, ratio):
    """Nadeau & Bengio's corrected resampled t, by SciPy's distribution."""
    scale = np.sqrt((1 / len(differences) + ratio) * np.var(differences, ddof=1))
    return scipy.stats.t.interval(0.95, len(differences) - 1, loc=np.mean(differences), scale=scale)


@pytest.mark.parametrize("images", [(700, 300), (280, 480)])
@pytest.mark.parametrize("trials", [2, 9, 30])
def test_the_corrected_interval_takes_the_runs_own_numbers_of_images(run, trials, images):
    folder = run("chest", ("base", "tpl"), trials=trials, images=images)
    text = as_markdown(read_run(folder))
    assert f"{images[1] / images[0]:.3g} validation images for each training image" in text
    for (metric, model), row in rows_of(folder).items():
        if model == "base":
            continue
        base, other = (best(folder, metric, m) for m in ("base", "tpl"))
        differences = [other[trial] - base[trial] for trial in base]
        expected = by_definition(differences, images[1] / images[0])
        assert (row.difference.low, row.difference.high) == pytest.approx(expected, rel=1e-12)


def test_trials_with_other_numbers_of_images_have_each_their_own(run):
    def uneven(results):
        odd = pl.col("trial") % 2 == 1
        return results.with_columns(
            train_images=pl.when(odd).then(250).otherwise(500), validation_images=pl.lit(500)
        )

    folder = run(models=("base", "tpl1"), trials=8, change=uneven)
    found = rows_of(folder)["loss", "tpl1"].difference
    base, other = (best(folder, "loss", m) for m in ("base", "tpl1"))
    expected = by_definition([other[trial] - base[trial] for trial in base], 1.5)
    assert (found.low, found.high) == pytest.approx(expected)


def data_of(study, images, share):
    """The study's samples, with two copies of each image."""
    config = resolve(STUDIES[study], "smoke", None, {"train_share": share})
    if study == "oct":
        return samples_of(config, images)
    of = np.repeat(np.arange(len(images)), 2)
    return Samples(config, images, None, None, None, of, originals_train=study != "kvasir")


@pytest.mark.parametrize(("share", "ratio"), [(1.0, 3 / 7), (0.25, 12 / 7)])
@pytest.mark.parametrize("study", METRICS)
def test_an_epochs_row_counts_the_originals_of_the_studys_split(study, share, ratio):
    labels = {"labels": np.arange(1000) % 4, "class_names": ("a", "b", "c", "d")}
    masks = {"masks": np.zeros((1000, 2, 2), np.uint8)}
    pixels = (2, 2, 3) if study == "kvasir" else (2, 2)
    known = masks if study == "kvasir" else labels
    images = ImageSet(np.zeros((1000, *pixels), np.uint8), **known)
    data = data_of(study, images, share)
    training, validation, _ = data.split(0)
    count = getattr(data, "count_originals", len)  # as in every epoch's row
    assert count(validation) / count(training) == pytest.approx(ratio)
    assert count(training) + count(validation) == (1000 if share == 1 else 475)


def test_without_the_correction_it_is_students_interval():
    values = np.random.default_rng(0).normal(size=12)
    student = scipy.stats.ttest_1samp(values, 0)
    found, ends = corrected(values, ratio=0), student.confidence_interval(0.95)
    assert (found.low, found.high, found.p) == pytest.approx((*ends, student.pvalue))
    assert np.isnan(corrected(values[:1], ratio=0).low)


def test_the_p_value_is_005_where_the_interval_ends_at_zero():
    values = np.random.default_rng(0).normal(size=12)
    found = corrected(values, ratio=0.5)
    shifted = corrected(values - found.low, ratio=0.5)
    assert shifted.low == pytest.approx(0, abs=1e-12)
    assert shifted.p == pytest.approx(0.05)


def test_the_corrected_interval_holds_where_trials_share_images():
    """The mean of 70 of 100 numbers minus that of the 30 others, whose expectation is 0.

    A plain interval of 30 such splits of one sample misses it far more often than it says.
    """
    draw = np.random.default_rng(0)
    inside = {0.0: 0, 30 / 70: 0}
    for _ in range(300):
        mixed = draw.permuted(np.tile(draw.normal(size=100), (30, 1)), axis=1)
        means = mixed[:, :30].mean(axis=1)  # of the sides that validate
        for ratio in inside:
            found = corrected(means, ratio)
            inside[ratio] += found.low <= 0 <= found.high
    assert inside[0.0] / 300 < 0.6
    assert inside[30 / 70] / 300 > 0.85


@pytest.mark.parametrize("split", ["as-shipped", "fixed"])
def test_one_split_for_all_trials_needs_no_correction(run, split):
    found = read_run(run(split=split))
    text = as_markdown(found)
    assert "Nadeau" not in text
    assert "All trials are measured on the same images" in text
    assert "not about other images, so it needs no correction" in text
    for row in (r for r in found.comparisons if r.difference is not None):
        values = found.scores(row.metric, row.model) - found.scores(row.metric, "base")
        ends = scipy.stats.ttest_1samp(values, 0).confidence_interval(0.95)
        assert (row.difference.low, row.difference.high) == pytest.approx(tuple(ends))


# Words


@pytest.mark.parametrize(("by", "end"), [(-0.2, "better"), (0.2, "worse"), (0.0, "undecided")])
def test_words_follow_the_interval_whoever_wins(run, by, end):
    found = read_run(run())
    base = found.values["loss", "base"]
    noise = np.random.default_rng(0).normal(scale=0.001, size=base.shape)
    found = replace(found, values={**found.values, ("loss", "tpl1"): base + by + noise})
    row = next(r for r in found.comparisons if (r.metric, r.model) == ("loss", "tpl1"))
    assert tables.verdict(found, row) == end
    if by:
        assert row.better == (7 if by < 0 else 0)


def test_worse_in_every_trial_is_never_merely_undecided(run):
    """Six equal signs of very different sizes, whose corrected interval contains zero."""
    found = read_run(run(trials=6))
    sizes = np.array([0.01, 0.02, 0.01, 0.02, 0.01, 2.0])[:, None]
    for sign, word in ((1, "worse"), (-1, "better")):
        moved = found.values["loss", "base"] + sign * sizes
        changed = replace(found, values={**found.values, ("loss", "tpl1"): moved})
        row = next(r for r in changed.comparisons if (r.metric, r.model) == ("loss", "tpl1"))
        assert row.difference.sign == 0
        assert tables.verdict(changed, row) == f"{word} here, undecided for new images"


@pytest.mark.parametrize(("trials", "end"), [(2, "too few trials"), (6, "better")])
def test_fewer_than_six_trials_decide_nothing(run, trials, end):
    """Not even if all differences are equal, and the interval has no width."""
    found = read_run(run(trials=trials))
    equal = found.values["loss", "base"] - 0.1
    found = replace(found, values={**found.values, ("loss", "tpl1"): equal})
    row = next(r for r in found.comparisons if (r.metric, r.model) == ("loss", "tpl1"))
    assert tables.verdict(found, row) == end
    assert ("Fewer than 6 trials decide nothing." in as_markdown(found)) == (trials < 6)
    few = f"Fewer than 6 trials decide nothing; this run has {trials}."
    assert (few in tables.headline(found)) == (trials < 6)


@pytest.mark.parametrize(
    ("value", "low", "high", "shown"),
    [
        (-0.00021, -0.0202, 0.0198, ("−0.000", "−0.020 to +0.020")),
        (0.00036, math.nan, math.nan, ("+0.000", "")),
        (0.00036, -0.00012, 0.0006, ("+0.000", "−0.000 to +0.001")),
        (0.00036, 0.00012, 0.0006, ("+0.00036", "+0.00012 to +0.0006")),  # 0.000 would hide it
    ],
)
def test_differences_have_three_decimals_unless_these_hide_the_interval(value, low, high, shown):
    found = Estimate(value, low, high, p=0.5, trials=6, ratio=0)
    assert (tables.difference(found), tables.interval(found)) == shown


def test_models_without_results_are_named(run):
    found = read_run(run(change=lambda results: results.filter(pl.col("model") != "tpl2")))
    assert found.models == ("base", "tpl1")
    assert "Without results so far: TensorProjection 2." in as_markdown(found)


def test_title_says_what_share_of_the_training_images_is_used(run):
    assert read_run(run(train_share=1.0)).title == "Retinal OCT, 96 × 96, phantoms"
    shared = read_run(run(train_share=0.125)).title
    assert shared == "Retinal OCT, 96 × 96, 12.5 % of the training images, phantoms"


# Formats


def test_markdown_csv_latex_and_the_terminal_say_the_same(run):
    found = read_run(run("kvasir", ("base", "tpl")))
    row = next(r for r in found.comparisons if (r.metric, r.model) == ("dice", "tpl"))
    difference = row.difference
    score, last = (
        f"{number(median)} [{number(low)}–{number(high)}]"
        for low, median, high in (row.score, row.last)
    )
    cells = [
        *("TensorProjection", score, tables.difference(difference), tables.interval(difference)),
        *(f"{row.better}/7", tables.verdict(found, row), last),
    ]
    assert f"| {' | '.join(cells)} |" in as_markdown(found)
    assert f"{' & '.join(map(tables.tex, cells))} \\\\" in as_tex(found)
    lines = list(csv.DictReader(as_csv(found).splitlines()))
    [line] = [one for one in lines if (one["metric"], one["model"]) == ("dice", "tpl")]
    assert float(line["score_median"]) == row.score[1]  # all digits
    assert float(line["low"]) == difference.low
    assert float(line["ratio"]) == pytest.approx(300 / 700)
    assert (line["better"], line["pairs"]) == (str(row.better), "7")
    network = unet("tpl", channels=16, size=128)
    count = sum(parameter.numel() for parameter in network.parameters())
    assert (line["part"], line["parameters"]) == ("validation", str(count))
    assert all(one["difference"] == "" for one in lines if one["model"] == "base")


@pytest.mark.parametrize("study", METRICS)
def test_the_terminals_table_fits_80_columns_with_all_numbers_whole(run, study):
    found = read_run(run(study, ("base", "tpl-aggressive"), trials=30, epochs=25))
    console = Console(width=80, highlight=False)
    with console.capture() as capture:
        console.print(render(found))
    text = capture.get()
    assert max(len(line.rstrip()) for line in text.splitlines()) <= 80
    for row in found.comparisons:
        assert f"{number(row.last[0])}–{number(row.last[2])}" in text
        assert f"{number(row.score[0])}–{number(row.score[2])}" in text
        if row.model != "base":
            assert tables.interval(row.difference).split(" ")[0] in text
            assert tables.interval(row.difference).partition(" ")[2] in text


def test_latex_has_booktabs_rules_and_no_letter_that_it_would_run(run):
    found = read_run(run(models=("base", "tpl_1%$\\x{}")))
    text = as_tex(found)
    for part in ("\\begin{tabular}{lrrrrrr}", "\\toprule", "\\midrule", "\\bottomrule"):
        assert text.count(part) == 4  # one table for each metric
    assert "tpl\\_1\\%\\$\\textbackslash{}x\\{\\}" in text
    assert text.count("{") - text.count("\\{") == text.count("}") - text.count("\\}")


def test_csv_has_no_formula(run):
    found = read_run(run(models=("base", "=1+1", "@x", "-y")))
    titles = [line["title"] for line in csv.DictReader(as_csv(found).splitlines())]
    assert titles[:4] == ["MaxPooling", "'=1+1", "'@x", "'-y"]


def test_a_bar_in_a_name_does_not_end_a_cell(run):
    assert "| a\\|b |" in as_markdown(read_run(run(models=("base", "a|b"))))


def test_without_base_there_is_no_comparison(run):
    found = read_run(run(models=("tpl1", "tpl2")))
    assert {row.difference for row in found.comparisons} == {None}
    assert "minus" not in as_markdown(found).lower()


# Figures


def texts(svg):
    return re.findall(r"<(?:text|tspan)[^>]*>([^<]+)<", svg)


def test_every_metric_has_its_figure_as_png_svg_and_pdf(run, tmp_path):
    found = read_run(run("kvasir", ("base", "tpl")))
    charts.write(found, tmp_path / "out")
    files = sorted((tmp_path / "out").iterdir())
    names = ["dice", "forest_dice", "forest_iou", "forest_loss", "iou", "loss"]
    names += ["overview", "train_loss"]
    assert [f.name for f in files] == [n + end for n in names for end in (".pdf", ".png", ".svg")]
    starts = {".png": b"\x89PNG", ".svg": b"<svg", ".pdf": b"%PDF"}
    assert all(file.read_bytes().startswith(starts[file.suffix]) for file in files)
    svg = (tmp_path / "out" / "iou.svg").read_text(encoding="utf-8")
    assert {
        "Validation IoU",
        "Kvasir-SEG, 128 × 128, 16 channels, phantoms",
        "median and 25–75 % band of 7 trials",
        "baseline U-Net",
        "TensorProjection",
        "epoch",
    } <= set(texts(svg))
    before = [file.read_bytes() for file in files if file.suffix != ".pdf"]  # which has a date
    charts.write(found, tmp_path / "out")
    assert before == [file.read_bytes() for file in files if file.suffix != ".pdf"]


def test_mathematics_and_markup_in_names_are_drawn_as_they_are(run, tmp_path):
    odd = "$\\frac{$ <b> datum['x'] & \"q\""
    found = read_run(run(models=("base", odd)))
    charts.write(found.only(metrics=["loss"]), tmp_path)
    drawn = texts((tmp_path / "loss.svg").read_text(encoding="utf-8"))
    import html

    assert odd in [html.unescape(text) for text in drawn]


@pytest.mark.parametrize("metric", METRICS["oct"])
def test_lines_are_medians_and_bands_are_quartiles(run, metric):
    folder = run()
    drawn = charts.curves(read_run(folder), metric)["data"]["values"]
    assert len(drawn) == 3 * 5
    for point in drawn:
        model = {"MaxPooling": "base"}.get(point["network"], f"tpl{point['network'][-1]}")
        column = list(value(folder, metric, model, point["epoch"]).values())
        quarters = statistics.quantiles(column, n=4, method="inclusive")
        found = [point["low"], point["value"], point["high"]]
        assert found == pytest.approx(quarters, rel=1e-4)


def test_the_forest_has_the_tables_differences_the_best_first(run):
    found = read_run(run())
    for metric, best_first in (("loss", False), ("accuracy", True)):
        drawn = charts.forest(found, metric)["data"]["values"]
        values = [point["value"] for point in drawn]
        assert values == sorted(values, reverse=best_first)
        rows = {found.model_title(r.model): r for r in tables.of_metric(found, metric)}
        for point in drawn:
            row = rows[point["network"]]
            ends = (row.difference.low, row.difference.high)
            assert (point["low"], point["high"]) == pytest.approx(ends, rel=1e-4)
            assert point["trials"] == f"{row.better}/7"


def test_the_frontier_has_scores_by_parameters_with_the_differences_intervals(run, tmp_path):
    found = read_run(run(models=("base", "avg", "tpl2")))
    spec = charts.frontier(found, "loss")
    drawn = {point["network"]: point for point in spec["data"]["values"]}
    assert [point["parameters"] for point in drawn.values()] == [324_836, 324_836, 215_028]
    assert drawn["MaxPooling"]["at"] != drawn["AveragePooling"]["at"]  # side by side
    row = next(r for r in found.comparisons if (r.metric, r.model) == ("loss", "tpl2"))
    point, scores = drawn["TensorProjection 2"], found.scores("loss", "tpl2")
    assert point["value"] == pytest.approx(scores.mean(), rel=1e-4)
    assert point["high"] - point["value"] == pytest.approx(
        row.difference.high - row.difference.value, rel=1e-3
    )
    assert charts.frontier(found.only(["base", "avg"]), "loss") is None  # one size
    charts.write(found.only(metrics=["loss"]), tmp_path)
    assert "Validation loss by size" in texts((tmp_path / "frontier_loss.svg").read_text("utf-8"))


def test_fourteen_networks_look_different(run):
    found = read_run(run(models=("base", *"abcdefghijklm"), trials=1))
    assert len({colour for colour, *_ in charts.looks(found).values()}) == 14


def test_unfinished_trials_are_reported(run):
    found = read_run(run(change=without("tpl1", 6, after=2)))
    assert "over 6 to 7 of 7 trials" in as_markdown(found)


# While networks are trained


@pytest.fixture
def under_way(run):
    """A run of which no network has finished: no table is gathered yet."""
    folder = run(models=("base", "tpl1"), trials=2)
    rows = pl.read_parquet(folder / "results.parquet").drop("study")
    (folder / "results.parquet").unlink()
    for trial in (0, 1):
        for model, epochs in (("base", 3), ("tpl1", 2)):
            files = JobFiles.of(folder, trial, model)
            files.lines.parent.mkdir(parents=True, exist_ok=True)
            own = rows.filter(model=model, trial=trial).head(epochs).drop("model", "trial")
            files.write([row | {"code": "0.1.0 abc, torch 2"} for row in own.to_dicts()])
    return folder


def test_networks_that_are_being_trained_are_reported(under_way):
    made = rows_of(under_way)
    assert {(row.last_epoch, row.trials) for row in made.values()} == {(2, 2)}
    values = [JobFiles.of(under_way, trial, "tpl1").rows()[1]["loss"] for trial in (0, 1)]
    assert made["loss", "tpl1"].last[1] == pytest.approx(statistics.fmean(values))


def test_before_the_first_epoch_there_is_nothing_to_report(run):
    folder = run()
    (folder / "results.parquet").unlink()
    with pytest.raises(StudyError, match="has finished its first epoch yet"):
        read_run(folder)


def test_a_corrupted_table_is_not_needed_if_the_networks_have_their_rows(under_way):
    (under_way / "results.parquet").write_bytes(b"damaged")
    assert len(read_run(under_way).comparisons) == 8


def test_corrupted_lines_are_reported(under_way):
    path = JobFiles.of(under_way, 1, "tpl1").lines
    lines = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(lines[0] + lines[1].replace(b"loss", b"lost", 1))
    text = as_markdown(read_run(under_way))
    assert f"{path} is" in text
    assert "in line 2; left out from there on. tpl run restores it." in text


# Reading


def test_a_folder_that_is_not_there_or_not_a_runs(tmp_path):
    with pytest.raises(StudyError, match="Expected the folder of a run"):
        read_run(tmp_path / "nowhere")
    with pytest.raises(StudyError, match=r"config\.toml"):
        read_run(tmp_path)


@pytest.mark.parametrize(
    ("config", "rule"),
    [
        ("study = 'oct'\nmodels = ['base']", r"config.toml has no section \[run\]"),
        ("study = 'my.py'\nmodels = ['base']\ntrials = 'x'", r"config.toml has no section"),
        ("study = ", "Expected TOML"),
    ],
)
def test_config_of_something_else(run, config, rule):
    folder = run()
    (folder / "config.toml").write_text(config, encoding="utf-8")
    with pytest.raises(StudyError, match=rule) as raised:
        read_run(folder)
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize(
    ("change", "rule"),
    [
        (lambda r: r.drop("trial"), "Expected the columns trial in"),
        (lambda r: r.head(0), "Expected results of the oct study"),
        (lambda r: r.with_columns(study=pl.lit("chest")), "Expected results of the oct study"),
    ],
)
def test_results_that_no_run_writes(run, change, rule):
    with pytest.raises(StudyError, match=rule) as raised:
        read_run(run(change=change))
    assert "\n" not in str(raised.value)


def test_models_and_metrics_in_the_order_asked_for(run):
    found = read_run(run()).only(["tpl2", "base"], ["f1", "loss"])
    asked = [(metric, model) for metric in ("f1", "loss") for model in ("tpl2", "base")]
    assert [(row.metric, row.model) for row in found.comparisons] == asked
    for models, named in ((["base", "hope"], "hope"), ([], "none")):
        with pytest.raises(StudyError, match=f"models among base, tpl1, tpl2, got {named}"):
            read_run(run()).only(models)
    with pytest.raises(StudyError, match="metrics among loss, accuracy, f1, train_loss, got x"):
        read_run(run()).only(metrics=["x"])


# The command


def test_the_command_writes_a_page_figures_and_tables_and_names_them(run, tmp_path, capsys):
    out = tmp_path / "out"
    tpl(run(), "--out", out, "--metrics", "loss")
    text = capsys.readouterr().out
    assert "Retinal OCT, 96 × 96, phantoms: validation loss" in text
    assert "validation accuracy" not in text
    assert f"Figures: {out / 'figures'}" in text
    for name in ("figures/overview.svg", "figures/forest_loss.pdf", "table.md", "table.csv"):
        assert (out / name).is_file()
    assert (out / "table.tex").is_file()
    assert f"Page: {out / 'report.html'}" in text


def test_the_command_with_some_networks_writes_beside_the_whole_report(run, capsys):
    folder = run()
    tpl(folder, "--models", "base, tpl2", "--metrics", "loss")
    assert "best epoch" in capsys.readouterr().out
    table = (folder / "base_tpl2_loss" / "table.md").read_text(encoding="utf-8")
    assert "TensorProjection 2" in table
    assert "TensorProjection 1" not in table
    assert (folder / "base_tpl2_loss" / "report.html").is_file()
    assert not (folder / "report.html").exists()


def test_a_place_that_cannot_be_written(run, tmp_path):
    (tmp_path / "file").write_text("in the way", encoding="utf-8")
    with pytest.raises(StudyError, match="Could not write"):
        tpl(run(), "--out", tmp_path / "file")


# An own study


OWN = """
from pathlib import Path
from torch import nn
from tensorprojection.studies import ImageKind, RunConfig, Study


class Settings(RunConfig):
    own_setting: int = 1


(Path(__file__).parent / "was run").touch()
STUDY = Study(
    name="mine", title="My study", images=ImageKind("mine", ("a", "b")),
    models={"base": "a plain network", "other": "another network"},
    network=lambda config, model, first: nn.Linear(5, 2), settings=Settings,
    presets={"small": {"size": 32, "trials": 3, "epochs": 5, "batch": 16, "learning_rate": 0.1}},
)
"""


class OwnSettings(RunConfig):
    own_setting: int = 3


@pytest.fixture
def own_run(run, tmp_path):
    """A run of a study in a file of its own, with a metric that no other study has."""
    (tmp_path / "mine.py").write_text(OWN)
    folder = run(
        models=("base", "other"),
        change=lambda r: r.with_columns(study=pl.lit("mine")).rename({"f1": "kappa"}),
    )
    settings = read_toml(folder / "config.toml") | {"study": str(tmp_path / "mine.py")}
    (folder / "config.toml").write_bytes(OwnSettings(**settings).as_toml())
    return folder


def test_a_run_of_an_own_study_is_shown_from_its_rows_and_its_code_is_not_run(
    own_run, tmp_path, capsys
):
    tpl(own_run, "--out", tmp_path / "out")
    assert not (tmp_path / "was run").exists()
    text = capsys.readouterr().out
    assert "mine, phantoms: validation accuracy" in text
    found = read_run(own_run)
    kappa = next(r for r in found.comparisons if (r.metric, r.model) == ("kappa", "other"))
    assert kappa.better is None  # which way is better is not known
    assert kappa.difference.trials == 7
    page = (tmp_path / "out" / "report.html").read_text(encoding="utf-8")
    assert "Name the study to show them" in page


def test_an_own_study_that_is_named_gives_its_titles_and_one_that_takes_no_images_a_page(
    own_run, tmp_path, capsys
):
    tpl(own_run, "--out", tmp_path / "out", "--study", tmp_path / "mine.py")
    assert (tmp_path / "was run").exists()
    text = capsys.readouterr().out
    assert "My study, 96 × 96, phantoms: validation accuracy" in text
    table = (tmp_path / "out" / "table.md").read_text(encoding="utf-8")
    assert "| another network |" in table
    page = (tmp_path / "out" / "report.html").read_text(encoding="utf-8")
    assert "The networks of mine could not be called with an image of 96 × 96" in page
