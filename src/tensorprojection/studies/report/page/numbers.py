"""The page's numbers, from curves by trial and epoch; intervals are those of the table."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from ..curves import BASE, Curves, Floats
from ..intervals import bootstrap
from ..table import ComparisonRow, last_column, rows

# With more networks than these, differences are taken from the base only: pairs grow as a square.
MOST_FOR_ALL_PAIRS = 6


@dataclass(frozen=True)
class Score:
    """A row of the table, with bootstrap intervals of the two medians."""

    row: ComparisonRow
    last_interval: tuple[float, float]
    best_interval: tuple[float, float]


@dataclass(frozen=True)
class Difference:
    """Model minus reference at each epoch, paired by trial: arrays by epoch, NaN for none."""

    metric: str
    model: str
    reference: str
    median: Floats
    low: Floats
    high: Floats
    ahead: tuple[int, ...]  # trials in which the model is better
    behind: tuple[int, ...]  # those in which the reference is; in the others they are equal
    pairs: tuple[int, ...]


@dataclass(frozen=True)
class Reach:
    """How soon a model is as good as the base ever gets, trial by trial."""

    metric: str
    model: str
    reached: int
    trials: int
    median: float  # of the epochs, in the trials that got there; NaN where none did
    base_median: float  # the epoch of the base's own best, as a median of the same trials


def scores(curves: Curves) -> list[Score]:
    """All metrics and models at the last and at the best epoch."""
    last = last_column(curves)
    found = []
    for row in rows(curves):
        there = curves.measured[row.model][:, last]
        values = curves.values[row.metric, row.model][there]
        best = None
        if row.best_epoch is not None:
            best = int(np.flatnonzero(curves.epochs == row.best_epoch)[0])
        found.append(
            Score(
                row,
                bootstrap(_finite(values[:, last])),
                (math.nan, math.nan) if best is None else bootstrap(_finite(values[:, best])),
            )
        )
    return found


def references(curves: Curves) -> tuple[str, ...]:
    """The networks that others are compared with, the base first."""
    if len(curves.models) < 2:
        return ()
    first = BASE if BASE in curves.models else curves.models[0]
    if len(curves.models) > MOST_FOR_ALL_PAIRS:
        return (first,)
    return (first, *(model for model in curves.models if model != first))


def differences(curves: Curves) -> list[Difference]:
    """Of every network from every reference, by every metric."""
    found: dict[tuple[str, str, str], Difference] = {}
    for metric in curves.metrics:
        for reference in references(curves):
            for model in curves.models:
                if model == reference:
                    continue
                other = found.get((metric, reference, model))
                found[metric, model, reference] = (
                    _difference(curves, metric, model, reference)
                    if other is None
                    else _reversed(other)
                )
    return list(found.values())


def _difference(curves: Curves, metric: str, model: str, reference: str) -> Difference:
    values = curves.values[metric, model] - curves.values[metric, reference]
    median, low, high = np.full((3, values.shape[1]), np.nan)
    sign = 1 if curves.higher_is_better(metric) else -1
    ahead, behind, pairs = [], [], []
    for k, column in enumerate(values.T):
        d = _finite(column)
        pairs.append(len(d))
        ahead.append(int((sign * d > 0).sum()))
        behind.append(int((sign * d < 0).sum()))
        if len(d):
            median[k] = np.median(d)
            low[k], high[k] = bootstrap(d)
    counts = tuple(ahead), tuple(behind), tuple(pairs)
    return Difference(metric, model, reference, median, low, high, *counts)


def _reversed(other: Difference) -> Difference:
    """The same pair the other way round."""
    return Difference(
        other.metric,
        other.reference,
        other.model,
        -other.median,
        -other.high,
        -other.low,
        other.behind,
        other.ahead,
        other.pairs,
    )


def reaches(curves: Curves) -> list[Reach]:
    """Epochs that each network needs until it is as good as the base at its best."""
    if BASE not in curves.models:
        return []
    return [
        _reach(curves, metric, model)
        for metric in curves.metrics
        for model in curves.models
        if model != BASE
    ]


def _reach(curves: Curves, metric: str, model: str) -> Reach:
    sign = -1.0 if curves.higher_is_better(metric) else 1.0
    base, own = sign * curves.values[metric, BASE], sign * curves.values[metric, model]
    both = ~np.isnan(base).all(axis=1) & ~np.isnan(own).all(axis=1)
    needed, base_needed = [], []
    for of_base, of_model in zip(base[both], own[both], strict=True):
        best = int(np.nanargmin(of_base))
        base_needed.append(int(curves.epochs[best]))
        there = np.flatnonzero(of_model <= of_base[best])  # NaN is never below
        if len(there):
            needed.append(int(curves.epochs[there[0]]))
    return Reach(
        metric,
        model,
        len(needed),
        int(both.sum()),
        float(np.median(needed)) if needed else math.nan,
        float(np.median(base_needed)) if base_needed else math.nan,
    )


def span_kept(start: Floats, end: Floats) -> float:
    """The share of the first U's span that lies in the other's, 0 to 1, for orthonormal columns.

    >>> span_kept(np.eye(4)[:, :2], np.eye(4)[:, 1:3])
    0.5
    """
    return float(np.square(start.T @ end).sum() / start.shape[1])


def shown(value: float, sign: str = "") -> str:
    """Four digits after the point, or four in all where that would show none of them.

    >>> shown(0.95314), shown(-0.0021, "+"), shown(0.0000123), shown(math.nan)
    ('0.9531', '-0.0021', '1.23e-05', '–')
    """
    if math.isnan(value):
        return "–"
    if value and abs(value) < 0.001:
        return format(value, f"{sign}.3g")
    return format(value, f"{sign}.4f" if abs(value) < 100 else f"{sign}.6g")


def _finite(values: Floats) -> Floats:
    return values[~np.isnan(values)]
