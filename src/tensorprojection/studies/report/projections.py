"""Summaries of learned projections: frequencies that a spatial U lets through, and its subspace.

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


def passed(U: Floats) -> Floats:
    """Return the share of each frequency's energy that Uᵀ lets through: 0 to 1 if orthonormal.

    Any rotation of U's columns has the same: only their span matters.

    >>> passed(cosines(4)[:, :2]).round(6) + 0.0  # a low-pass
    array([1., 1., 0., 0.])
    """
    shares: Floats = np.square(U.T @ cosines(len(U))).sum(axis=0)
    return shares


def low_pass(U: Floats) -> float:
    """Return the share of U's columns in the span of the lowest cosines: 1 for a low-pass.

    Columns of no direction have about q/p.

    >>> round(low_pass(np.ones((4, 1)) / 2), 6)
    1.0
    """
    total = float(np.square(U).sum())
    return float(passed(U)[: U.shape[1]].sum()) / total if total else math.nan


def span_left(start: Floats, end: Floats) -> float:
    """Return the share of the first U's span that lies in the other's, for orthonormal columns.

    >>> span_left(np.eye(4)[:, :2], np.eye(4)[:, 1:3])
    0.5
    """
    return float(np.square(start.T @ end).sum() / start.shape[1])


# At the init and at the end


@dataclass(frozen=True)
class Ends:
    """One U of one layer before the first epoch and after the last, in all trials that have it."""

    model: str
    layer: str
    mode: int
    epoch: int
    pairs: Sequence[tuple[Floats, Floats]]

    def low_pass(self) -> tuple[float, float] | None:
        """Return the median low-pass shares; None for the channels."""
        if self.mode == CHANNELS:
            return None
        start, end = np.median([[low_pass(U) for U in pair] for pair in self.pairs], axis=0)
        return float(start), float(end)

    def span_left(self) -> float:
        """Return the median share of the first span that is left."""
        return float(np.median([span_left(*pair) for pair in self.pairs]))


def ends(run: Run) -> list[Ends]:
    """Return every U at its init and after the run's last epoch."""
    found = []
    for model, trials in run.observed.items():
        names = trials[0].named("start") if trials else {}
        for name in names:
            both = [(trial.get(f"start/{name}"), trial.get(f"U/{name}")) for trial in trials]
            pairs = [
                (start.astype(np.float64), end.astype(np.float64))
                for start, end in both
                if start is not None and end is not None and start.shape == end.shape
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
