"""The table of a run for the console, Markdown, CSV and LaTeX, and each difference in words."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
from rich import box
from rich.console import Group
from rich.table import Table
from rich.text import Text

from ..results import BY_CLASS
from .run import Run
from .statistics import BASE, FEWEST, Comparison, Estimate

NO_RATIO = (
    "Difference: the mean over the trials. All trials split the same images, so their differences "
    "are not independent. The numbers of training and validation images are not recorded, so there "
    "is no interval that is corrected for it."
)
CORRECTED = (
    "Difference: the mean over the trials, with its 95 % interval. All trials split the "
    "same images, so their differences are not independent; the interval is corrected for that "
    "(Nadeau & Bengio 2003), with {ratio:.3g} validation images for each training image. A "
    "difference is undecided for new images if the interval contains zero."
)
BOOTSTRAP = (
    "Difference: the median over the trials, with its 95 % bootstrap interval. All trials "
    "{share}: the interval is about {others}inits and orders of batches, not about other images."
)


# Words


def number(value: float, sign: str = "") -> str:
    """Return the number as every table, page and sentence shows it: to three digits or so.

    >>> number(0.95314), number(-0.0021, "+"), number(0.0000123), number(1234567.8)
    ('0.953', '−0.002', '1.2e−05', '1.23e+06')
    """
    if math.isnan(value):
        return "–"
    if value and abs(value) < 0.001:
        text = format(value, f"{sign}.2g")
    else:
        text = format(value, f"{sign}.3f" if abs(value) < 100 else f"{sign}.3g")
    return text.replace("-", "−")


def interval(found: Estimate) -> str:
    """Return the interval as "low to high"; nothing if there is none."""
    if math.isnan(found.low):
        return ""
    return f"{number(found.low, '+')} to {number(found.high, '+')}"


def count(how_many: int, what: str) -> str:
    """Return the number with its noun.

    >>> count(1, "trial"), count(3, "trial")
    ('1 trial', '3 trials')
    """
    return f"{how_many} {what}{'' if how_many == 1 else 's'}"


def verdict(run: Run, row: Comparison) -> str:
    """Return the verdict: better, worse, undecided, or too few trials."""
    found = row.difference
    if found is None or found.trials < FEWEST:
        return "too few trials to decide"
    if not found.sign:
        return "undecided"
    higher = run.metric(row.metric).higher_is_better
    if higher is None:
        return "higher" if found.sign > 0 else "lower"
    return "better" if (found.sign > 0) == higher else "worse"


def notes(run: Run) -> list[str]:
    """Return the notes below the table: its statistics, and what it leaves out."""
    rows = run.comparisons
    text = f"Medians and 25–75 % ranges over {_trials(run)}."
    if run.held_out is None:
        text += (
            " Best: the epoch, in parentheses, with the best median; selected on the same data, "
            "hence optimistic."
        )
    else:
        text += " Each network is the one that its trial saved, selected on its validation images."
    result = [text]
    if compares(run):
        result.append(_about_difference(run))
        if any(row.difference and row.difference.trials < FEWEST for row in rows):
            result.append(f"Fewer than {FEWEST} trials decide nothing.")
    for metric in run.metrics:
        if left_out := run.not_finite(metric.name):
            result.append(
                f"{count(left_out, 'value')} of the {run.metric_title(metric.name)} "
                f"{'is' if left_out == 1 else 'are'} not finite, and left out."
            )
    if absent := [model for model in run.config.models if model not in run.models]:
        result.append(f"Without results so far: {', '.join(map(run.model_title, absent))}.")
    if len(run.codes) > 1:
        result.append(
            "Trained by more than one version of the code, so that a difference may be one of the "
            f"code and not of the networks: {'; '.join(run.codes)}."
        )
    return result + [f"{text}; left out from there on. tpl run restores it." for text in run.damage]


def compares(run: Run) -> bool:
    """Return True if there is a base and something to compare with it."""
    return BASE in run.models and len(run.models) > 1


def _about_difference(run: Run) -> str:
    if run.held_out is not None:
        return BOOTSTRAP.format(
            share="are measured on the same images", others="networks from other splits, "
        )
    if run.one_split:
        return BOOTSTRAP.format(
            share="have the one split that the images come with", others="other "
        )
    ratio = float(run.ratios.mean())
    return NO_RATIO if math.isnan(ratio) else CORRECTED.format(ratio=ratio)


def _trials(run: Run) -> str:
    counts = {run.model_title(row.model): row.trials for row in run.comparisons}
    planned = run.config.trials
    if set(counts.values()) == {planned}:
        return count(planned, "trial")
    each = "; ".join(f"{title}: {trials}" for title, trials in counts.items())
    if run.held_out is not None:
        return f"the trials with a saved network ({each}; planned: {planned})"
    last = run.comparisons[0].last_epoch
    return f"the trials that have reached epoch {last} ({each}; planned: {planned})"


# Cells, the same in all formats


def header(run: Run) -> list[str]:
    """Return the columns' names."""
    names = ["model", "median"]
    if run.held_out is None:
        names = ["model", f"last epoch ({run.comparisons[0].last_epoch})", "best epoch"]
    if compares(run):
        names += [f"minus {run.model_title(BASE)}", "95 % interval", "better"]
    return names


def cells(run: Run, row: Comparison) -> list[str]:
    """Return a row's cells; empty if there is nothing to show."""
    found = [run.model_title(row.model), _with_range(row.last, row.trials)]
    if run.held_out is None:
        epoch = "" if row.best_epoch is None else f" ({row.best_epoch})"
        found.append(_with_range(row.best, row.trials, epoch))
    if compares(run):
        if row.difference is None:
            return [*found, "", "", ""]
        better = "–" if row.better is None else f"{row.better}/{row.difference.trials}"
        found += [number(row.difference.value, "+"), interval(row.difference), better]
    return found


def by_class(run: Run) -> list[list[str]]:
    """Return the medians by class at the last epoch: a header, then a row per model and class."""
    last = run.epochs.tolist().index(run.comparisons[0].last_epoch)
    shown = {metric.name for metric in run.metrics}
    found: dict[tuple[str, str], dict[str, str]] = {}
    for (name, model), values in run.values.items():
        metric, _, of = name.partition(BY_CLASS)
        if of and metric in shown and model in run.models:
            finite = values[:, last][np.isfinite(values[:, last])]
            median = float(np.median(finite)) if len(finite) else math.nan
            found.setdefault((run.model_title(model), of), {})[metric] = number(median)
    names = list(dict.fromkeys(name for row in found.values() for name in row))
    rows = [[*key, *(row.get(name, "–") for name in names)] for key, row in found.items()]
    return [["model", "class", *names], *rows] if rows else []


def _with_range(values: tuple[float, float, float], trials: int, after: str = "") -> str:
    """Return the median with the quartiles; one trial has no spread."""
    low, median, high = values
    text = number(median) + after
    if trials > 1 and not math.isnan(low):
        text += f" [{number(low)}–{number(high)}]"
    return text


def of_metric(run: Run, metric: str) -> list[Comparison]:
    """Return the rows of one metric."""
    return [row for row in run.comparisons if row.metric == metric]


# Formats


def render(run: Run) -> Group:
    """Return a table for each metric and notes, for a rich console of 80 columns."""
    parts: list[Table | Text] = []
    for metric in run.metrics:
        table = Table(box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0), pad_edge=False, show_edge=False)
        for k, name in enumerate(header(run)):
            table.add_column(Text(name), justify="right" if k else "left", overflow="fold")
        for row in of_metric(run, metric.name):
            # Ranges and intervals go below, so that names are folded and numbers are not.
            shown = [text.replace(" [", "\n[").replace(" to ", "\nto ") for text in cells(run, row)]
            table.add_row(Text(shown[0]), *(Text(text, no_wrap=True) for text in shown[1:]))
        title = f"{run.title}: {run.metric_title(metric.name)}"
        parts += [Text(title, "italic"), table, Text()]
    if rows := by_class(run):
        table = Table(box=box.SIMPLE_HEAD, pad_edge=False, show_edge=False)
        for k, name in enumerate(rows[0]):
            table.add_column(Text(name), justify="right" if k > 1 else "left", overflow="fold")
        for texts in rows[1:]:
            table.add_row(*map(Text, texts))
        parts += [Text(f"{run.title}: medians by class", "italic"), table, Text()]
    return Group(*parts, *(Text(note) for note in notes(run)))


def as_markdown(run: Run) -> str:
    """Return the tables and notes in Markdown."""
    names = header(run)
    lines = [f"# {run.title}", ""]
    for metric in run.metrics:
        lines += [f"## {capital(run.metric_title(metric.name))}", ""]
        lines += [_line(names), _line(["---"] + ["---:"] * (len(names) - 1))]
        lines += [_line(cells(run, row)) for row in of_metric(run, metric.name)]
        lines.append("")
    if rows := by_class(run):
        lines += ["## Medians by class", "", _line(rows[0])]
        lines += [_line(["---"] * 2 + ["---:"] * (len(rows[0]) - 2)), *map(_line, rows[1:]), ""]
    lines += [f"- {note}" for note in notes(run)]
    return "\n".join(lines) + "\n"


def _line(texts: Sequence[str]) -> str:
    return f"| {' | '.join(text.replace('|', chr(92) + '|') for text in texts)} |"


def as_csv(run: Run) -> str:
    """Return a line for each metric and model, with all digits; empty if there is no number."""
    found: list[dict[str, Any]] = []
    for row in run.comparisons:
        of = row.difference
        found.append(
            {"metric": row.metric, "model": row.model, "title": run.model_title(row.model)}
            | {"trials": row.trials, "last_epoch": row.last_epoch, "best_epoch": row.best_epoch}
            | dict(zip(("last_25", "last_median", "last_75"), row.last, strict=True))
            | dict(zip(("best_25", "best_median", "best_75"), row.best, strict=True))
            | {"pairs": of.trials if of else 0, "better": row.better if of else None}
            | {name: getattr(of, name, None) for name in ("value", "low", "high", "kind")}
        )
    frame = pl.DataFrame(found, infer_schema_length=None)
    frame = frame.rename({"value": "difference", "kind": "interval"})
    # A spreadsheet takes a text that begins like this for a formula, and computes it.
    formula = pl.col(pl.String).str.contains(r"^[=+\-@\t\r]")
    frame = frame.with_columns(
        pl.when(formula).then("'" + pl.col(pl.String)).otherwise(pl.col(pl.String)).name.keep(),
        pl.col(pl.Float64).fill_nan(None),
    )
    return frame.write_csv()


def as_tex(run: Run) -> str:
    """Return a LaTeX table for each metric, in the style of booktabs."""
    names = header(run)
    parts = ["% \\usepackage{booktabs}"]
    for metric in run.metrics:
        caption = f"{run.title}: {run.metric_title(metric.name)}. {' '.join(notes(run))}"
        parts += [
            *("\\begin{table}", "\\centering", f"\\caption{{{tex(caption)}}}"),
            f"\\label{{tab:{tex_label(metric.name)}}}",
            f"\\begin{{tabular}}{{l{'r' * (len(names) - 1)}}}",
            *("\\toprule", _tex_line(names), "\\midrule"),
            *(_tex_line(cells(run, row)) for row in of_metric(run, metric.name)),
            *("\\bottomrule", "\\end{tabular}", "\\end{table}", ""),
        ]
    return "\n".join(parts)


def _tex_line(texts: Sequence[str]) -> str:
    return f"{' & '.join(map(tex, texts))} \\\\"


TEX = {
    **{special: f"\\{special}" for special in "&%$#_{}"},
    "\\": "\\textbackslash{}",
    "~": "\\textasciitilde{}",
    "^": "\\textasciicircum{}",
    "−": "$-$",
    "–": "--",
    "×": "$\\times$",
    "<": "$<$",
    ">": "$>$",
}


def tex(text: str) -> str:
    """Return the text as LaTeX prints it.

    >>> tex("50 % of 2 × 3, −1")
    '50 \\\\% of 2 $\\\\times$ 3, $-$1'
    """
    return "".join(TEX.get(letter, letter) for letter in text)


def tex_label(name: str) -> str:
    """Return the name with nothing that LaTeX would take for a command."""
    return "".join(letter if letter.isalnum() else "-" for letter in name)


FORMATS: dict[str, Callable[[Run], str]] = {
    "table.md": as_markdown,
    "table.csv": as_csv,
    "table.tex": as_tex,
}


def write(run: Run, folder: Path) -> list[Path]:
    """Write the table in all formats; returns the files."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, format_ in FORMATS.items():
        (folder / name).write_bytes(format_(run).encode())
    return [folder / name for name in FORMATS]


def capital(text: str) -> str:
    """Return the text with its first letter as a capital."""
    return text[:1].upper() + text[1:]
