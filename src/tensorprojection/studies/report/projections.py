"""What projections learn, as one figure: U of the spatial modes by epoch, and what it lets through.

A line for each layer that is learned. Left, Uᵀ of mode 2 in the first trial, at the start and after
some epochs. Right, for each spatial mode, which frequencies U lets through after every epoch, as
the median over the trials: a low-pass is dark to the left of the dashed line and nowhere else.
"""

from __future__ import annotations

import textwrap
from collections.abc import Iterator, Mapping, Sequence
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
NAMES = {2: "height", 3: "width", 4: "depth"}  # of modes; mode 1 is the channels, in no order


@dataclass(frozen=True)
class LearnedLayer:
    """A layer's spatial U's at the start, row 0, and after each epoch: trials × epochs × p × q."""

    title: str
    epochs: Sequence[int]
    modes: Mapping[int, Floats]


def learned_layers(
    curves: Curves, observed: Mapping[str, Sequence[Observed]]
) -> list[LearnedLayer]:
    """Every layer whose U was kept by epoch and changed; fixed ones have nothing to show."""
    found = []
    epochs = [int(epoch) for epoch in curves.epochs]
    for model in curves.models:
        layers: dict[str, dict[int, Floats]] = {}
        trials = [t for t in observed.get(model, ()) if t.epochs[: len(epochs)] == epochs]
        names = sorted({name for trial in trials for name in trial.named("by_epoch")})
        for name in names:
            layer, _, mode = name.rpartition("/")
            paths = [U for t in trials if (U := _path(t, name, len(epochs))) is not None]
            if int(mode) > 1 and any((U[:1] != U).any() for U in paths):
                layers.setdefault(layer, {})[int(mode)] = np.stack(paths)
        for layer, modes in layers.items():
            title = curves.model_title(model) + (f": {layer}" if len(layers) > 1 else "")
            found.append(LearnedLayer(title, [0, *epochs], modes))
    return found


def _path(trial: Observed, name: str, epochs: int) -> Floats | None:
    """U at the start and after each of so many epochs."""
    start, later = trial.get(f"start/{name}"), trial.get(f"by_epoch/{name}")
    if start is None or later is None or later.shape[1:] != start.shape:
        return None
    whole: Floats = np.concatenate([start[None], later[:epochs]]).astype(np.float64)
    return whole


def figure(curves: Curves, layers: Sequence[LearnedLayer]) -> Figure:
    """The figure of these layers, which are one or more."""
    from matplotlib.figure import Figure

    modes = sorted({mode for layer in layers for mode in layer.modes})
    rows = chosen_rows(len(layers[0].epochs) - 1)
    widths = [1.0] * len(rows) + [1.35] * len(modes)
    result = Figure(figsize=(1.7 * sum(widths) + 2.2, 1.35 * len(layers) + 1.3))
    result.set_layout_engine("constrained", h_pad=0.06, w_pad=0.06)
    grid = result.subplots(len(layers), len(widths), squeeze=False, width_ratios=widths)
    for layer, line in zip(layers, grid, strict=True):
        panels = iter(line)
        _draw_U(layer, rows, panels)
        for mode in modes:
            _draw_passed(layer, mode, next(panels))
        line[0].set_ylabel(
            "\n".join(textwrap.wrap(layer.title, 20)),
            rotation=0,
            ha="right",
            va="center",
            fontsize=11,
        )
    first = layers[0].epochs
    for panel, row in zip(grid[0], rows, strict=False):
        panel.set_title("Uᵀ at the start" if row == 0 else f"epoch {first[row]}", fontsize=11)
    for panel, mode in zip(grid[0][len(rows) :], modes, strict=True):
        panel.set_title(f"let through, {_name(mode)}", fontsize=11)
    for panel in grid[-1][len(rows) :]:
        panel.set_xlabel("frequency", fontsize=10)
    count = max(len(Us) for layer in layers for Us in layer.modes.values())
    several = f"as the median of {count} trials" if count > 1 else "in one trial"
    result.suptitle(
        f"{curves.title}: what the projections learn\n"
        f"Uᵀ of the {_name(modes[0])} in the first trial; frequencies that U lets through, "
        f"{several}: white none, black all",
        fontsize=11,
    )
    return result


def _name(mode: int) -> str:
    return NAMES.get(mode, f"mode {mode}")


def chosen_rows(last: int) -> list[int]:
    """The start, the first epoch, the last, and some between.

    >>> chosen_rows(12), chosen_rows(1)
    ([0, 1, 3, 6, 12], [0, 1])
    """
    steps = [max(1, last // 2**k) for k in range(SHOWN - 2, -1, -1)]
    return sorted({0, 1, *steps})


def _draw_U(layer: LearnedLayer, rows: Sequence[int], panels: Iterator[Axes]) -> None:
    Us = layer.modes[min(layer.modes)][0]
    top = float(np.abs(Us[rows]).max()) or 1.0
    for row in rows:
        panel = next(panels)
        panel.imshow(Us[row].T, cmap="RdBu_r", vmin=-top, vmax=top, aspect="auto")
        panel.set(xticks=[], yticks=[])


def _draw_passed(layer: LearnedLayer, mode: int, panel: Axes) -> None:
    if mode not in layer.modes:
        panel.set_axis_off()
        return
    Us = layer.modes[mode]
    p, q = Us.shape[-2:]
    shares = np.median([[passed(U) for U in trial] for trial in Us], axis=0)
    panel.imshow(shares, cmap="Greys", vmin=0, vmax=1, aspect="auto")
    panel.axvline(q - 0.5, color="#D55E00", linestyle="--", linewidth=1.2)
    last = layer.epochs[-1]
    panel.set_yticks([0, last], labels=["start", f"{last}"], fontsize=9)
    panel.set_xticks([0, q, p - 1], labels=["0", f"{q}", f"{p - 1}"], fontsize=9)
