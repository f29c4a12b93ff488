"""The tables of results.md and settings.md, made from the results that stand in docs/results/.

    python docs/_ext/evidence.py    # writes them anew; a test holds the pages to them

Each of docs/results/ is the folder of a run, with its settings and its results: ``tpl report``
reads it. On a page a table stands between ``<!-- table: NAME -->`` and ``<!-- end -->``.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from pathlib import Path

import numpy as np

from tensorprojection.studies.networks.layer_rows import tables_for
from tensorprojection.studies.report.run import Run, read_run
from tensorprojection.studies.report.statistics import FEWEST, bootstrap, finite
from tensorprojection.studies.report.verdicts import RULE, verdicts

DOCS = Path(__file__).parents[1]
PAGES = (DOCS / "results.md", DOCS / "settings.md")
PLACE = re.compile(r"(?<=<!-- table: )(?P<name>[\w-]+)( -->\n)(?P<table>.*?)(?=<!-- end -->)", re.S)


@cache
def run_of(name: str) -> Run:
    return read_run(DOCS / "results" / name)


def at_the_end(
    name: str, reference: str, metrics: Sequence[str], untrained: Sequence[str] = ()
) -> str:
    """Every network at the last epoch, with its price and its differences from the reference."""
    run = run_of(name)
    sizes = {t.form: t.total for t in tables_for(run.study, run.config)}
    minus = f"minus {run.model_title(reference)}"
    head = ["at epoch " + str(run.epochs[-1]), "parameters", "seconds per epoch"]
    head += ["training loss"]
    for metric in metrics:
        head += [run.metric_title(metric), minus]
    lines = []
    for model in run.models:
        cells = [run.model_title(model)]
        cells += ["of the data" if model in untrained else f"{sizes[model]:,}"]
        cells += [_seconds(run, model), _median(run, "train_loss", model)]
        for metric in metrics:
            cells += [_median(run, metric, model)]
            cells += ["" if model == reference else difference(run, metric, model, reference)]
        lines.append(cells)
    return _table(head, lines)


def by_epoch(
    name: str, reference: str, metric: str, models: Sequence[str], epochs: Sequence[int | range]
) -> str:
    """One metric's differences from the reference at some epochs; of a range, of its mean."""
    run = run_of(name)
    title = run.model_title
    head = [f"{run.metric_title(metric)}, minus {title(reference)}"]
    head += [
        f"epoch {at}" if isinstance(at, int) else f"mean of epochs {at[0]} to {at[-1]}"
        for at in epochs
    ]
    lines = [
        [title(model), *(difference(run, metric, model, reference, at) for at in epochs)]
        for model in models
    ]
    return _table(head, lines)


def against(name: str, reference: str, metrics: Sequence[str], models: Sequence[str]) -> str:
    """Some networks' differences from another than the base, at the last epoch."""
    run = run_of(name)
    title = run.model_title
    head = [f"at epoch {run.epochs[-1]}, minus {title(reference)}"]
    head += [run.metric_title(metric) for metric in metrics]
    lines = [
        [title(model), *(difference(run, metric, model, reference) for metric in metrics)]
        for model in models
    ]
    return _table(head, lines)


def of_starts(name: str, metrics: Sequence[str], starts: Mapping[str, tuple[str, str]]) -> str:
    """Medians at the last epoch, by what a start is called in the code and what it is."""
    run = run_of(name)
    head = ["start", "what it is", *(run.metric_title(metric) for metric in metrics)]
    lines = [
        [*words, *(_median(run, metric, model) for metric in metrics)]
        for model, words in starts.items()
    ]
    return _table(head, lines, texts=2)


def claims(*names: str) -> str:
    """The paper's claims that the runs can test, with the verdicts."""
    lines = []
    for name in names:
        run = run_of(name)
        assert run.study is not None
        found = verdicts(run)
        lines += [[run.study.title, v.claim.text, v.evidence, v.word] for v in found if v.tested]
        if absent := [v for v in found if not v.tested]:
            reasons = " ".join(dict.fromkeys(v.evidence for v in absent))
            lines.append([run.study.title, f"{len(absent)} more claims", reasons, "not tested"])
    return _table(["study", "claim", "found", "verdict"], lines, texts=4)


def difference(
    run: Run, metric: str, model: str, reference: str, at: int | range | None = None
) -> str:
    """The median of the differences, its 95 % interval, and in how many trials it is better.

    At the last epoch, or at the one that is given, or of each trial's mean over a range of them.
    Bold where the interval does not hold zero; of a few trials there is none.
    """
    if at is None:
        at = int(run.epochs[-1])
    wanted = [at] if isinstance(at, int) else at
    chosen = np.isin(run.epochs, wanted)
    assert chosen.sum() == len(wanted), f"the run has not all of the epochs {at}"
    values = (run.values[metric, model] - run.values[metric, reference])[:, chosen].mean(1)
    values = finite(values)
    sign = 1 if run.metric(metric).higher_is_better else -1
    better = f"({int((sign * values > 0).sum())}/{len(values)})"
    if len(values) < FEWEST:
        return f"{_signed(float(np.median(values)))} {better}"
    low, high = bootstrap(values)
    bold = "**" if low * high > 0 else ""
    shown = f"{_signed(float(np.median(values)))} [{_signed(low)}, {_signed(high)}]"
    return f"{bold}{shown}{bold} {better}"


def _seconds(run: Run, model: str) -> str:
    assert run.seconds is not None
    median = np.median(finite(run.seconds[model]))
    return f"{median:.2g}" if median < 1 else f"{median:.1f}"


def _median(run: Run, metric: str, model: str) -> str:
    return f"{np.nanmedian(run.values[metric, model][:, -1]):.3f}"


def _signed(value: float) -> str:
    return f"{value:+.3f}".replace("-", "−")


def _table(head: Sequence[str], lines: Sequence[Sequence[str]], texts: int = 1) -> str:
    rule = [*["---"] * texts, *["---:"] * (len(head) - texts)]
    return "".join(f"| {' | '.join(cells)} |\n" for cells in (head, rule, *lines))


OCT_STARTS = ("tpl1", "tpl2", "tpl1-block", "tpl1-blur", "tpl1-dct", "avg")
OCT_LOCAL = ("base", "tpl1-block", "tpl1-block3", "tpl1-blur")
CHEST = ("tpl", "tpl-mpca", "tcl")
KVASIR = ("tpl", "tpl-dct", "tpl-blur", "tpl-aggressive")
FIRST_AND_QUARTERS = (1, range(1, 5), range(5, 9), range(9, 13), range(13, 17))
STARTS = {
    "base": ("(MaxPooling)", ""),
    "avg": ("(AveragePooling)", ""),
    "tpl1": ('`"normal"`', "noise of standard deviation 0.05, the paper's"),
    "tpl1-block": ('`"block"`', "average pooling, up to a factor"),
    "tpl1-block3": ("… with `init_scale=3`", ""),
    "tpl1-blur": ('`"blur"`', "anti-aliased pooling, made orthonormal"),
    "tpl1-dct": ('`"dct"`', "the lowest cosine frequencies, spectral pooling"),
}

TABLES: dict[str, Callable[[], str]] = {
    "oct-end": lambda: at_the_end("oct", "base", ("loss", "accuracy"), untrained=("mpca",)),
    "oct-loss": lambda: by_epoch("oct", "base", "loss", OCT_STARTS, (2, 4, 8, 12)),
    "oct-accuracy": lambda: by_epoch("oct", "base", "accuracy", OCT_STARTS, (2, 4, 8, 12)),
    "oct-average": lambda: against("oct", "avg", ("loss", "accuracy"), OCT_LOCAL),
    "oct-starts": lambda: of_starts("oct", ("loss", "accuracy"), STARTS),
    "chest-quarter-end": lambda: at_the_end("chest-quarter", "base", ("loss", "accuracy")),
    "chest-quarter-loss": lambda: by_epoch("chest-quarter", "base", "loss", CHEST, (1, 5, 10, 20)),
    "rule": lambda: "\n\n".join(RULE) + "\n\n",
    "claims": lambda: claims("oct", "chest-quarter", "kvasir"),
    "kvasir-end": lambda: at_the_end("kvasir", "base", ("dice", "iou")),
    "kvasir-dice": lambda: by_epoch("kvasir", "base", "dice", KVASIR, FIRST_AND_QUARTERS),
}


def with_tables(text: str) -> str:
    """The page's text with every table made anew."""
    return PLACE.sub(lambda m: f"{m['name']}{m[2]}{TABLES[m['name']]()}", text)


if __name__ == "__main__":
    for page in PAGES:
        page.write_text(with_tables(page.read_text("utf-8")), "utf-8")
