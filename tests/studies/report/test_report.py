import csv
import json
import re
import statistics
import sys
from pathlib import Path

import numpy as np
import polars as pl
import pytest
import scipy.stats
import tomli_w
from cyclopts import App
from rich.console import Console

from tensorprojection.cli import report as cli_report
from tensorprojection.studies import chest, kvasir, oct  # noqa: A004
from tensorprojection.studies.config import read_toml, resolve
from tensorprojection.studies.data.copies import Copies
from tensorprojection.studies.data.images import ImageSet
from tensorprojection.studies.errors import StudyError
from tensorprojection.studies.registry import STUDIES
from tensorprojection.studies.report import table
from tensorprojection.studies.report.curves import read
from tensorprojection.studies.report.figures import caption, figure, styles
from tensorprojection.studies.report.intervals import VALIDATION_TO_TRAINING, bootstrap, corrected
from tensorprojection.studies.report.table import as_markdown, render, rows
from tensorprojection.studies.report.write import write
from tensorprojection.studies.results import UnitFiles
from tensorprojection.studies.sealed import sealed

METRICS = {
    "oct": ["train_loss", "loss", "accuracy", "f1"],
    "chest": ["train_loss", "loss", "accuracy", "f1"],
    "kvasir": ["train_loss", "loss", "dice", "iou"],
}


@pytest.fixture
def run(tmp_path):
    """``run(study, models, trials, epochs)`` writes a run; ``change`` alters its results first."""

    def write(
        study="oct", models=("base", "tpl1", "tpl2"), trials=7, epochs=5, change=None, **settings
    ):
        rng = np.random.default_rng(1)
        results = pl.DataFrame(
            [
                {"study": study, "model": model, "trial": trial, "epoch": epoch}
                | {name: float(rng.uniform(0.1, 0.9)) for name in METRICS[study]}
                | {"seconds": 1.0}
                for trial in range(trials)
                for model in models
                for epoch in range(1, epochs + 1)
            ]
        )
        folder = tmp_path / "run"
        folder.mkdir(exist_ok=True)
        asked = {"trials": trials, "epochs": epochs} | settings
        config = resolve(STUDIES[study], "paper", None, asked).as_settings()
        config["models"] = list(models)
        (folder / "config.toml").write_text(tomli_w.dumps(config), encoding="utf-8")
        if change is not None:
            results = change(results)
        results.write_parquet(folder / "results.parquet")
        return folder

    return write


def report(folder, out=None):
    return write(read(folder), folder if out is None else out)


def value(folder, metric, model, epoch):
    """The metric by trial, straight from the file."""
    frame = pl.read_parquet(folder / "results.parquet")
    frame = frame.filter((pl.col("model") == model) & (pl.col("epoch") == epoch))
    return dict(zip(frame["trial"], frame[metric], strict=True))


def without(model, trial, after=0):
    """Leaves out what the model did in that trial after some epoch."""
    gone = (pl.col("model") == model) & (pl.col("trial") == trial) & (pl.col("epoch") > after)
    return lambda results: results.filter(~gone)


def printed(curves, width=80):
    console = Console(width=width, highlight=False)
    with console.capture() as capture:
        console.print(render(curves))
    return capture.get()


# The files


def test_every_metric_has_its_figures_and_the_table_is_beside_them(run):
    folder = run("kvasir", ("base", "tpl"))
    names = ["train_loss", "loss", "dice", "iou", "overview"]
    expected = [folder / "figures" / f"{n}.{end}" for n in names for end in ("png", "svg")]
    expected += [folder / "table.md", folder / "table.csv"]
    assert report(folder) == expected
    assert all(path.stat().st_size > 100 for path in expected)
    assert (folder / "figures/loss.png").read_bytes().startswith(b"\x89PNG")


def test_out_is_where_files_go_and_pyplot_is_left_alone(run, tmp_path):
    before = "matplotlib.pyplot" in sys.modules
    folder, out = run(), tmp_path / "some" / "where"
    assert all(path.is_relative_to(out) and path.is_file() for path in report(folder, out))
    assert {path.name for path in folder.iterdir()} == {"config.toml", "results.parquet"}
    assert ("matplotlib.pyplot" in sys.modules) == before


def test_files_have_the_same_bytes_every_time(run, tmp_path):
    folder = run()
    first = [path.read_bytes() for path in report(folder, tmp_path / "1")]
    second = [path.read_bytes() for path in report(folder, tmp_path / "2")]
    assert first == second


def test_svg_keeps_its_text(run):
    folder = run(size=96, data="phantoms")
    report(folder)
    svg = (folder / "figures/f1.svg").read_text(encoding="utf-8")
    texts = re.findall(r"<text[^>]*>([^<]*)</text>", svg)
    for expected in (
        "MaxPooling",
        "TensorProjection 1",
        "TensorProjection 2",
        "epoch",
        "validation F1 score, weighted",
        "Retinal OCT, 96 × 96, phantoms: validation F1 score, weighted",
        "median and 25–75 % band of 7 trials",
    ):
        assert expected in texts
    assert "<dc:date>" not in svg


# The figures


@pytest.mark.parametrize("metric", METRICS["oct"])
def test_lines_are_medians_and_bands_are_quartiles(run, metric):
    folder = run()
    panel = figure(read(folder), [metric]).axes[0]
    assert len(panel.lines) == len(panel.collections) == 3
    pairs = zip(("base", "tpl1", "tpl2"), panel.lines, panel.collections, strict=True)
    for model, line, band in pairs:
        columns = [list(value(folder, metric, model, e).values()) for e in range(1, 6)]
        quarters = [statistics.quantiles(c, n=4, method="inclusive") for c in columns]
        assert line.get_xdata().tolist() == [1, 2, 3, 4, 5]
        np.testing.assert_allclose(line.get_ydata(), [q[1] for q in quarters])
        corners = band.get_paths()[0].vertices
        for epoch, (low, _, high) in enumerate(quarters, start=1):
            drawn = corners[corners[:, 0] == epoch, 1]
            np.testing.assert_allclose([drawn.min(), drawn.max()], [low, high])


def test_overview_has_all_metrics_and_one_legend(run):
    drawn = figure(read(run("kvasir", ("base", "tpl"))), METRICS["kvasir"])
    assert [panel.get_title() for panel in drawn.axes] == [
        "training loss",
        "validation loss",
        "validation Dice score",
        "validation IoU",
    ]
    (legend,) = drawn.legends
    assert [text.get_text() for text in legend.texts] == ["baseline U-Net", "TensorProjection"]


def test_one_trial_has_no_band_and_says_so(run):
    curves = read(run(trials=1))
    drawn = figure(curves, ["loss"])
    assert len(drawn.axes[0].lines) == 3
    assert not drawn.axes[0].collections
    assert (
        drawn.get_suptitle()
        == "Retinal OCT, 96 × 96, phantoms: validation loss\none trial, so no band"
    )


def test_title_says_what_share_of_the_training_images_is_used(run):
    assert read(run(train_share=1.0)).title == "Retinal OCT, 96 × 96, phantoms"
    shared = read(run(train_share=0.125)).title
    assert shared == "Retinal OCT, 96 × 96, 12.5 % of the training images, phantoms"


@pytest.mark.parametrize("study", ["oct", "chest", "kvasir"])
def test_titles_of_models(run, study):
    """A model that the study does not know is shown by its name."""
    known = STUDIES[study].models
    drawn = figure(read(run(study, (*known, "tpl3-mine"))), ["loss"])
    labels = [text.get_text() for text in drawn.legends[0].texts]
    assert labels == [*known.values(), "tpl3-mine"]


@pytest.mark.parametrize("count", [1, 2, 3, 6, 9, 12])
def test_legend_and_titles_are_inside_the_figure(run, count):
    names = ("base", "tpl1", "tpl2", "tpl-aggressive", "hope", "tcl", "mpca", "a", "b", "c")
    models = (*names, "d", "e")[:count]
    curves = read(run(models=models, change=without("base", 2, after=1), size=96, data="phantoms"))
    for metrics in (["f1"], curves.metrics):
        drawn = figure(curves, metrics)
        drawn.draw_without_rendering()
        page = drawn.bbox
        for artist in (drawn.legends[0], *drawn.texts):
            box = artist.get_window_extent()
            assert box.x0 >= page.x0
            assert box.x1 <= page.x1
            assert box.y0 >= page.y0
            assert box.y1 <= page.y1
        for panel in drawn.axes:
            assert not panel.get_tightbbox().overlaps(drawn.legends[0].get_window_extent())


def test_styles_differ_and_stay_with_the_model():
    many = styles([*"abcdefghijklmnop"])
    assert len(set(many.values())) == 16
    assert styles(["base", "tpl2"])["tpl2"] == styles(["base", "tpl1", "tpl2"])["tpl2"]
    assert styles(["mine", "tpl1", "base"])["base"] == styles(["base"])["base"]
    assert len(set(styles(["base", "tpl", "tpl1", "tpl2", "tpl-aggressive"]).values())) == 5


def test_unfinished_trials_are_told(run):
    folder = run(change=without("tpl1", 6, after=2))
    assert caption(read(folder), ["loss"]) == (
        "median and 25–75 % band of 6 to 7 trials (7 planned)"
    )
    folder = run(change=without("tpl1", 6))
    labels = [text.get_text() for text in figure(read(folder), ["loss"]).legends[0].texts]
    assert labels == [
        "MaxPooling (7 trials)",
        "TensorProjection 1 (6 trials)",
        "TensorProjection 2 (7 trials)",
    ]


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), None])
def test_what_is_not_finite_is_left_out_and_counted(run, bad):
    here = (pl.col("model") == "tpl1") & (pl.col("epoch") == 3) & (pl.col("trial") < 2)
    folder = run(
        change=lambda r: r.with_columns(loss=pl.when(here).then(bad).otherwise(pl.col("loss")))
    )
    curves = read(folder)
    line = figure(curves, ["loss"]).axes[0].lines[1]
    rest = [v for trial, v in value(folder, "loss", "tpl1", 3).items() if trial >= 2]
    assert line.get_ydata()[2] == pytest.approx(statistics.median(rest))
    assert caption(curves, ["loss"]).endswith("\n2 values not finite, left out")
    assert "\n" not in caption(curves, ["accuracy"])
    assert "2 values are not finite and left out of the validation loss." in as_markdown(curves)


def test_a_metric_without_a_number_is_still_reported(run):
    folder = run(change=lambda r: r.with_columns(f1=pl.lit(None)))
    assert len(report(folder)) == 12
    row = next(r for r in rows(read(folder)) if (r.metric, r.model) == ("f1", "tpl1"))
    assert np.isnan(row.last_median)
    assert row.best_epoch is None
    assert row.pairs == row.better == 0


# The table


@pytest.mark.parametrize("study", METRICS)
def test_numbers_of_the_table(run, study):
    folder = run(study, ("base", "tpl"), trials=9)
    made = {(row.metric, row.model): row for row in rows(read(folder))}
    assert len(made) == 8
    for (metric, model), row in made.items():
        columns = {e: list(value(folder, metric, model, e).values()) for e in range(1, 6)}
        better = max if metric in ("accuracy", "f1", "dice", "iou") else min
        best = better(columns, key=lambda e: statistics.median(columns[e]))
        assert (row.trials, row.last_epoch, row.best_epoch) == (9, 5, best)
        last = statistics.quantiles(columns[5], n=4, method="inclusive")
        assert (row.last_25, row.last_median, row.last_75) == pytest.approx(last)
        at_best = statistics.quantiles(columns[best], n=4, method="inclusive")
        assert (row.best_25, row.best_median, row.best_75) == pytest.approx(at_best)
        if model == "base":
            assert row.pairs == 0
            continue
        base = value(folder, metric, "base", 5)
        other = value(folder, metric, model, 5)
        assert row.pairs == 9
        assert row.difference == pytest.approx(statistics.median(other[t] - base[t] for t in base))
        assert row.difference_low <= row.difference <= row.difference_high
        assert row.better == sum(better(other[t], base[t]) == other[t] for t in base)


def test_pairs_are_of_one_trial_whatever_the_order_of_rows(run):
    def shift(results):
        own = pl.col("model") == "tpl1"
        base = results.filter(pl.col("model") == "base")
        tpl1 = base.with_columns(model=pl.lit("tpl1"), loss=pl.col("loss") - 0.01)
        assert results.filter(own).height == tpl1.height
        return pl.concat([base, tpl1]).sample(fraction=1, shuffle=True, seed=3)

    made = rows(read(run(models=("base", "tpl1"), change=shift)))
    row = next(r for r in made if (r.metric, r.model) == ("loss", "tpl1"))
    drawn = (row.difference, row.difference_low, row.difference_high)
    assert drawn == pytest.approx((-0.01, -0.01, -0.01))
    assert (row.better, row.pairs) == (7, 7)


def test_equal_is_not_better(run):
    made = rows(read(run(change=lambda r: r.with_columns(loss=pl.lit(0.5)))))
    assert {(row.better, row.pairs) for row in made if row.metric == "loss"} == {(0, 0), (0, 7)}
    assert {row.best_epoch for row in made if row.metric == "loss"} == {1}


def test_only_trials_that_reached_the_last_epoch_count(run):
    folder = run(models=("base", "tpl1"), change=without("tpl1", 6, after=3))
    made = {(row.metric, row.model): row for row in rows(read(folder))}
    row = made["loss", "tpl1"]
    assert (row.last_epoch, row.trials, row.pairs) == (5, 6, 6)
    epoch = row.best_epoch
    six = [v for trial, v in value(folder, "loss", "tpl1", epoch).items() if trial < 6]
    assert row.best_median == pytest.approx(statistics.median(six))
    assert made["loss", "base"].trials == 7
    assert "(MaxPooling: 7; TensorProjection 1: 6; planned: 7)" in as_markdown(read(folder))


def test_the_last_epoch_is_one_that_all_models_have_reached(run):
    late = (pl.col("model") == "tpl2") & (pl.col("epoch") > 2)
    made = rows(read(run(change=lambda results: results.filter(~late))))
    assert {row.last_epoch for row in made} == {2}
    assert max(row.best_epoch for row in made) <= 2


def test_models_without_results_are_named(run):
    folder = run(change=lambda results: results.filter(pl.col("model") != "tpl2"))
    curves = read(folder)
    assert curves.models == ("base", "tpl1")
    assert "Without results so far: TensorProjection 2." in as_markdown(curves)


def test_without_base_there_is_no_comparison(run):
    curves = read(run(models=("tpl1", "tpl2")))
    assert {row.pairs for row in rows(curves)} == {0}
    assert "minus" not in as_markdown(curves).lower()


def test_bootstrap_covers_the_median_about_as_often_as_it_says():
    rng = np.random.default_rng(0)
    inside = 0
    for _ in range(200):
        low, high = bootstrap(rng.normal(size=30))
        inside += low <= 0 <= high
    assert 0.89 <= inside / 200 <= 0.99


def test_bootstrap_is_reproducible_and_needs_two_values():
    values = np.random.default_rng(0).normal(size=12)
    assert bootstrap(values) == bootstrap(values)
    assert np.isnan(bootstrap(values[:1])).all()
    assert np.isnan(bootstrap(values[:0])).all()


@pytest.mark.parametrize(("trials", "told"), [(2, True), (5, True), (6, False)])
def test_few_trials_are_told(run, trials, told):
    text = as_markdown(read(run(trials=trials)))
    assert ("Of fewer than 6 trials, the interval holds less than 95 %." in text) == told


def test_csv_holds_all_digits(run):
    folder = run()
    table.write(read(folder), folder)
    with open(folder / "table.csv", encoding="utf-8", newline="") as file:
        lines = list(csv.DictReader(file))
    made = rows(read(folder))
    assert len(lines) == len(made) == 12
    for line, row in zip(lines, made, strict=True):
        assert (line["metric"], line["model"], line["title"]) == (row.metric, row.model, row.title)
        assert float(line["last_median"]) == row.last_median
        assert float(line["best_75"]) == row.best_75
        assert line["difference"] == ("" if row.model == "base" else str(row.difference))


def test_markdown_rows(run):
    folder = run("chest", ("base", "tpl"))
    row = next(r for r in rows(read(folder)) if (r.metric, r.model) == ("accuracy", "tpl"))
    lines = as_markdown(read(folder)).splitlines()
    start = lines.index("## Validation accuracy")
    assert lines[start + 2 : start + 4] == [
        "| model | last epoch (5) | best epoch | minus 1×1 convolution | better |",
        "| --- | ---: | ---: | ---: | ---: |",
    ]
    assert lines[start + 5] == (
        f"| TensorProjection | {row.last_median:.4f} [{row.last_25:.4f}–{row.last_75:.4f}] "
        f"| {row.best_median:.4f} ({row.best_epoch}) [{row.best_25:.4f}–{row.best_75:.4f}] "
        f"| {row.difference:+.4f} [{row.difference_low:+.4f}, {row.difference_high:+.4f}] "
        f"({row.corrected_low:+.4f}, {row.corrected_high:+.4f}) "
        f"| {row.better}/7 |"
    )


@pytest.mark.parametrize("study", METRICS)
def test_the_terminals_table_fits_80_columns_with_all_numbers_whole(run, study):
    curves = read(run(study, ("base", "tpl-aggressive"), trials=30, epochs=25))
    text = printed(curves)
    assert max(len(line.rstrip()) for line in text.splitlines()) <= 80
    for row in rows(curves):
        assert f"{row.last_25:.4f}–{row.last_75:.4f}" in text
        assert f"{row.best_median:.4f} ({row.best_epoch})" in text
        if row.model != "base":
            assert f"{row.difference_low:+.4f} … {row.difference_high:+.4f}" in text
            assert f"({row.corrected_low:+.4f} … {row.corrected_high:+.4f})" in text


def by_definition(differences, ratio):
    """Nadeau & Bengio's corrected resampled t, by SciPy's distribution."""
    mean, scale = (
        np.mean(differences),
        np.sqrt((1 / len(differences) + ratio) * np.var(differences, ddof=1)),
    )
    return scipy.stats.t.interval(0.95, len(differences) - 1, loc=mean, scale=scale)


@pytest.mark.parametrize("trials", [2, 3, 9, 30])
def test_the_corrected_interval(run, trials):
    folder = run("chest", ("base", "tpl"), trials=trials)
    for row in rows(read(folder)):
        if row.model == "base":
            assert np.isnan([row.mean_difference, row.corrected_low, row.corrected_high]).all()
            continue
        base, other = (value(folder, row.metric, m, 5) for m in ("base", "tpl"))
        differences = [other[trial] - base[trial] for trial in base]
        assert row.mean_difference == pytest.approx(statistics.fmean(differences))
        found = row.corrected_low, row.corrected_high
        assert found == pytest.approx(by_definition(differences, 300 / 700), rel=1e-12)


def test_without_the_correction_it_is_students_interval():
    values = np.random.default_rng(0).normal(size=12)
    student = scipy.stats.ttest_1samp(values, 0).confidence_interval(0.95)
    assert corrected(values, ratio=0) == pytest.approx((student.low, student.high))
    assert np.isnan(corrected(values[:1])).all()


def test_the_corrected_interval_holds_where_trials_share_images():
    """The mean of 70 of 100 numbers minus that of the 30 others, whose expectation is 0.

    A plain interval of 30 such splits of one sample misses it far more often than it says.
    """
    draw = np.random.default_rng(0)
    plain = right = 0
    for _ in range(300):
        sample = draw.normal(size=100)
        mixed = draw.permuted(np.tile(sample, (30, 1)), axis=1)
        means = mixed[:, :30].mean(axis=1)  # of the sides that validate
        low, high = corrected(means, ratio=0)
        plain += low <= 0 <= high
        low, high = corrected(means)
        right += low <= 0 <= high
    assert plain / 300 < 0.6
    assert right / 300 > 0.85


def data_of(study, images):
    """The study's samples, with one copy of each image."""
    known = STUDIES[study]
    config = resolve(known, "smoke", None, {})
    copies = Copies(images, np.arange(len(images)), Path())
    if study == "oct":
        return oct.OctData(config, images)
    if study == "chest":
        return chest.ChestData(config, images, copies, None, None)
    return kvasir.KvasirData(config, images, copies, None, None)


@pytest.mark.parametrize("study", METRICS)
def test_the_ratio_is_that_of_the_studys_split(study):
    labels = {"labels": np.arange(1000) % 4, "class_names": ("a", "b", "c", "d")}
    masks = {"masks": np.zeros((1000, 2, 2), np.uint8)}
    pixels = (2, 2, 3) if study == "kvasir" else (2, 2)
    known = masks if study == "kvasir" else labels
    images = ImageSet(np.zeros((1000, *pixels), np.uint8), **known)
    training, validation = data_of(study, images).sides(0)
    originals = set((training % 1000).tolist())  # a copy's row is its original's, 1000 below
    assert not originals & set(validation.tolist())
    assert len(validation) / len(originals) == pytest.approx(VALIDATION_TO_TRAINING)


def test_the_note_says_that_trials_share_images(run):
    text = as_markdown(read(run()))
    assert "All trials split the same images, so their differences are not independent" in text
    assert "Nadeau & Bengio 2003" in text


def test_images_as_shipped_are_not_split_anew(run):
    curves = read(run(split="as-shipped"))
    text = as_markdown(curves)
    assert "Nadeau" not in text
    assert "All trials have the one division that the images come with" in text
    assert all(np.isnan(row.corrected_low) for row in rows(curves))


# While networks are trained


@pytest.fixture
def under_way(run):
    """A run of which no network has finished: no table is gathered yet."""
    folder = run(models=("base", "tpl1"), trials=2)
    rows_of = pl.read_parquet(folder / "results.parquet").drop("study")
    (folder / "results.parquet").unlink()
    for trial in (0, 1):
        for model, epochs in (("base", 3), ("tpl1", 2)):
            files = UnitFiles.of(folder, trial, model)
            files.lines.parent.mkdir(parents=True, exist_ok=True)
            own = rows_of.filter(model=model, trial=trial).head(epochs).drop("model", "trial")
            files.write([row | {"code": "0.1.0 abc, torch 2"} for row in own.to_dicts()])
    return folder


def test_networks_that_are_being_trained_are_reported(under_way):
    made = {(row.metric, row.model): row for row in rows(read(under_way))}
    assert {(row.last_epoch, row.trials) for row in made.values()} == {(2, 2)}
    row = made["loss", "tpl1"]
    values = [UnitFiles.of(under_way, trial, "tpl1").rows()[1]["loss"] for trial in (0, 1)]
    assert row.last_median == pytest.approx(statistics.fmean(values))
    assert len(report(under_way)) == 12


def test_before_the_first_epoch_there_is_nothing_to_report(run):
    folder = run()
    (folder / "results.parquet").unlink()
    with pytest.raises(StudyError, match="has finished its first epoch yet"):
        report(folder)


def test_a_damaged_table_is_not_needed_where_the_networks_have_theirs(under_way):
    (under_way / "results.parquet").write_bytes(b"damaged")
    assert len(rows(read(under_way))) == 8


def test_damaged_lines_are_told(under_way):
    path = UnitFiles.of(under_way, 1, "tpl1").lines
    path.write_bytes(path.read_bytes()[:-30])
    text = as_markdown(read(under_way))
    assert f"{path} is damaged in line 2; left out from there on. tpl run restores it." in text


# The command


def test_the_command_prints_the_table_and_where_the_figures_are(run, tmp_path, capsys):
    app = App(result_action="return_value")
    app.command(cli_report.report, name="report")
    out = tmp_path / "out"
    app(["report", str(run()), "--out", str(out)])
    text = capsys.readouterr().out
    assert "Retinal OCT, 96 × 96, phantoms: validation loss" in text
    assert "TensorProjection 2" in text
    assert f"Figures: {out / 'figures'}" in text
    assert (out / "figures" / "overview.svg").is_file()


def test_the_command_with_some_networks_writes_beside_the_whole_report(run, capsys):
    app, folder = App(result_action="return_value"), run()
    app.command(cli_report.report, name="report")
    app(["report", str(folder), "--models", "base, tpl2", "--epoch", "3"])
    text = capsys.readouterr().out
    assert "TensorProjection 2" in text
    assert "TensorProjection 1" not in text
    assert (folder / "epoch-3_base_tpl2" / "report.html").is_file()
    assert not (folder / "report.html").exists()


def test_a_folder_that_is_not_there(tmp_path):
    with pytest.raises(StudyError, match="Expected the folder of a run"):
        report(tmp_path / "nowhere")


def test_a_folder_without_results(tmp_path):
    with pytest.raises(StudyError, match=r"neither config\.toml nor record\.json"):
        report(tmp_path)


def test_settings_come_from_the_record_where_the_configuration_is_gone(run):
    folder = run()
    before = rows(read(folder))
    settings = read_toml(folder / "config.toml")
    start = sealed({"settings": settings, "identity": {}})
    (folder / "record.json").write_text(json.dumps([start]))
    (folder / "config.toml").unlink()
    assert rows(read(folder)) == before


def test_without_config(run):
    folder = run()
    (folder / "config.toml").unlink()
    with pytest.raises(StudyError, match=r"config\.toml"):
        report(folder)


@pytest.mark.parametrize(
    ("config", "rule"),
    [
        ("study = 'oct'\nmodels = ['base']", "config.toml: .* is missing"),
        (
            "study = 'tea'\nmodels = ['base']\ntrials = 1",
            "Expected a study of .* got 'tea'",
        ),
        ("study = ", "Expected TOML"),
    ],
)
def test_config_of_something_else(run, config, rule):
    folder = run()
    (folder / "config.toml").write_text(config, encoding="utf-8")
    with pytest.raises(StudyError, match=rule):
        report(folder)


@pytest.mark.parametrize("damage", ["empty", "half", "text"])
def test_damaged_results_give_one_line(run, damage):
    folder = run()
    path = folder / "results.parquet"
    whole = path.read_bytes()
    path.write_bytes({"empty": b"", "half": whole[: len(whole) // 2], "text": b"x" * 99}[damage])
    with pytest.raises(StudyError, match="Expected a whole Parquet file") as raised:
        report(folder)
    assert "\n" not in str(raised.value)


def test_polars_panics_give_one_line(run, monkeypatch):
    def panic(path, **options):
        raise pl.exceptions.PanicException("assertion failed\n  left: 0\n right: 60")

    monkeypatch.setattr(pl, "read_parquet", panic)
    with pytest.raises(StudyError, match=r"whole Parquet file, got .*: assertion failed"):
        report(run())


@pytest.mark.parametrize(
    ("change", "rule"),
    [
        (lambda r: r.drop("f1", "trial"), "Expected the columns trial, f1 in"),
        (lambda r: r.head(0), "Expected at least one epoch"),
        (lambda r: pl.concat([r, r.tail(1)]), "got several for tpl2, trial 6, epoch 5"),
        (lambda r: r.with_columns(loss=pl.lit("low")), "Expected numbers in the column loss"),
        (lambda r: r.with_columns(epoch=pl.lit(1.5)), "Expected whole numbers in the column epoch"),
        (lambda r: r.with_columns(trial=pl.lit(None)), "whole numbers in the column trial"),
        (lambda r: r.with_columns(model=pl.lit(3)), "Expected names in the column model"),
        (lambda r: r.with_columns(study=pl.lit("chest")), "Expected results of the oct study"),
    ],
)
def test_results_that_no_run_writes(run, change, rule):
    with pytest.raises(StudyError, match=rule) as raised:
        report(run(change=change))
    assert "\n" not in str(raised.value)


def test_a_place_that_cannot_be_written(run, tmp_path):
    (tmp_path / "file").write_text("in the way", encoding="utf-8")
    with pytest.raises(StudyError, match="Could not write"):
        report(run(), tmp_path / "file")


def test_until_an_epoch_is_as_if_the_run_had_ended_there(run):
    curves = read(run(epochs=5)).until(3)
    ended = run(epochs=5, change=lambda results: results.filter(pl.col("epoch") <= 3))
    assert rows(curves) == rows(read(ended))
    with pytest.raises(StudyError, match="an epoch from 1 to 3, got 4"):
        curves.until(4)


def test_only_some_networks_are_as_if_the_run_had_been_of_them(run):
    folder = run()
    few = read(folder).only(["base", "tpl2"])
    results = pl.read_parquet(folder / "results.parquet").filter(pl.col("model") != "tpl1")
    alone = read(run(models=("base", "tpl2"), change=lambda _: results))
    assert rows(few) == rows(alone)
    assert as_markdown(few) == as_markdown(alone)


def test_networks_that_are_not_there(run):
    for models, named in ((["base", "hope"], "hope"), ([], "none")):
        with pytest.raises(StudyError, match=f"`models` among base, tpl1, tpl2, got {named}"):
            read(run()).only(models)
