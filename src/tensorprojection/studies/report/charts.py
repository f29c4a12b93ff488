"""The charts of a report, declared once as Vega-Lite in charts.json and drawn by Vega everywhere.

In the page Vega draws them in the browser; for files vl-convert draws the same as PNG, SVG and PDF.
All texts from data are values of fields, never part of an expression, so that names with markup or
mathematics are shown as they are.
"""

from __future__ import annotations

import base64
import io
import json
import math
from collections.abc import Mapping, Sequence
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from ..training.metrics import TRAIN_LOSS
from .projections import observed_by_epoch
from .run import Run
from .statistics import BASE, Floats, quartiles
from .tables import (
    SELECTED,
    TESTED,
    capital,
    compares,
    count,
    difference,
    interval,
    number,
    of_metric,
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
    return {
        model: (COLOURS[k % len(COLOURS)], DASHES[k % len(DASHES)], SHAPES[k % len(SHAPES)])
        for k, model in enumerate(run.models)
    }


def labels(run: Run) -> dict[str, str]:
    """Return the models' titles, with their numbers of trials if these differ."""
    counts = {model: run.count(model) for model in run.models}
    titles = {model: run.model_title(model) for model in run.models}
    if len(set(counts.values())) > 1:
        titles = {m: f"{title} ({count(counts[m], 'trial')})" for m, title in titles.items()}
    return titles


def lines(run: Run, title: str, by_model: Mapping[str, Floats], log: bool = False) -> Spec:
    """Return a chart of medians and quartile bands by epoch, of trials × epochs for each model."""
    titles = {model: label for model, label in labels(run).items() if model in by_model}
    values = []
    for model, label in titles.items():
        low, median, high = quartiles(by_model[model])
        for k, epoch in enumerate(run.epochs):
            if math.isnan(median[k]) or (log and low[k] <= 0):
                continue
            row = {"epoch": int(epoch), "network": label, "value": _digits(median[k])}
            text = number(float(median[k]))
            if len(by_model[model]) > 1:
                row |= {"low": _digits(low[k]), "high": _digits(high[k])}
                text += f" [{number(float(low[k]))}–{number(float(high[k]))}]"
            values.append({**row, "median": text})
    spec = template("lines") | {"title": title, "data": {"values": values}}
    spec["params"][0]["value"] = list(titles.values())
    # Vega would label two epochs as 1, 2, 2: the middle tick is 1.5, rounded.
    spec["encoding"]["x"]["axis"]["values"] = run.epochs[:: -(-len(run.epochs) // 15)].tolist()
    ranges = zip(*(looks(run)[model] for model in titles), strict=True)
    line, points = (layer["encoding"] for layer in spec["layer"][1:])
    channels = (spec["encoding"]["color"], line["strokeDash"], points["shape"])
    for channel, range_ in zip(channels, ranges, strict=True):
        channel["scale"] = {"domain": [*titles.values()], "range": [*range_]}
    for layer in spec["layer"] if log else ():
        layer["encoding"]["y"]["scale"] = {"type": "log"}
    return spec


def curves(run: Run, metric: str) -> Spec:
    """Return the chart of a metric by epoch."""
    by_model = {model: run.values[metric, model] for model in run.models}
    return lines(run, capital(run.metric_title(metric)), by_model)


def observations(run: Run) -> list[Spec]:
    """Return charts of each layer's captured energy, orthogonality and low-pass shares."""
    kinds = [
        ("energy", "", "Captured energy", False),
        ("orthogonality", "", "Distance from orthonormal, ‖UᵀU − I‖", True),
        *(("by_epoch", f"/{mode}", f"Low-pass share of mode {mode}", False) for mode in (2, 3, 4)),
    ]
    charts = []
    for kind, of, title, log in kinds:
        found = observed_by_epoch(run, kind, of)
        for layer in dict.fromkeys(layer for layer, _ in found):
            by_model = {model: values for (name, model), values in found.items() if name == layer}
            charts.append(lines(run, f"{title}: {layer}", by_model, log))
    return charts


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


# Files


def caption(run: Run, metrics: Sequence[str]) -> list[str]:
    """Return what is drawn and of how many trials, and what is not drawn."""
    counts = [n for model in run.models for n in run.measured[model].sum(axis=0) if n]
    low, high, planned = min(counts), max(counts), run.config.trials
    trials = str(low) if low == high else f"{low} to {high}"
    text = "one trial, so no band" if high == 1 else f"median and 25–75 % band of {trials} trials"
    found = [text + (f" ({planned} planned)" if low < planned else "")]
    if left_out := sum(run.not_finite(metric) for metric in metrics):
        found.append(f"{count(left_out, 'value')} not finite, left out")
    if len(run.codes) > 1:
        found.append(f"trained by {len(run.codes)} versions of the code")
    return found


def figures(runs: Sequence[Run]) -> dict[str, Spec]:
    """Return the charts that are written to files, by their names.

    Of several runs there is the overview only, with a row for each run.
    """
    found = {"overview": overview(runs)}
    if len(runs) > 1:
        return found
    run, width = runs[0], 420
    names = [metric.name for metric in run.metrics]
    for name in names:
        title = {"text": f"{run.title}: {run.metric_title(name)}", "subtitle": caption(run, [name])}
        found[name] = curves(run, name) | {"title": title, "width": width, "height": 280}
        found[name]["encoding"]["color"]["legend"] = {"columns": 2}
    if compares(run):
        measured = [name for name in names if name != TRAIN_LOSS.name] or names
        parts: dict[str, list[Spec | None]] = {
            FOREST: [forest(run, name) for name in measured],
            FRONTIER: [frontier(run, name) for name in measured],
        }
        for about, specs in parts.items():
            if drawn := [spec | {"width": width} for spec in specs if spec is not None]:
                at = TESTED if run.part == "test" else SELECTED
                title = {"text": run.title, "subtitle": [about, *at.split(". ", 1)]}
                found["forest" if about is FOREST else "frontier"] = {
                    "title": title,
                    "vconcat": drawn,
                }
    return found


def overview(runs: Sequence[Run]) -> Spec:
    """Return the curves of every metric as panels: a row for each run, a column for each metric."""
    rows, params = [], None
    for run in runs:
        names = [metric.name for metric in run.metrics]
        panels = [curves(run, name) | {"width": 280, "height": 230} for name in names]
        for panel in panels:
            panel["encoding"]["color"]["legend"] = {"columns": 2}  # the page has one of buttons
            params = panel.pop("params")  # one for all panels
        columns = len(names) if len(runs) > 1 or len(names) < 5 else -(-len(names) // 2)
        title = {"text": run.title, "subtitle": caption(run, names)}
        rows.append({"title": title, "columns": columns, "concat": panels})
    return {"params": params, "vconcat": rows}


def write(runs: Sequence[Run], folder: Path) -> list[Path]:
    """Write the figures as PNG, SVG and PDF; returns the files."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, spec in figures(runs).items():
        draw(spec, folder / name)
    return sorted(folder.iterdir())


def draw(spec: Spec, path: Path) -> None:
    """Write a chart as PNG, SVG and PDF, with these endings after the path."""
    import vl_convert

    whole = spec | {"background": "white", "config": template("config"), "padding": 12}
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


# Pictures

# From the least to the greatest value: blue, white, red, as in most plots of signed values.
LEAST, ZERO, GREATEST = (33, 102, 172), (247, 247, 247), (178, 24, 43)
TRUTH, FOUND = (0, 255, 140), (255, 140, 0)
Bytes = NDArray[np.uint8]
Mask = NDArray[np.bool_]


def heat_map(matrix: Floats, top: float) -> str:
    """Return a picture with a pixel for each entry, from −top (blue) over 0 to top (red)."""
    scaled = np.clip(matrix.astype(np.float64) / (top or 1.0), -1, 1)[..., None]
    less = ZERO + (np.array(LEAST) - ZERO) * -scaled
    more = ZERO + (np.array(GREATEST) - ZERO) * scaled
    colours = np.where(scaled < 0, less, more).round().astype(np.uint8)
    # A palette of 256 colours is a third as large, and looks the same.
    return _address(Image.fromarray(colours).quantize(256), "PNG", optimize=True)


def photo(image: Bytes) -> str:
    """Return a picture of a gray or RGB image."""
    return _address(Image.fromarray(_squeezed(image)), "JPEG", quality=85)


def outlined(image: Bytes, truth: Mask, found: Mask | None = None) -> str:
    """Return the image with the outlines of one mask or of two."""
    image = _squeezed(image)
    drawn = np.array(image if image.ndim == 3 else np.repeat(image[..., None], 3, axis=2))
    drawn[_edge(truth)] = TRUTH
    if found is not None:
        drawn[_edge(found)] = FOUND
    return _address(Image.fromarray(drawn), "PNG")


def _squeezed(image: Bytes) -> Bytes:
    """Return a gray image without an axis for its one channel."""
    return image[..., 0] if image.ndim == 3 and image.shape[-1] == 1 else image


def _edge(mask: Mask) -> Mask:
    """Return the pixels of a mask with a neighbour outside of it; the image's border is none."""
    padded = np.pad(mask, 1, mode="edge")
    inner = padded[:-2, 1:-1] & padded[2:, 1:-1] & padded[1:-1, :-2] & padded[1:-1, 2:]
    edge: Mask = mask & ~inner
    return edge


def _address(image: Image.Image, kind: str, **options: Any) -> str:
    buffer = io.BytesIO()
    image.save(buffer, kind, **options)
    return f"data:image/{kind.lower()};base64,{base64.b64encode(buffer.getvalue()).decode()}"
