"""The paper's figures of a run: each metric by epoch, as the median over the trials.

Shaded is the range from the 25 % to the 75 % quantile, as in the paper's section 3.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Collection, Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from .curves import Curves, quartiles

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


class Style(NamedTuple):
    colour: str
    marker: str
    dash: str | tuple[float, tuple[float, ...]]


# Okabe and Ito's colours without yellow, which is too light for a line on white, and with a gray;
# markers and dashes for those who see none.
STYLES = (
    Style("#0072B2", "o", "-"),
    Style("#D55E00", "s", "-"),
    Style("#009E73", "^", "--"),
    Style("#CC79A7", "D", "-."),
    Style("#E69F00", "v", (0, (5, 1))),
    Style("#56B4E9", "P", ":"),
    Style("#000000", "X", (0, (3, 1, 1, 1))),
    Style("#777777", "*", (0, (1, 1))),
)
# A model looks the same in every figure, whatever stands beside it.
PREFERRED = {
    "base": 0,
    "tpl": 1,
    "tpl1": 1,
    "tpl2": 2,
    "tpl-aggressive": 2,
    "tpl1-block": 3,
    "tpl1-dct": 4,
    "hope": 5,
    "tcl": 6,
    "mpca": 7,
}
MOST_MARKERS = 30  # on a line; more run into each other


def draw(curves: Curves, folder: Path) -> list[Path]:
    """Write a figure of each metric and one of all, as PNG and SVG; returns the files."""
    files: list[Path] = []
    for metric in curves.metrics:
        files += save(figure(curves, [metric]), folder / metric)
    return files + save(figure(curves, curves.metrics), folder / "overview")


def figure(curves: Curves, metrics: Sequence[str]) -> Figure:
    """The metrics side by side, with one legend below."""
    from matplotlib.figure import Figure

    alone = len(metrics) == 1
    text = 10 if alone else 13  # the wide one is shown smaller
    width, height = (6.4, 4.4) if alone else (4.1 * len(metrics), 4.3)
    columns = _legend_columns(labels(curves).values(), width, text)
    # Room for the legend is added, so that the axes have theirs with any number of models.
    height += 0.025 * text * math.ceil(len(curves.models) / columns)
    result = Figure(figsize=(width, height), layout="constrained")
    axes: Sequence[Axes] = result.subplots(1, len(metrics), squeeze=False)[0]
    for panel, metric in zip(axes, metrics, strict=True):
        _plot(panel, curves, metric)
        panel.set_xlabel("epoch", fontsize=text)
        if alone:
            panel.set_ylabel(curves.metric_title(metric), fontsize=text)
        else:
            panel.set_title(curves.metric_title(metric), fontsize=text)
        panel.tick_params(labelsize=text - 1)
    of = f": {curves.metric_title(metrics[0])}" if alone else ""
    result.suptitle(f"{curves.title}{of}\n{caption(curves, metrics)}", fontsize=text)
    result.legend(
        *axes[0].get_legend_handles_labels(),
        loc="outside lower center",
        ncols=columns,
        frameon=False,
        fontsize=text,
        handlelength=3.5,  # or the dashes could not be told apart
    )
    return result


def caption(curves: Curves, metrics: Iterable[str]) -> str:
    """What is drawn, and of how many trials; on a second line, what is not drawn."""
    counts = [n for model in curves.models for n in curves.measured[model].sum(axis=0) if n]
    low, high, planned = min(counts), max(counts), curves.config.trials
    number = str(low) if low == high else f"{low} to {high}"
    lines = [
        "one trial, so no band" if high == 1 else f"median and 25–75 % band of {number} trials"
    ]
    if low < planned:
        lines[0] += f" ({planned} planned)"
    if left_out := sum(curves.not_finite(metric) for metric in metrics):
        lines.append(f"{left_out} {'value' if left_out == 1 else 'values'} not finite, left out")
    if len(curves.codes) > 1:
        lines.append(f"trained by {len(curves.codes)} versions of the code")
    return "\n".join(lines)


def labels(curves: Curves) -> dict[str, str]:
    """The models' titles, with their numbers of trials where these differ."""
    counts = {model: curves.count(model) for model in curves.models}
    if len(set(counts.values())) == 1:
        return {model: curves.model_title(model) for model in curves.models}
    return {
        model: f"{curves.model_title(model)} ({count} {'trial' if count == 1 else 'trials'})"
        for model, count in counts.items()
    }


def _plot(panel: Axes, curves: Curves, metric: str) -> None:
    from matplotlib.ticker import MaxNLocator

    titles = labels(curves)
    every = -(-len(curves.epochs) // MOST_MARKERS)
    for model, style in styles(curves.models).items():
        low, median, high = quartiles(curves.values[metric, model])
        panel.plot(
            curves.epochs,
            median,
            color=style.colour,
            marker=style.marker,
            linestyle=style.dash,
            linewidth=1.6,
            markersize=5,
            markeredgewidth=0,
            markevery=every,
            label=titles[model],
        )
        if curves.count(model) > 1:
            panel.fill_between(
                curves.epochs, low, high, color=style.colour, alpha=0.15, linewidth=0
            )
    first, last = int(curves.epochs[0]), int(curves.epochs[-1])
    margin = min(0.5 + 0.01 * (last - first), 0.95)  # there is no epoch 0 to be shown
    panel.set_xlim(first - margin, last + margin)
    panel.xaxis.set_major_locator(MaxNLocator(integer=True, min_n_ticks=1, steps=[1, 2, 5, 10]))
    panel.grid(alpha=0.3)
    panel.set_axisbelow(True)
    panel.spines[["top", "right"]].set_visible(False)


def styles(models: Sequence[str]) -> dict[str, Style]:
    """A style for each model: its preferred one, or else the first that is free.

    >>> [style.marker for style in styles(["base", "tpl1", "mine"]).values()]
    ['o', 's', '^']
    """
    taken: dict[str, int] = {}
    for model in models:
        if model in PREFERRED and PREFERRED[model] not in taken.values():
            taken[model] = PREFERRED[model]
    free = (k for k in itertools.count() if k not in taken.values())
    for model in models:
        if model not in taken:
            taken[model] = next(free)
    return {model: _style(taken[model]) for model in models}


def _style(k: int) -> Style:
    """The k-th style; after the last of them, the same colours with other markers and dashes."""
    again, k = divmod(k, len(STYLES))
    other = STYLES[(k + 3 * again) % len(STYLES)]
    return Style(STYLES[k].colour, other.marker, other.dash)


def _legend_columns(titles: Collection[str], width: float, text: float) -> int:
    """How many fit side by side: a letter is some 0.55 of the text's size, a line's sample 5."""
    entry = (0.55 * max(map(len, titles)) + 5) * text / 72
    return max(1, min(len(titles), int(width / entry)))


def save(drawn: Figure, path: Path) -> list[Path]:
    """Write it as PNG and as SVG, with the same bytes for the same figure every time."""
    import matplotlib
    from matplotlib.backends.backend_agg import FigureCanvasAgg

    FigureCanvasAgg(drawn)
    path.parent.mkdir(parents=True, exist_ok=True)
    files = [path.with_suffix(".png"), path.with_suffix(".svg")]
    with matplotlib.rc_context({"svg.fonttype": "none", "svg.hashsalt": "tensorprojection"}):
        drawn.savefig(files[0], dpi=150, metadata={"Software": None})
        drawn.savefig(files[1], metadata={"Date": None, "Creator": None})
    return files
