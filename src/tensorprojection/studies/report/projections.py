"""What projections learn, as one figure: U of the spatial modes by epoch, and its frequencies.

A line for each layer that is learned. Left, Uᵀ of one mode in one trial, at the start and after
some epochs. Right, for each spatial mode, how much of each frequency lies in the span of U after
every epoch, as the median over the trials: a low-pass is black up to the dashed line, and white
beyond.
"""

from __future__ import annotations

import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from ..observed import Observed
from .curves import Curves, Floats
from .frequencies import passed

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

SHOWN = 4  # epochs at which U itself is shown, beside the start
TEXT = 11


@dataclass(frozen=True)
class LearnedLayer:
    """A layer's U's by mode: trials × epochs × p × q, of which epoch 0 is the start."""

    title: str
    modes: Mapping[int, Floats]

    @property
    def epochs(self) -> int:
        """How many are there after the start."""
        return min(len(Us[0]) for Us in self.modes.values()) - 1


def learned_layers(
    curves: Curves, observed: Mapping[str, Sequence[Observed]]
) -> list[LearnedLayer]:
    """Every layer whose spatial U's were kept by epoch and changed; fixed ones show nothing."""
    found = []
    epochs = [int(epoch) for epoch in curves.epochs]
    for model in curves.models:
        layers: dict[str, dict[int, Floats]] = {}
        trials = observed.get(model, ())
        for name in sorted({name for trial in trials for name in trial.named("by_epoch")}):
            layer, _, mode = name.rpartition("/")
            paths = [U for t in trials if (U := _path(t, name, epochs)) is not None]
            if mode.isdecimal() and int(mode) > 1 and any((U[:1] != U).any() for U in paths):
                layers.setdefault(layer, {})[int(mode)] = _stacked(paths)
        for layer, modes in layers.items():
            title = curves.model_title(model) + (f": {layer}" if len(layers) > 1 else "")
            found.append(LearnedLayer(title, modes))
    return found


def _path(trial: Observed, name: str, epochs: Sequence[int]) -> Floats | None:
    """U at the start and after each of these epochs, as far as the trial has got; None for none."""
    start, later = trial.get(f"start/{name}"), trial.get(f"by_epoch/{name}")
    if start is None or later is None or later.ndim != 3 or later.shape[1:] != start.shape:
        return None
    count = min(len(trial.epochs), len(epochs))
    if not count or len(later) < count or trial.epochs[:count] != list(epochs)[:count]:
        return None
    whole = np.concatenate([start[None], later[:count]])
    if whole.dtype.kind != "f" or not np.isfinite(whole).all():  # begun by an older version
        return None
    found: Floats = whole.astype(np.float64)
    return found


def _stacked(paths: Sequence[Floats]) -> Floats:
    """The trials that have got furthest, of one shape: a study may choose another by its images."""
    longest = max(paths, key=len)
    return np.stack([U for U in paths if U.shape == longest.shape])


def figure(curves: Curves, layers: Sequence[LearnedLayer]) -> Figure:
    """The figure of these layers, which are one or more, as far as all of them have got."""
    from matplotlib.figure import Figure

    modes = sorted({mode for layer in layers for mode in layer.modes})
    epochs = min(layer.epochs for layer in layers)
    rows = chosen_rows(epochs)
    widths = [1.0] * len(rows) + [1.35] * len(modes)
    width = max(1.7 * sum(widths) + 2.2, 9.0)
    result = Figure(figsize=(width, 1.35 * len(layers) + 1.7))
    result.set_layout_engine("constrained", h_pad=0.06, w_pad=0.06)
    grid = result.subplots(len(layers), len(widths), squeeze=False, width_ratios=widths)
    for layer, line in zip(layers, grid, strict=True):
        _draw_U(layer, modes[0], rows, line)
        for mode, panel in zip(modes, line[len(rows) :], strict=True):
            _draw_frequencies(layer, mode, epochs, panel)
        title = "\n".join(textwrap.wrap(layer.title, 20))
        line[0].set_ylabel(title, rotation=0, ha="right", va="center", fontsize=TEXT)
    for panel, row in zip(grid[0], rows, strict=False):
        panel.set_title("Uᵀ at the start" if row == 0 else f"epoch {curves.epochs[row - 1]}")
    for panel, mode in zip(grid[0][len(rows) :], modes, strict=True):
        panel.set_title(f"frequencies, mode {mode}")
    for panel in grid[-1][len(rows) :]:
        panel.set_xlabel("frequency", fontsize=TEXT - 1)
    for panel in grid[0]:
        panel.title.set_fontsize(TEXT)
    result.suptitle(_caption(curves, layers, modes[0], int(width * 12)), fontsize=TEXT)
    return result


def _caption(curves: Curves, layers: Sequence[LearnedLayer], mode: int, columns: int) -> str:
    counts = [len(Us) for layer in layers for Us in layer.modes.values()]
    low, high = min(counts), max(counts)
    number = str(high) if low == high else f"{low} to {high}"
    several = f"median of {number} trials" if high > 1 else "one trial"
    text = (
        f"Left: Uᵀ of mode {mode} in one trial, red positive, blue negative. Right: how much of "
        "each frequency lies in the span of U, from the start (top) to the last epoch, "
        f"{several}: white none, black all; a low-pass is black up to the dashed line."
    )
    return "\n".join([f"{curves.title}: what the projections learn", *textwrap.wrap(text, columns)])


def chosen_rows(last: int) -> list[int]:
    """The start, the first epoch, the last, and some between.

    >>> chosen_rows(12), chosen_rows(1)
    ([0, 1, 3, 6, 12], [0, 1])
    """
    steps = [max(1, last // 2**k) for k in range(SHOWN - 2, -1, -1)]
    return sorted({0, 1, *steps})


def _draw_U(layer: LearnedLayer, mode: int, rows: Sequence[int], panels: Sequence[Axes]) -> None:
    Us = layer.modes[mode][0] if mode in layer.modes else None
    top = 1.0 if Us is None else float(np.abs(Us[rows]).max()) or 1.0
    for row, panel in zip(rows, panels, strict=False):
        panel.set(xticks=[], yticks=[])
        if Us is None:
            panel.set_frame_on(False)
        else:
            panel.imshow(Us[row].T, cmap="RdBu_r", vmin=-top, vmax=top, aspect="auto")


def _draw_frequencies(layer: LearnedLayer, mode: int, epochs: int, panel: Axes) -> None:
    if mode not in layer.modes:
        panel.set_axis_off()
        return
    Us = layer.modes[mode][:, : epochs + 1]
    p, q = Us.shape[-2:]
    shares = np.median([[passed(U) for U in trial] for trial in Us], axis=0)
    panel.imshow(shares, cmap="Greys", vmin=0, vmax=1, aspect="auto")
    panel.axvline(q - 0.5, color="#D55E00", linestyle="--", linewidth=1.2)
    panel.set_yticks([0, epochs], labels=["start", f"{epochs}"], fontsize=9)
    panel.set_xticks([0, q, p - 1], labels=["0", f"{q}", f"{p - 1}"], fontsize=9)
