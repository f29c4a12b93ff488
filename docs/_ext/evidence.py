"""The tables and the charts of results.md and settings.md, made from docs/results/.

    python docs/_ext/evidence.py    # writes them anew; a test holds the pages to them

Each of docs/results/ is the folder of a run, with its settings and its results: ``tpl report``
reads it, and scores, differences, intervals and verdicts are those of its page. On a page a table
stands between ``<!-- table: NAME -->`` and ``<!-- end -->``. More networks or trials of a run are
in its tables and charts when they are made anew; a planned run without rows has none.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from functools import cache, partial
from itertools import product
from pathlib import Path

import numpy as np

from tensorprojection.studies.report import charts
from tensorprojection.studies.report.run import Run, read_run
from tensorprojection.studies.report.statistics import (
    BASE,
    Comparison,
    Estimate,
    estimate,
    finite,
    paired,
)
from tensorprojection.studies.report.tables import difference as mean_difference
from tensorprojection.studies.report.tables import (
    interval,
    markdown,
    notes,
    number,
    of_metric,
    verdict,
)
from tensorprojection.studies.report.verdicts import RULE, verdicts

DOCS = Path(__file__).parents[1]
PAGES = (DOCS / "results.md", DOCS / "settings.md")
PLACE = re.compile(r"(?<=<!-- table: )(?P<name>[\w-]+)( -->\n)(?P<table>.*?)(?=<!-- end -->)", re.S)


@cache
def run_of(name: str) -> Run:
    return read_run(DOCS / "results" / name)


def found(networks: Mapping[str, Sequence[str]]) -> str:
    """Some networks of some runs beside their base, by the loss: as on the runs' pages."""
    head = ["network", "parameters", "loss", "difference", "95 % interval", "better", "verdict"]
    lines = []
    for name, models in networks.items():
        run = run_of(name)
        sizes = {table.form: table.total for table in run.layers[0]}
        rows: dict[str, Comparison] = {row.model: row for row in of_metric(run, "loss")}
        title = f"{run.title}, {run.score_title('loss')}, in place of {run.model_title(BASE)}"
        lines.append([f"**{title}**", *6 * [""]])
        for model in models:
            of = rows[model].difference
            assert of is not None
            cells = [run.model_title(model), f"{sizes[model]:,}", number(rows[model].score[1])]
            cells += [mean_difference(of), interval(of), f"{rows[model].better}/{of.trials}"]
            lines.append([*cells, verdict(run, rows[model])])
    return markdown(head, lines)


def forest(*names: str) -> charts.Spec:
    """The differences of the loss from the base in several runs, one below the other."""
    parts = []
    for run in map(run_of, names):
        title = f"{run.title}: {run.score_title('loss')}, {run.config.trials} trials"
        parts.append(charts.forest(run, "loss") | {"title": title, "width": 460})
    room = {"left": 70, "right": 20, "top": 20, "bottom": 20}  # a browser's letters may be wider
    return {"title": charts.FOREST, "vconcat": parts, "padding": room}


def frontier(name: str) -> charts.Spec:
    """The scores of a run's networks by their numbers of parameters."""
    run = run_of(name)
    panels = [charts.frontier(run, metric, least=1.0) for metric in MEASURES[run.name]]
    title = {"text": f"{run.title}, {run.config.trials} trials", "subtitle": charts.FRONTIER}
    return {"title": title, "hconcat": [panel for panel in panels if panel], "padding": 20}


def scores(
    name: str, metrics: Sequence[str], untrained: Sequence[str] = (), timed: bool = True
) -> str:
    """Every network at the best epoch of each trial, with its price and its differences."""
    run = run_of(name)
    sizes = {table.form: table.total for table in run.layers[0]}
    head = ["at the best epoch", "parameters", *["seconds per epoch"] * timed]
    for metric in metrics:
        head += [run.score_title(metric), f"minus {run.model_title(BASE)}"]
    lines = []
    for model in run.models:
        cells = [run.model_title(model)]
        cells += [
            "of the data" if model in untrained else f"{sizes[model]:,}",
            *([_seconds(run, model)] if timed else []),
        ]
        for metric in metrics:
            cells += [number(float(np.nanmedian(run.scores(metric, model))))]
            cells += ["" if model == BASE else difference(run, metric, model)]
        lines.append(cells)
    return markdown(head, lines)


def by_epoch(name: str, metric: str, models: Sequence[str], epochs: Sequence[int | range]) -> str:
    """One metric's differences from the base at some epochs; of a range, of its mean."""
    run = run_of(name)
    head = [f"{run.metric_title(metric)}, minus {run.model_title(BASE)}"]
    head += [
        f"epoch {at}" if isinstance(at, int) else f"mean of epochs {at[0]} to {at[-1]}"
        for at in epochs
    ]
    lines = [
        [run.model_title(model), *(difference(run, metric, model, BASE, at) for at in epochs)]
        for model in models
    ]
    return markdown(head, lines)


def against(name: str, reference: str, metrics: Sequence[str], models: Sequence[str]) -> str:
    """Some networks' differences from another than the base, at the best epoch."""
    run = run_of(name)
    head = [f"at the best epoch, minus {run.model_title(reference)}"]
    head += [run.score_title(metric) for metric in metrics]
    lines = [
        [run.model_title(model), *(difference(run, m, model, reference) for m in metrics)]
        for model in models
    ]
    return markdown(head, lines)


def sizes(name: str) -> str:
    """The networks of a run by size, on its test part."""
    return scores(name, MEASURES[run_of(name).name], timed=False)


def rivals(*names: str) -> str:
    """Each projection to a size beside every other network to that size, at the best epoch."""
    lines = []
    for run in map(run_of, names):
        for model, rival in product(run.models, run.models):
            (kind, _, size), (other, _, same) = model.partition("-"), rival.partition("-")
            if kind == "tpl" and other in RIVALS and size == same:
                cells = [run.title, run.model_title(model), run.model_title(rival)]
                metrics = MEASURES[run.name]
                lines.append([*cells, *(difference(run, m, model, rival) for m in metrics)])
    return markdown(["run", "network", "minus", "test loss", "test accuracy"], lines, texts=3)


def primary(comparisons: Sequence[tuple[str, str, str, str]]) -> str:
    """Primary comparisons, as (run, metric, model, other), with p-values corrected by Holm."""
    lines, ps = [], []
    for name, metric, model, other in comparisons:
        run = run_of(name)
        of, better = paired(run, metric, model, other)
        assert of is not None
        ps.append(of.p)
        cells = [f"{run.title}: {run.score_title(metric)}", run.model_title(model)]
        cells += [run.model_title(other), mean_difference(of), interval(of)]
        lines.append([*cells, f"{better}/{of.trials}", number(of.p)])
    lines = [[*line, number(p)] for line, p in zip(lines, holm(ps), strict=True)]
    head = ["outcome", "network", "minus", "difference", "95 % interval", "better", "p"]
    return markdown([*head, "p, Holm"], lines, texts=3)


def holm(ps: Sequence[float]) -> list[float]:
    """Return the p-values of several comparisons, corrected by Holm's step-down method.

    >>> holm([0.01, 0.04, 0.03])
    [0.03, 0.06, 0.06]
    """
    found, before = list(ps), 0.0
    for k, at in enumerate(sorted(range(len(ps)), key=lambda at: ps[at])):
        found[at] = before = max(before, min(1.0, (len(ps) - k) * ps[at]))
    return found


def of_inits(name: str, metrics: Sequence[str], inits: Mapping[str, tuple[str, str]]) -> str:
    """Medians at the best and at the last epoch, by what an init is called and what it is."""
    run = run_of(name)
    head = ["init", "what it is"]
    for metric in metrics:
        head += [f"{run.score_title(metric)}, best epoch", f"epoch {run.epochs[-1]}"]
    lines = []
    for model, words in inits.items():
        cells = [*words]
        for metric in metrics:
            last = run.values[metric, model][:, -1]
            cells += [number(float(np.nanmedian(v))) for v in (run.scores(metric, model), last)]
        lines.append(cells)
    return markdown(head, lines, texts=2)


def claims(*names: str) -> str:
    """The paper's claims that the runs can test, with the verdicts."""
    lines = []
    for name in names:
        run = run_of(name)
        assert run.study is not None
        judged = verdicts(run)
        lines += [[run.title, v.claim.text, v.evidence, v.word] for v in judged if v.tested]
        if absent := [v for v in judged if not v.tested]:
            reasons = " ".join(dict.fromkeys(v.evidence for v in absent))
            lines.append([run.title, f"{len(absent)} more claims", reasons, "not tested"])
    return markdown(["run", "claim", "found", "verdict"], lines, texts=4)


def difference(
    run: Run, metric: str, model: str, reference: str = BASE, at: int | range | None = None
) -> str:
    """The mean difference, its 95 % interval, and in how many trials it is better.

    Of the scores, or at an epoch on the validation images, or of each trial's mean over a range.
    Bold if the interval does not contain zero.
    """
    of: Estimate | None
    if at is None:
        of, better = paired(run, metric, model, reference)
    else:
        chosen = np.isin(run.epochs, [at] if isinstance(at, int) else at)
        values = (run.values[metric, model] - run.values[metric, reference])[:, chosen].mean(1)
        sign = 1 if run.metric(metric).higher_is_better else -1
        of, better = estimate(run, values), int((sign * values > 0).sum())
    assert of is not None
    bold = "**" if of.sign else ""
    shown = f"{mean_difference(of)} [{interval(of).replace(' to ', ', ')}]"
    return f"{bold}{shown}{bold} ({better}/{of.trials})"


def _seconds(run: Run, model: str) -> str:
    assert run.seconds is not None
    median = np.median(finite(run.seconds[model]))
    return f"{median:.2g}" if median < 1 else f"{median:.1f}"


def there(*names: str) -> tuple[str, ...]:
    """The runs whose rows are in docs/results."""
    return tuple(name for name in names if (DOCS / "results" / name).is_dir())


RIVALS = ("max", "avg", "conv", "tcl")
# The measures of the charts and tables of networks by size.
MEASURES = {
    "oct": ("loss", "accuracy"),
    "chest": ("loss", "accuracy"),
    "kvasir": ("loss", "miou"),
}
SIZES = there("oct-sizes", "oct-sizes-quarter", "chest-sizes", "kvasir-sizes")
NETWORKS = {
    "oct-sizes": ("tpl-16x3x3", "tpl-32x3x3", "max-16x3x3", "avg-16x3x3", "avg", "gap"),
    "chest-sizes": ("tpl-16", "conv-16"),
    "kvasir-sizes": ("tpl-blur", "tpl-aggressive"),
    "oct": ("tpl1", "tpl2", "tpl1-block3", "tpl1-blur", "avg"),
    "chest-quarter": ("tpl", "tcl"),
    "kvasir": ("tpl", "tpl-blur", "tpl-aggressive"),
}
FOUND = {name: NETWORKS[name] for name in there(*NETWORKS)}
CLAIMED = there("oct", "chest-sizes", "chest-quarter", "kvasir", "kvasir-sizes")
OCT = ("tpl1", "tpl2", "tpl1-block", "tpl1-block3", "tpl1-blur", "tpl1-dct", "avg")
OCT_LOCAL = ("tpl1-block", "tpl1-block3", "tpl1-blur")
CHEST = ("tpl", "tpl-mpca", "tcl")
KVASIR = ("tpl", "tpl-dct", "tpl-blur", "tpl-aggressive")
FIRST_AND_QUARTERS = (1, range(1, 5), range(5, 9), range(9, 13), range(13, 17))
INITS = {
    "base": ("(MaxPooling)", ""),
    "avg": ("(AveragePooling)", ""),
    "tpl1": ('`"normal"`', "noise of standard deviation 0.05, the paper's"),
    "tpl1-block": ('`"block"`', "average pooling, up to a factor"),
    "tpl1-block3": ("… with `init_scale=3`", ""),
    "tpl1-blur": ('`"blur"`', "anti-aliased pooling, made orthonormal"),
    "tpl1-dct": ('`"dct"`', "the lowest cosine frequencies, spectral pooling"),
}

PRIMARY = [  # as in evidence_plan.md
    ("oct-sizes", "loss", "tpl-16x3x3", "base"),
    ("oct-sizes", "loss", "tpl-16x3x3", "max-16x3x3"),
    ("chest-sizes", "loss", "tpl-16", "base"),
    ("chest-sizes", "loss", "tpl-16", "conv-16"),
]

TABLES: dict[str, Callable[[], str]] = {
    "found": lambda: found(FOUND),
    **{name: partial(sizes, name) for name in SIZES},
    "rivals": lambda: rivals(*SIZES),
    "primary": lambda: primary(PRIMARY),
    "notes": lambda: "".join(f"- {note}\n" for note in notes(run_of("oct"))),
    "oct": lambda: scores("oct", ("loss", "accuracy"), untrained=("mpca",)),
    "oct-loss": lambda: by_epoch("oct", "loss", OCT, (2, 4, 8, 12)),
    "oct-accuracy": lambda: by_epoch("oct", "accuracy", OCT, (2, 4, 8, 12)),
    "oct-average": lambda: against("oct", "avg", ("loss", "accuracy"), ("base", *OCT_LOCAL)),
    "oct-local": lambda: against("oct", "base", ("loss", "accuracy"), OCT_LOCAL),
    "oct-inits": lambda: of_inits("oct", ("loss", "accuracy"), INITS),
    "chest-quarter": lambda: scores("chest-quarter", ("loss", "accuracy")),
    "chest-quarter-loss": lambda: by_epoch("chest-quarter", "loss", CHEST, (1, 5, 10, 20)),
    "chest-quarter-tcl": lambda: against("chest-quarter", "tcl", ("loss", "accuracy"), ("tpl",)),
    "kvasir": lambda: scores("kvasir", ("loss", "iou")),
    "kvasir-iou": lambda: by_epoch("kvasir", "iou", KVASIR, FIRST_AND_QUARTERS),
    "rule": lambda: "\n\n".join(RULE) + "\n\n",
    "claims": lambda: claims(*CLAIMED),
}
# Drawn as docs/images/NAME.svg.
CHARTS: dict[str, Callable[[], charts.Spec]] = {
    "found": lambda: forest(*FOUND),
    **{name: partial(frontier, name) for name in SIZES if not name.endswith("quarter")},
}


def with_tables(text: str) -> str:
    """The page's text with every table made anew."""
    return PLACE.sub(lambda m: f"{m['name']}{m[2]}{TABLES[m['name']]()}", text)


if __name__ == "__main__":
    for page in PAGES:
        page.write_text(with_tables(page.read_text("utf-8")), "utf-8")
    for name, chart in CHARTS.items():
        charts.draw(chart(), DOCS / "images" / name)
        for kind in (".pdf", ".png"):
            (DOCS / "images" / f"{name}{kind}").unlink()
