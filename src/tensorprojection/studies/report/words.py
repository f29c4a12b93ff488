"""A run in a few words: one short table, and a line for each network beside the base."""

from __future__ import annotations

import math

from rich import box
from rich.table import Table
from rich.text import Text

from .curves import BASE, Curves
from .page.numbers import shown
from .table import ComparisonRow, rows


def short_table(curves: Curves, metrics: tuple[str, ...]) -> Table:
    """Medians of validation metrics at the last epoch, a line for each network, in 80 columns."""
    made = {(row.metric, row.model): row for row in rows(curves)}
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, show_edge=False)
    last = made[metrics[0], curves.models[0]].last_epoch
    table.add_column(Text(f"validation medians, epoch {last}"))
    for metric in metrics:
        title = curves.metric_title(metric).removeprefix("validation ")
        table.add_column(Text(title), justify="right")
    for model in curves.models:
        cells = [shown(made[metric, model].last_median) for metric in metrics]
        table.add_row(Text(curves.model_title(model)), *cells)
    return table


def lines(curves: Curves, metric: str) -> list[str]:
    """What came out, whoever wins: each network beside the base, with the interval."""
    return [line(curves, row) for row in rows(curves) if row.metric == metric and row.model != BASE]


def line(curves: Curves, row: ComparisonRow) -> str:
    """One network beside the base, by the interval of the mean difference."""
    base, what = curves.model_title(BASE), curves.metric_title(row.metric)
    if not row.pairs:
        return f"{row.title} cannot be compared with {base}: no trial has both."
    low, high = row.corrected_low, row.corrected_high
    middle = row.mean_difference
    if math.isnan(low):  # one division of the images for all trials
        low, high, middle = row.difference_low, row.difference_high, row.difference
    trials = f"better in {row.better} of {row.pairs} trials"
    if math.isnan(low):
        return f"{row.title} beside {base}: {shown(middle, '+')} {what}, of one trial only."
    told = f"{shown(middle, '+')} {what}, 95 % interval {shown(low, '+')} to {shown(high, '+')}"
    if low <= 0 <= high:
        verdict = f"{row.title} and {base} cannot be told apart"
    else:
        better = (low > 0) == curves.higher_is_better(row.metric)
        verdict = f"{row.title} is {'better' if better else 'worse'} than {base}"
    return f"{verdict}: {told}; {trials}."
