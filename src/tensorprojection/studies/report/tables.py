"""The tables of a run for the console, Markdown, CSV and LaTeX, and each difference in words."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import polars as pl

from ..results import BY_CLASS
from .run import LOSS, Run
from .statistics import BASE, FEWEST, Comparison, Estimate, Quartiles

TESTED = (
    "Scores are measured on the test part, which neither trains nor selects: of each trial, at the "
    "epoch with the lowest validation loss. The last epoch is measured on the validation images."
)
SELECTED = (
    "Best epoch: of each trial, the one with the lowest validation loss. It is selected on the "
    "same data, hence optimistic."
)
BY_IMAGE = "The parts are split by image: images of one patient may be in several of them."
DIFFERENCE = "Difference: the mean over the trials of the paired differences"
REDRAWN = (
    f"{DIFFERENCE}, with its 95 % interval. Each trial splits the same images anew, so their "
    "differences are not independent; the interval is corrected for that (Nadeau & Bengio 2003), "
    "with {ratio:.3g} {part} images for each training image. A difference is undecided for new "
    "images if the interval contains zero."
)
FIXED = (
    f"{DIFFERENCE}, with its 95 % interval (Student's t). All trials are measured on the same "
    "images: the interval is about other trainings, not about other images, so it needs no "
    "correction for shared images."
)


# Words


def number(value: float, sign: str = "", tiny: bool | None = None) -> str:
    """Return the number as every table, page and sentence shows it: to three digits or so.

    >>> number(0.95314), number(0.0000123), number(1234567.8), number(-0.00021, "+", tiny=False)
    ('0.953', '1.2e−05', '1.23e+06', '−0.000')
    """
    if math.isnan(value):
        return "–"
    if 0 < abs(value) < 0.001 if tiny is None else tiny:
        text = format(value, f"{sign}.2g")
    else:
        text = format(value, f"{sign}.3f" if abs(value) < 100 else f"{sign}.3g")
    return text.replace("-", "−")


def difference(found: Estimate) -> str:
    """Return the mean difference, to as many decimals as its interval."""
    return number(found.value, "+", _tiny(found))


def interval(found: Estimate) -> str:
    """Return the interval as "low to high"; nothing if there is none.

    >>> interval(Estimate(-0.0001, -0.02, 0.0198, p=0.9, trials=6, ratio=0))
    '−0.020 to +0.020'
    """
    if math.isnan(found.low):
        return ""
    return " to ".join(number(end, "+", _tiny(found)) for end in (found.low, found.high))


def _tiny(found: Estimate) -> bool:
    """Return True if three decimals would hide an interval without zero."""
    return found.sign != 0 and max(abs(found.low), abs(found.high)) < 0.001


def count(how_many: int, what: str) -> str:
    """Return the number with its noun.

    >>> count(1, "trial"), count(3, "trial")
    ('1 trial', '3 trials')
    """
    return f"{how_many} {what}{'' if how_many == 1 else 's'}"


def capital(text: str) -> str:
    """Return the text with its first letter as a capital."""
    return text[:1].upper() + text[1:]


def verdict(run: Run, row: Comparison) -> str:
    """Return the verdict: better, worse, undecided, or too few trials."""
    found = row.difference
    if found is None or found.trials < FEWEST:
        return "too few trials"
    higher = run.metric(row.metric).higher_is_better
    if found.sign:
        if higher is None:
            return "higher" if found.sign > 0 else "lower"
        return "better" if (found.sign > 0) == higher else "worse"
    # In every trial, and yet the corrected interval contains zero: more than "undecided" is known.
    if higher is not None and row.better in (0, found.trials) and found.value:
        return f"{'better' if row.better else 'worse'} here, undecided for new images"
    return "undecided"


def headline(run: Run) -> str:
    """Return what was found, in a sentence or two, by the first metric."""
    metric = run.metrics[0]
    rows, base = best_first(run, metric.name), run.model_title(BASE)
    text = ""
    if metric.higher_is_better is not None:
        best, most = rows[0], "highest" if metric.higher_is_better else "lowest"
        text = f"{capital(run.model_title(best.model))} has the {most} "
        text += f"{run.score_title(metric.name)}: {number(best.score[1])} in the median"
        if (of := best.difference) is not None:
            ends = f"95 % interval {interval(of)}; " if interval(of) else ""
            text += f", {difference(of)} from {base} in the mean"
            text += f" ({ends}better in {best.better} of {count(of.trials, 'trial')})"
        text += ". "
    if not compares(run):
        return f"{text}There is no base to compare with."
    trials = max((row.difference.trials for row in rows if row.difference), default=0)
    if trials < FEWEST:
        return f"{text}Fewer than {FEWEST} trials decide nothing; this run has {trials}."
    words = {row.model: verdict(run, row) for row in rows if row.model != BASE}
    each = []
    for word in dict.fromkeys(words.values()):
        names = [run.model_title(model) for model, own in words.items() if own == word]
        named = f" ({'; '.join(names)})" if word in ("better", "worse") else ""
        each.append(f"{len(names)} {word}{named}")
    return f"{text}Of {count(len(words), 'network')} beside {base}: {', '.join(each)}."


def notes(run: Run) -> list[str]:
    """Return the notes below the tables: what scores and intervals mean, and what is left out."""
    text = f"Medians and 25–75 % ranges over {trials_of(run)}."
    if run.held_out is not None:
        text += " Each network is the one that its trial saved, selected on its validation images."
    elif (LOSS, run.models[0]) in run.values:
        text += f" {TESTED if run.part == 'test' else SELECTED}"
    result = [text]
    if run.part == "test" and run.config.split == "image":
        result.append(BY_IMAGE)
    if compares(run):
        ratio = float(run.ratios[run.part].mean()) if run.held_out is None else 0
        once = run.held_out is not None or run.one_split
        result.append(FIXED if once else REDRAWN.format(ratio=ratio, part=run.part))
        if any(row.difference and row.difference.trials < FEWEST for row in run.comparisons):
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


def trials_of(run: Run) -> str:
    """Return the number of trials, and of those planned if there are fewer so far."""
    counts, planned = {row.trials for row in run.comparisons}, run.config.trials
    if counts == {planned}:
        return count(planned, "trial")
    return f"{' to '.join(map(str, sorted({min(counts), max(counts)})))} of {planned} trials"


# Tables, the same in all formats


@dataclass(frozen=True)
class Table:
    """A table in words: the first ``texts`` columns are names, the others numbers."""

    name: str
    title: str
    header: list[str]
    rows: list[list[str]]
    texts: int = 1


def tables(run: Run) -> list[Table]:
    """Return a table for each metric, and one of the metrics by class."""
    found = [_of_metric(run, metric.name) for metric in run.metrics]
    return found + ([_of_classes(run)] if run.by_class else [])


def of_metric(run: Run, metric: str) -> list[Comparison]:
    """Return the rows of one metric."""
    return [row for row in run.comparisons if row.metric == metric]


def best_first(run: Run, metric: str) -> list[Comparison]:
    """Return the rows of one metric, the best score first."""
    rows = of_metric(run, metric)
    if (higher := run.metric(metric).higher_is_better) is not None:
        # NaN sorts last, whether higher or lower is better.
        rows.sort(key=lambda row: (math.isnan(row.score[1]), row.score[1] * (-1 if higher else 1)))
    return rows


def _of_metric(run: Run, metric: str) -> Table:
    """Return a row for each model: the best first, unless the user has given their order."""
    paired, once = compares(run), run.held_out is not None
    header = ["model", "median" if once else "best epoch"]
    if paired:
        header += [f"minus {run.model_title(BASE)}", "95 % interval", "better", "verdict"]
    header += [] if once else [f"last epoch ({run.comparisons[0].last_epoch})"]
    rows = []
    for row in of_metric(run, metric) if run.in_order else best_first(run, metric):
        cells = [run.model_title(row.model), _with_range(row.score, row.trials)]
        if (of := row.difference) is not None:
            better = "–" if row.better is None else f"{row.better}/{of.trials}"
            cells += [difference(of), interval(of), better, verdict(run, row)]
        elif paired:
            cells += 4 * [""]
        rows.append(cells + ([] if once else [_with_range(row.last, row.trials)]))
    return Table(metric, run.score_title(metric), header, rows)


def _of_classes(run: Run) -> Table:
    """Return the table of medians by class, a row per model and class."""
    scores = {(row.model, row.metric): number(row.score[1]) for row in run.comparisons}
    names, labels = (
        list(dict.fromkeys(name.split(BY_CLASS, 1)[k] for name in run.by_class)) for k in (0, 1)
    )
    titles = [run.metric_title(name).replace("validation ", "").split(",")[0] for name in names]
    rows = [
        [run.model_title(model), label]
        + [scores.get((model, f"{name}{BY_CLASS}{label}"), "–") for name in names]
        for model in run.models
        for label in labels
    ]
    title = "medians by class" + (", test part" if run.part == "test" else "")
    return Table("classes", title, ["model", "class", *titles], rows, texts=2)


def _with_range(values: Quartiles, trials: int) -> str:
    """Return the median with the quartiles; one trial has no spread."""
    tiny = 0 < abs(values[2]) < 0.001
    low, median, high = (number(value, tiny=tiny) for value in values)
    spread = trials > 1 and not math.isnan(values[0])
    return median + (f" [{low}–{high}]" if spread else "")


# Formats


def as_markdown(run: Run) -> str:
    """Return the tables and notes in Markdown."""
    lines = [f"# {run.title}", "", headline(run), ""]
    for one in tables(run):
        lines += [f"## {capital(one.title)}", "", markdown(one.header, one.rows, one.texts)]
    return "\n".join([*lines, *(f"- {note}" for note in notes(run))]) + "\n"


def markdown(names: Sequence[str], rows: Sequence[Sequence[str]], texts: int = 1) -> str:
    """Return a table in Markdown, whose first columns are texts and the others numbers."""
    rule = [*["---"] * texts, *["---:"] * (len(names) - texts)]
    escaped = ([text.replace("|", "\\|") for text in line] for line in (names, rule, *rows))
    return "".join(f"| {' | '.join(line)} |\n" for line in escaped)


def as_csv(run: Run) -> str:
    """Return a line for each metric and model, and class, with all digits; empty if unknown."""
    sizes = {table.form: table.total for table in run.layers[0]}
    found: list[dict[str, Any]] = []
    for row in run.comparisons:
        of, (metric, _, label) = row.difference, row.metric.partition(BY_CLASS)
        found.append(
            {"metric": metric, "class": label or None, "model": row.model}
            | {"title": run.model_title(row.model), "parameters": sizes.get(row.model)}
            | {"part": run.part, "trials": row.trials}
            | dict(zip(("score_25", "score_median", "score_75"), row.score, strict=True))
            | {"pairs": of.trials if of else 0, "better": row.better}
            | {"difference": of.value if of else None}
            | {name: getattr(of, name, None) for name in ("low", "high", "p", "ratio")}
            | {"last_epoch": row.last_epoch}
            | dict(zip(("last_25", "last_median", "last_75"), row.last, strict=True))
        )
    # A spreadsheet takes a text that begins like this for a formula, and computes it.
    formula = pl.col(pl.String).str.contains(r"^[=+\-@\t\r]")
    frame = pl.DataFrame(found, infer_schema_length=None).with_columns(
        pl.when(formula).then("'" + pl.col(pl.String)).otherwise(pl.col(pl.String)).name.keep(),
        pl.col(pl.Float64).fill_nan(None),
    )
    return frame.write_csv()


def as_tex(run: Run) -> str:
    """Return the tables in LaTeX, in the style of booktabs."""
    parts = ["% \\usepackage{booktabs}"]
    for one in tables(run):
        columns = "l" * one.texts + "r" * (len(one.header) - one.texts)
        header, *rows = (" & ".join(map(tex, line)) + " \\\\" for line in (one.header, *one.rows))
        label = "".join(c if c.isalnum() else "-" for c in one.name)
        caption = tex(f"{run.title}: {one.title}. {' '.join(notes(run))}")
        parts += [
            rf"\begin{{table}}\centering\caption{{{caption}}}\label{{tab:{label}}}",
            rf"\begin{{tabular}}{{{columns}}}",
            *(r"\toprule", header, r"\midrule", *rows, r"\bottomrule"),
            r"\end{tabular}\end{table}",
        ]
    return "\n".join(parts) + "\n"


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


def write(run: Run, folder: Path) -> list[Path]:
    """Write the tables in all formats; returns the files."""
    folder.mkdir(parents=True, exist_ok=True)
    texts = {"table.md": as_markdown(run), "table.csv": as_csv(run), "table.tex": as_tex(run)}
    for name, text in texts.items():
        (folder / name).write_bytes(text.encode())
    return [folder / name for name in texts]
