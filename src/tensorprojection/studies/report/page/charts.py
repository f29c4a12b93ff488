"""The page's charts as data; page.js draws them with uPlot.

A chart has epochs and lines. A line has a network, its median by epoch, the two ends of its band,
and the trials one by one where there are several.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from ...observed import Array
from ..curves import Curves, Floats, quartiles
from ..figures import styles
from ..frequencies import low_pass
from .numbers import Difference
from .runs import Run

Chart = dict[str, Any]


def looks(models: Sequence[str]) -> dict[str, dict[str, Any]]:
    """Each network's colour and dashes, as in the figures."""
    found = {}
    for model, style in styles(models).items():
        dash = {"-": [], "--": [6, 4], "-.": [8, 3, 2, 3], ":": [2, 3]}
        pattern = (
            dash[style.dash] if isinstance(style.dash, str) else [2 * d for d in style.dash[1]]
        )
        found[model] = {"colour": style.colour, "dash": pattern}
    return found


def metric_charts(curves: Curves) -> list[Chart]:
    """A chart for each metric."""
    return [
        {
            "title": _capital(curves.metric_title(metric)),
            "epochs": curves.epochs.tolist(),
            "lines": [
                _line(model, curves.values[metric, model], trials=True) for model in curves.models
            ],
        }
        for metric in curves.metrics
    ]


def difference_charts(curves: Curves, found: Sequence[Difference], reference: str) -> list[Chart]:
    """For each metric the differences from that network."""
    return [
        {
            "title": _capital(curves.metric_title(metric)),
            "epochs": curves.epochs.tolist(),
            "signed": True,
            "lines": [
                {
                    "model": d.model,
                    "median": numbers(d.median),
                    "low": numbers(d.low),
                    "high": numbers(d.high),
                    "notes": [
                        f"ahead in {a} of {n}" for a, n in zip(d.ahead, d.pairs, strict=True)
                    ],
                }
                for d in found
                if d.metric == metric and d.reference == reference
            ],
        }
        for metric in curves.metrics
    ]


def observed_charts(run: Run) -> list[Chart]:
    """By epoch, for each layer that has some: energy, orthogonality, and how low its U's pass."""
    charts = _charts_of(run, "energy", "Captured energy: {}", float)
    title = "Distance from orthonormal, ‖UᵀU − I‖: {}"
    charts += _charts_of(run, "orthogonality", title, float, log=True)
    for mode in (2, 3, 4):  # mode 1 is the channels, which have no frequencies
        title = f"Low-pass share of mode {mode}: {{}}"
        charts += _charts_of(run, "by_epoch", title, _low_pass, of=f"/{mode}")
    return charts


def _charts_of(
    run: Run,
    kind: str,
    title: str,
    value: Callable[[Array], float],
    of: str = "",
    log: bool = False,
) -> list[Chart]:
    """A chart for each layer with arrays of this kind; their names are the layer's and ``of``."""
    layers: dict[str, list[dict[str, Any]]] = {}
    for model, trials in run.observed.items():
        names = sorted({name for trial in trials for name in trial.named(kind)})
        for name in names:
            if not name.endswith(of):
                continue
            values = np.full((len(trials), len(run.curves.epochs)), np.nan)
            for row, trial in enumerate(trials):
                own = trial.get(f"{kind}/{name}")
                if own is None or own.shape[:1] != (len(trial.epochs),):  # of an older version
                    continue
                for epoch, found in zip(trial.epochs, own, strict=True):
                    values[row, run.curves.epochs == epoch] = value(found)
            layer = name.removesuffix(of)
            layers.setdefault(layer, []).append(_line(model, values, trials=True))
    epochs = run.curves.epochs.tolist()
    return [
        {"title": title.format(layer), "epochs": epochs, "lines": lines, "log": log}
        for layer, lines in layers.items()
    ]


def _low_pass(U: Array) -> float:
    return low_pass(U.astype(np.float64))


def beside_each_other(runs: Sequence[Run], names: Sequence[str]) -> list[Chart]:
    """Every metric of all runs in one chart: a network has one colour, a run one dash."""
    dashes: list[list[int]] = [[], [8, 4], [2, 3], [10, 3, 2, 3], [5, 2]]
    epochs = sorted({int(epoch) for run in runs for epoch in run.curves.epochs})
    charts = []
    for metric in runs[0].curves.metrics:
        lines = []
        for k, (run, name) in enumerate(zip(runs, names, strict=True)):
            columns = np.searchsorted(epochs, run.curves.epochs)
            for model in run.curves.models:
                values = np.full((len(run.curves.trials), len(epochs)), np.nan)
                values[:, columns] = run.curves.values[metric, model]
                line = _line(model, values, trials=False)
                lines.append({**line, "of": name, "dash": dashes[k % len(dashes)]})
        title = _capital(runs[0].curves.metric_title(metric))
        charts.append({"title": title, "epochs": epochs, "lines": lines})
    return charts


def _line(model: str, values: Floats, trials: bool) -> dict[str, Any]:
    low, median, high = quartiles(values)
    several = len(values) > 1
    return {
        "model": model,
        "median": numbers(median),
        "low": numbers(low) if several else [],
        "high": numbers(high) if several else [],
        "trials": [numbers(row) for row in values] if trials and several else [],
    }


def numbers(values: Floats) -> list[float | None]:
    """As JSON has them: five digits, and null for what there is none of."""
    return [float(f"{v:.5g}") if np.isfinite(v) else None for v in values]


def _capital(text: str) -> str:
    return text[:1].upper() + text[1:]
