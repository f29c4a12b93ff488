"""The page's part about the learned U's: as pictures, and in numbers over all trials."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from ...observed import Array, Observed
from ..curves import Floats
from ..frequencies import low_pass
from .numbers import shown, span_kept
from .pictures import heat_map
from .runs import Run

Part = dict[str, Any]


def last_row(run: Run, trial: Observed) -> int:
    """The row of the last observed epoch that is part of the report."""
    return max(k for k, epoch in enumerate(trial.epochs) if epoch <= run.curves.epochs[-1])


def matrices(run: Run) -> list[Part]:
    """Every U at the start and at the end, of the first trial; low-pass shares of all trials."""
    found = []
    for model, trials in run.observed.items():
        if not trials:
            continue
        first = trials[0]
        for name, start in first.named("start").items():
            end, epoch = _latest(run, first, name)
            if end is None or end.shape != start.shape:
                continue
            layer, _, mode = name.rpartition("/")
            top = float(max(np.abs(start).max(), np.abs(end).max()))
            spatial = int(mode) > 1  # mode 1 is the channels, which have no order
            found.append(
                {
                    "title": run.curves.model_title(model),
                    "layer": layer,
                    "mode": mode,
                    "shape": f"{start.shape[0]} × {start.shape[1]}",
                    "epoch": epoch,
                    "top": shown(top),
                    "wide": start.shape[0] > 64,
                    # As Uᵀ, a column of U a line: it is then wider than high, as a page is.
                    "start": heat_map(start.T, top),
                    "end": heat_map(end.T, top),
                    "low_pass": _low_pass(run, trials, name) if spatial else None,
                    "kept": _kept(run, trials, name),
                    "by_chance": f"{100 * start.shape[1] / start.shape[0]:.0f} %",
                }
            )
    return found


def _latest(run: Run, trial: Observed, name: str) -> tuple[Array | None, int]:
    """U at the report's last epoch where it was kept by epoch, else at the run's; and which."""
    row, by_epoch = last_row(run, trial), trial.get(f"by_epoch/{name}")
    if by_epoch is not None and by_epoch.ndim == 3 and len(by_epoch) > row:
        return by_epoch[row], trial.epochs[row]
    return trial.get(f"U/{name}"), trial.epochs[-1]


def _ends(run: Run, trials: Sequence[Observed], name: str) -> list[tuple[Floats, Floats]]:
    """U at the start and at the end, of the trials that have both."""
    pairs = [(t.get(f"start/{name}"), _latest(run, t, name)[0]) for t in trials]
    return [
        (start.astype(np.float64), end.astype(np.float64))
        for start, end in pairs
        if start is not None and end is not None and start.shape == end.shape
    ]


def _low_pass(run: Run, trials: Sequence[Observed], name: str) -> tuple[str, str]:
    shares = [[low_pass(U) for U in pair] for pair in _ends(run, trials, name)]
    start, end = np.median(shares, axis=0)
    return f"{100 * start:.0f} %", f"{100 * end:.0f} %"


def _kept(run: Run, trials: Sequence[Observed], name: str) -> str:
    shares = [span_kept(start, end) for start, end in _ends(run, trials, name)]
    return f"{100 * float(np.median(shares)):.1f} %"
