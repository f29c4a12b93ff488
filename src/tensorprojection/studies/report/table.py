"""The table of a run: each model at the last and at the best epoch, and beside the base model."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
import polars as pl
from rich import box
from rich.console import Group
from rich.table import Table
from rich.text import Text

from .curves import BASE, Curves, Floats, quartiles
from .intervals import bootstrap, corrected

# The range of n values holds the median they were drawn around in 1 − 2^(1−n) of all cases: of
# fewer values than these, no interval within it reaches 95 %.
FEWEST_FOR_95 = 6

ABOUT_RESPLITS = (
    "All trials split the same images, so their differences are not independent, and the bootstrap "
    "interval, which takes them to be, is too narrow for a claim about new images. In parentheses: "
    "an interval of the mean difference that is corrected for it (Nadeau & Bengio 2003), with 3 "
    "images that validate for 7 that train."
)
ABOUT_ONE_SPLIT = (
    "All trials have the one division that the images come with: the interval speaks of other "
    "starts and orders of batches, not of other images."
)

ABOUT_HELD_OUT = (
    "All trials are measured on the same held-out images: the interval speaks of networks from "
    "other splits, starts and orders of batches, not of other held-out images."
)


@dataclass(frozen=True)
class ComparisonRow:
    """A model by one metric. Medians come with their 25 % and 75 % quantiles.

    The difference is model minus base, paired by trial: its median and a 95 % interval of that;
    its mean and the corrected interval of that. NaN stands for what there is none of.
    """

    metric: str
    model: str
    title: str
    trials: int
    last_epoch: int
    last_median: float
    last_25: float
    last_75: float
    best_epoch: int | None  # None where no value is finite
    best_median: float
    best_25: float
    best_75: float
    pairs: int
    difference: float
    difference_low: float
    difference_high: float
    better: int
    mean_difference: float
    corrected_low: float
    corrected_high: float


# The numbers


def rows(curves: Curves) -> list[ComparisonRow]:
    """A row for each metric and model.

    The last epoch is the last that every model has reached. All numbers are of the trials that
    have reached it, so that an unfinished one does not count at some epochs only.
    """
    last = last_column(curves)
    return [
        _row(curves, metric, model, last) for metric in curves.metrics for model in curves.models
    ]


def last_column(curves: Curves) -> int:
    """The column of the last epoch that every model has reached in some trial."""
    reached = (np.flatnonzero(m.any(axis=0))[-1] for m in curves.measured.values())
    return int(min(reached))


def _row(curves: Curves, metric: str, model: str, last: int) -> ComparisonRow:
    there = curves.measured[model][:, last]
    values = np.where(there[:, None], curves.values[metric, model], np.nan)[:, : last + 1]
    by_epoch = quartiles(values)
    best = _best(by_epoch[1], curves.higher_is_better(metric))
    differences = np.empty(0)
    if model != BASE and BASE in curves.models:
        differences = values[:, last] - curves.values[metric, BASE][:, last]
        differences = differences[~np.isnan(differences)]
    ahead = differences > 0 if curves.higher_is_better(metric) else differences < 0
    low, high = bootstrap(differences)
    resplit = curves.config.split != "as-shipped"
    corrected_low, corrected_high = corrected(differences) if resplit else (math.nan, math.nan)
    low_last, median_last, high_last = map(float, by_epoch[:, last])
    low_best, median_best, high_best = map(float, by_epoch[:, best or 0])
    return ComparisonRow(
        metric=metric,
        model=model,
        title=curves.model_title(model),
        trials=int(there.sum()),
        last_epoch=int(curves.epochs[last]),
        last_median=median_last,
        last_25=low_last,
        last_75=high_last,
        best_epoch=None if best is None else int(curves.epochs[best]),
        best_median=median_best,
        best_25=low_best,
        best_75=high_best,
        pairs=len(differences),
        difference=float(np.median(differences)) if len(differences) else math.nan,
        difference_low=low,
        difference_high=high,
        better=int(ahead.sum()),
        mean_difference=float(differences.mean()) if len(differences) else math.nan,
        corrected_low=corrected_low,
        corrected_high=corrected_high,
    )


def _best(medians: Floats, higher: bool) -> int | None:
    """The column of the best median, the first of equals; None where all are NaN."""
    if np.isnan(medians).all():
        return None
    return int(np.nanargmax(medians) if higher else np.nanargmin(medians))


# What is seen


def render(curves: Curves) -> Group:
    """A table for each metric and notes, for a rich console of 80 columns."""
    made = rows(curves)
    parts: list[Table | Text] = []
    for metric in curves.metrics:
        own = [row for row in made if row.metric == metric]
        table = Table(box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0), pad_edge=False, show_edge=False)
        for k, name in enumerate(_header(curves, own)):
            # Where it gets narrow, names are folded and numbers are not.
            table.add_column(Text(name), justify="right" if k else "left", no_wrap=k in (1, 2))
        for row in own:
            table.add_row(*(_stacked(cell) for cell in _cells(curves, row)))
        parts += [Text(f"{curves.title}: {curves.metric_title(metric)}", "italic"), table, Text()]
    return Group(*parts, *(Text(note) for note in notes(curves, made)))


def _stacked(cell: str) -> Text:
    """A cell with its intervals below, of which the first needs no brackets there."""
    median, _, interval = cell.partition(" [")
    interval = interval.replace("] (", "\n(").removesuffix("]").replace(", ", " … ")
    return Text(f"{median}\n{interval}" if interval else median, no_wrap=bool(interval))


def as_markdown(curves: Curves) -> str:
    """The same tables and notes in Markdown."""
    made = rows(curves)
    lines = [f"# {curves.title}", ""]
    for metric in curves.metrics:
        own = [row for row in made if row.metric == metric]
        title = curves.metric_title(metric)
        lines += [f"## {title[0].upper()}{title[1:]}", ""]
        header = _header(curves, own)
        lines += [_line(header), _line(["---"] + ["---:"] * (len(header) - 1))]
        lines += [_line(_cells(curves, row)) for row in own]
        lines.append("")
    lines += [f"- {note}" for note in notes(curves, made)]
    return "\n".join(lines) + "\n"


def as_csv(curves: Curves) -> str:
    """A line for each metric and model, with all digits; empty where there is no number."""
    frame = pl.DataFrame([asdict(row) for row in rows(curves)])
    return frame.with_columns(pl.col(pl.Float64).fill_nan(None)).write_csv()


def write(curves: Curves, folder: Path) -> list[Path]:
    """Write ``table.md`` and ``table.csv``; returns the files."""
    folder.mkdir(parents=True, exist_ok=True)
    files = [folder / "table.md", folder / "table.csv"]
    files[0].write_bytes(as_markdown(curves).encode())
    files[1].write_bytes(as_csv(curves).encode())
    return files


def notes(curves: Curves, made: Sequence[ComparisonRow]) -> list[str]:
    """How to read the table, and what it leaves out."""
    held_out = curves.held_out is not None
    result = [f"Medians and 25–75 % ranges over {_trials(curves, made)}."]
    if held_out:
        result[0] += " Each network is as it was kept in its trial, by its validation images."
    else:
        result[0] += (
            " Best: the epoch, in parentheses, whose median is best; chosen by these very values, "
            "so it flatters."
        )
    if _compares(curves):
        when = "" if held_out else " at the last epoch"
        result.append(
            f"Minus {curves.model_title(BASE)}: the median of the differences{when}, "
            "trial by trial, with a 95 % bootstrap interval; and the trials in which the model is "
            "better."
        )
        one_split = ABOUT_HELD_OUT if held_out else ABOUT_ONE_SPLIT
        result.append(ABOUT_RESPLITS if curves.config.split != "as-shipped" else one_split)
        if any(0 < row.pairs < FEWEST_FOR_95 for row in made):
            result.append(
                f"Of fewer than {FEWEST_FOR_95} trials, the interval holds less than 95 %."
            )
    for metric in curves.metrics:
        if count := curves.not_finite(metric):
            verb = "value is" if count == 1 else "values are"
            result.append(
                f"{count} {verb} not finite and left out of the {curves.metric_title(metric)}."
            )
    if absent := [model for model in curves.config.models if model not in curves.models]:
        result.append(f"Without results so far: {', '.join(map(curves.model_title, absent))}.")
    if len(curves.codes) > 1:
        each = "; ".join(f"{code}: {_networks(curves, by)}" for code, by in curves.codes.items())
        result.append(
            "Trained by more than one version of the code, so that a difference may be one of the "
            f"code and not of the networks. {each}."
        )
    result += [
        f"{damage}; left out from there on. tpl run restores it." for damage in curves.damage
    ]
    return result


def _networks(curves: Curves, by: Mapping[str, int]) -> str:
    """In how many trials each model was trained."""
    titles = (f"{curves.model_title(model)} in {_count(n, 'trial')}" for model, n in by.items())
    return ", ".join(titles)


def _count(number: int, what: str) -> str:
    return f"{number} {what}{'' if number == 1 else 's'}"


def _trials(curves: Curves, made: Sequence[ComparisonRow]) -> str:
    """Which trials the numbers are of, and how many."""
    counts = {row.title: row.trials for row in made}
    planned = curves.config.trials
    if set(counts.values()) == {planned}:
        return _count(planned, "trial")
    each = "; ".join(f"{title}: {count}" for title, count in counts.items())
    if curves.held_out is not None:
        return f"the trials of which a network was kept ({each}; planned: {planned})"
    return f"the trials that have reached epoch {made[0].last_epoch} ({each}; planned: {planned})"


def _compares(curves: Curves) -> bool:
    return BASE in curves.models and len(curves.models) > 1


def _header(curves: Curves, own: Sequence[ComparisonRow]) -> list[str]:
    names = ["model", f"last epoch ({own[0].last_epoch})", "best epoch"]
    if curves.held_out is not None:  # of each network there is one
        names = ["model", "median"]
    if _compares(curves):
        names += [f"minus {curves.model_title(BASE)}", "better"]
    return names


def _cells(curves: Curves, row: ComparisonRow) -> list[str]:
    best = _number(row.best_median)
    if row.best_epoch is not None:
        best += f" ({row.best_epoch})"
    cells = [
        row.title,
        f"{_number(row.last_median)}{_range(row.last_25, row.last_75, row.trials)}",
    ]
    if curves.held_out is None:
        cells.append(f"{best}{_range(row.best_25, row.best_75, row.trials)}")
    if _compares(curves):
        if row.pairs:
            interval = f" [{_number(row.difference_low, '+')}, {_number(row.difference_high, '+')}]"
            if not math.isnan(row.corrected_low):
                low, high = _number(row.corrected_low, "+"), _number(row.corrected_high, "+")
                interval += f" ({low}, {high})"
            if row.pairs == 1:
                interval = ""
            cells.append(f"{_number(row.difference, '+')}{interval}")
            cells.append(f"{row.better}/{row.pairs}")
        else:
            cells += ["", ""]
    return cells


def _range(low: float, high: float, trials: int) -> str:
    """The quartiles; nothing of one trial, which has no spread."""
    return f" [{_number(low)}–{_number(high)}]" if trials > 1 and not math.isnan(low) else ""


def _number(value: float, sign: str = "") -> str:
    """Four digits after the point, or six in all where it is large.

    >>> _number(0.95314), _number(-0.0021, "+"), _number(123456.7)
    ('0.9531', '-0.0021', '123457')
    """
    if math.isnan(value):
        return "–"
    return format(value, f"{sign}.4f" if abs(value) < 100 else f"{sign}.6g")


def _line(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"
