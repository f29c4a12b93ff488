"""The charts of a report, declared once as Vega-Lite in charts.json and drawn by Vega everywhere.

In the page Vega draws them in the browser; for files vl-convert draws the same as PNG, SVG and PDF.
All texts from data are values of fields, never part of an expression, so that names with markup or
mathematics are shown as they are.
"""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Any

import numpy as np

from ..training.metrics import TRAIN_LOSS
from .run import Run
from .statistics import BASE, quartiles
from .tables import (
    capital,
    compares,
    difference,
    interval,
    of_metric,
    trials_of,
    verdict,
)

Spec = dict[str, Any]

VERSION = "6.4"  # of Vega-Lite: the page and the files are drawn by the same
# Okabe and Ito's colours without yellow and black, which are lost on a white or a dark page, then
# others; dashes and markers for readers who see no colours.
COLOURS: tuple[str, ...] = (
    *("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#8C6BB1", "#777777"),
    *("#A6761D", "#E7298A", "#66A61E", "#17A2A2", "#B15928", "#5254A3", "#7FA8D1", "#C97B63"),
)
DASHES = ([1, 0], [6, 3], [8, 3, 2, 3], [10, 3], [2, 3], [6, 2, 2, 2], [2, 2])
SHAPES = ("circle", "square", "triangle-up", "diamond", "triangle-down", "cross", "triangle-right")
FOREST = "Mean differences with 95 % intervals; on the right, in how many trials it is better."
FRONTIER = "Mean scores; bars are the 95 % intervals of the difference from the base."
VERDICTS = {"better": "#0a7f4f", "worse": "#b3261e"}


def template(name: str) -> Spec:
    """Return a new copy of a part of charts.json."""
    text = files(__package__).joinpath("charts.json").read_text(encoding="utf-8")
    found: Spec = json.loads(text)[name]
    return found


def looks(run: Run) -> dict[str, tuple[str, list[int], str]]:
    """Return each model's colour, dash and marker, which are the same in all charts."""
    return {model: _look(k) for k, model in enumerate(run.models)}


def _look(k: int) -> tuple[str, list[int], str]:
    return COLOURS[k % len(COLOURS)], DASHES[k % len(DASHES)], SHAPES[k % len(SHAPES)]


def titles_of(runs: Sequence[Run]) -> list[str]:
    """Return the titles of all models of these runs."""
    return list(dict.fromkeys(run.model_title(model) for run in runs for model in run.models))


def curves(run: Run, metric: str, titles: Sequence[str] | None = None) -> Spec:
    """Return the chart of a metric by epoch: medians and quartile bands.

    A model's place in ``titles`` decides its look: panels of several runs pass those of all runs.
    """
    titles, values = titles_of([run]) if titles is None else titles, []
    for model in run.models:
        title = run.model_title(model)
        for epoch, quarters in zip(run.epochs, quartiles(run.values[metric, model]).T, strict=True):
            if not np.isnan(quarters).any():
                three = zip(("low", "value", "high"), map(_digits, quarters), strict=True)
                values.append({"epoch": int(epoch), "network": title, **dict(three)})
    spec = template("lines") | {"title": capital(run.metric_title(metric))}
    spec |= {"data": {"values": values}}
    spec["params"][0]["value"] = titles
    # Vega would label two epochs as 1, 2, 2: the middle tick is 1.5, rounded.
    spec["encoding"]["x"]["axis"]["values"] = run.epochs[:: -(-len(run.epochs) // 15)].tolist()
    line, points = (layer["encoding"] for layer in spec["layer"][1:])
    channels = (spec["encoding"]["color"], line["strokeDash"], points["shape"])
    shown = zip(*map(_look, range(len(titles))), strict=True)
    for channel, range_ in zip(channels, shown, strict=True):
        channel["scale"] = {"domain": titles, "range": [*range_]}
    return spec


def forest(run: Run, metric: str) -> Spec:
    """Return the differences from the base with their intervals, the best first."""
    found = [(row.difference, row) for row in of_metric(run, metric) if row.difference is not None]
    found.sort(key=lambda pair: pair[0].value, reverse=bool(run.metric(metric).higher_is_better))
    values = []
    for of, row in found:
        decided = verdict(run, row)
        known = {} if math.isnan(of.low) else {"low": _digits(of.low), "high": _digits(of.high)}
        shown = {"difference": difference(of), "interval": interval(of), "verdict": decided}
        shown |= {"network": run.model_title(row.model), "colour": VERDICTS.get(decided, "#777777")}
        shown |= {"trials": "" if row.better is None else f"{row.better}/{of.trials}"}
        values.append({"value": _digits(of.value), **known, **shown})
    spec = template("forest") | {"data": {"values": values}, "height": 24 * max(1, len(values))}
    spec["layer"][2]["encoding"]["x"]["title"] = f"minus {run.model_title(BASE)}"
    return spec | {"title": capital(run.score_title(metric))}


def frontier(run: Run, metric: str, least: float = 1.2) -> Spec | None:
    """Return the mean score by the number of parameters; None if the networks are of one size.

    They are of one size if the largest has less than ``least`` times the smallest's parameters.
    Bars are the intervals of the difference from the base, around the network's score. Networks of
    nearly one size are drawn side by side.
    """
    sizes = {table.form: table.total for table in run.layers[0]}
    rows = [row for row in of_metric(run, metric) if sizes.get(row.model)]
    smallest, largest = (end((sizes[row.model] for row in rows), default=1) for end in (min, max))
    if BASE not in {row.model for row in rows} or largest < least * smallest:
        return None
    near: dict[str, list[str]] = {}
    for row in rows:
        near.setdefault(f"{sizes[row.model]:.1e}", []).append(row.model)
    base, values = run.scores(metric, BASE), []
    for row in rows:
        size, of, score = sizes[row.model], row.difference, run.scores(metric, row.model)
        mean = float(np.nanmean(score))
        beside = near[f"{size:.1e}"]
        place = (beside.index(row.model) - (len(beside) - 1) / 2) * min(0.04, 0.4 / len(beside))
        point = {"network": run.model_title(row.model), "parameters": size, "value": _digits(mean)}
        point |= {"at": size * (largest / smallest) ** place, "base": float(np.nanmean(base))}
        if of is not None and not math.isnan(of.low):
            low, high = (_digits(mean + end - of.value) for end in (of.low, of.high))
            point |= {"low": low, "high": high}
            point |= {"interval": f"{difference(of)} [{interval(of)}]"}
        values.append(point)
    spec = template("frontier") | {"data": {"values": values}}
    colours, _, shapes = zip(*(looks(run)[row.model] for row in rows), strict=True)
    domain = [run.model_title(row.model) for row in rows]
    spec["encoding"]["color"]["scale"] = {"domain": domain, "range": [*colours]}
    spec["layer"][2]["encoding"]["shape"]["scale"] = {"domain": domain, "range": [*shapes]}
    return spec | {"title": f"{capital(run.score_title(metric))} by size"}


def charts_of(run: Run) -> dict[str, Spec]:
    """Return the charts of the page, which are the figures too, by their names."""
    found: dict[str, Spec | None] = {m.name: curves(run, m.name) for m in run.metrics}
    if compares(run):
        measured = [metric.name for metric in run.metrics if metric != TRAIN_LOSS]
        found |= {f"forest_{name}": forest(run, name) for name in measured}
        found |= {f"frontier_{name}": frontier(run, name) for name in measured}
    return {name: spec for name, spec in found.items() if spec is not None}


# Files


def write(run: Run, folder: Path) -> None:
    """Write the figures as PNG, SVG and PDF; the overview has the curves of all metrics."""
    names = [metric.name for metric in run.metrics]
    for name, spec in charts_of(run).items():
        about = {"forest": FOREST, "frontier": FRONTIER}.get(name.partition("_")[0], bands(run))
        if name in names:
            spec["encoding"]["color"]["legend"] = {"columns": 2}  # the page has one of buttons
        title = {"text": spec["title"], "subtitle": [run.title, about]}
        draw({"height": 280, **spec, "width": 420, "title": title}, folder / name)
    draw(overview([run]), folder / "overview")


def bands(run: Run) -> str:
    return f"median and 25–75 % band of {trials_of(run)}"


def overview(runs: Sequence[Run]) -> Spec:
    """Return the curves of every metric as panels: a row for each run, a column for each metric."""
    rows, params, titles = [], None, titles_of(runs)
    for run in runs:
        panels = [curves(run, m.name, titles) | {"width": 280, "height": 230} for m in run.metrics]
        for panel in panels:
            panel["encoding"]["color"]["legend"] = {"columns": 2}
            params = panel.pop("params")  # one for all panels
        columns = len(panels) if len(panels) < 5 or len(runs) > 1 else -(-len(panels) // 2)
        title = {"text": run.title, "subtitle": bands(run)}
        rows.append({"title": title, "columns": columns, "concat": panels})
    return {"params": params, "vconcat": rows}


def draw(spec: Spec, path: Path) -> None:
    """Write a chart as PNG, SVG and PDF, with these endings after the path."""
    import vl_convert

    path.parent.mkdir(parents=True, exist_ok=True)
    whole = {"padding": 12, **spec, "background": "white", "config": template("config")}
    svg = vl_convert.vegalite_to_svg(whole, vl_version=VERSION)
    path.with_suffix(".svg").write_bytes(svg.encode())
    path.with_suffix(".png").write_bytes(vl_convert.svg_to_png(svg, scale=2))
    path.with_suffix(".pdf").write_bytes(vl_convert.svg_to_pdf(svg))


@cache
def script() -> str:
    """Return Vega, Vega-Lite and Vega-Embed as one script, which defines ``drawChart``."""
    import vl_convert

    made: str = vl_convert.javascript_bundle("window.drawChart = vegaEmbed;", vl_version=VERSION)
    return made


def _digits(value: float) -> float:
    return float(f"{value:.5g}")
