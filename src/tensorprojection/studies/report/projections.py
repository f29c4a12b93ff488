"""Summaries of learned projections: the frequencies that a spatial U passes, and its subspace.

Frequencies are those of the cosines of the DCT-II, from the constant upward.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache

import numpy as np

from .run import Run
from .statistics import Floats

CHANNELS = 1  # the mode that has no order, and so no frequencies


@cache
def cosines(p: int) -> Floats:
    """Return the orthonormal cosines of p positions as columns: column k has frequency k."""
    angles = np.pi * (np.arange(p)[:, None] + 0.5) * np.arange(p) / p
    found: Floats = np.cos(angles) * np.where(np.arange(p) == 0, np.sqrt(1 / p), np.sqrt(2 / p))
    return found


def low_pass(U: Floats) -> float:
    """Return the share of U's columns in the span of the lowest cosines: 1 for a low-pass.

    Random columns have about q/p. Any rotation of U's columns has the same share.

    >>> round(low_pass(np.ones((4, 1)) / 2), 6)
    1.0
    """
    total = float(np.square(U).sum())
    low = cosines(len(U))[:, : U.shape[1]]
    return float(np.square(U.T @ low).sum()) / total if total else math.nan


def overlap(first: Floats, last: Floats) -> float:
    """Return the share of the first U's span that lies in the last's, for orthonormal columns.

    >>> overlap(np.eye(4)[:, :2], np.eye(4)[:, 1:3])
    0.5
    """
    return float(np.square(first.T @ last).sum() / first.shape[1])


@dataclass(frozen=True)
class Ends:
    """One U of one layer before the first epoch and after the last, in all trials that have it."""

    model: str
    layer: str
    mode: int
    epoch: int
    pairs: Sequence[tuple[Floats, Floats]]

    def about(self) -> str:
        """Return the medians of the low-pass shares and of the overlap, in words."""
        left = 100 * np.median([overlap(*pair) for pair in self.pairs])
        text = f"{left:.1f} % of the first subspace left."
        if self.mode == CHANNELS:
            return text
        p, q = self.pairs[0][0].shape
        shares = np.median([[low_pass(U) for U in pair] for pair in self.pairs], axis=0)
        low, high = (f"{100 * share:.0f} %" for share in shares)
        return f"Low-pass share {low} → {high} ({100 * q / p:.0f} % by chance). {text}"


def ends(run: Run) -> list[Ends]:
    """Return every U at its init and after the run's last epoch."""
    found = []
    for model, trials in run.observed.items():
        for name in trials[0].named("start") if trials else {}:
            both = [(trial.get(f"start/{name}"), trial.get(f"U/{name}")) for trial in trials]
            pairs = [
                (first.astype(np.float64), last.astype(np.float64))
                for first, last in both
                if first is not None and last is not None and first.shape == last.shape
            ]
            layer, _, mode = name.rpartition("/")
            if pairs and mode.isdecimal():
                found.append(Ends(model, layer, int(mode), trials[0].epochs[-1], pairs))
    return found


def observed_by_epoch(run: Run, kind: str, of: str = "") -> dict[tuple[str, str], Floats]:
    """Return trials × epochs of an observation by layer and model; low-pass shares of matrices.

    Args:
        run: the run.
        kind: "energy", "orthogonality", or "by_epoch" with the mode as ``of``, such as "/2".
        of: the end of the names that are meant.
    """
    found: dict[tuple[str, str], Floats] = {}
    for model, trials in run.observed.items():
        for name in sorted({name for trial in trials for name in trial.named(kind)}):
            if not name.endswith(of):
                continue
            values = np.full((len(trials), len(run.epochs)), np.nan)
            for row, trial in enumerate(trials):
                own = trial.get(f"{kind}/{name}")
                if own is None or own.shape[:1] != (len(trial.epochs),):
                    continue
                for epoch, value in zip(trial.epochs, own.astype(np.float64), strict=True):
                    values[row, run.epochs == epoch] = low_pass(value) if value.ndim else value
            found[name.removesuffix(of), model] = values
    return found
