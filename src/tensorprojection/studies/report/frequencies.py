"""Which frequencies a spatial U lets through: cosines of the DCT-II, from the constant upward."""

from __future__ import annotations

import math
from functools import cache

import numpy as np

from .curves import Floats


@cache
def cosines(p: int) -> Floats:
    """The orthonormal cosines of p positions, one a column: column k has frequency k."""
    angles = np.pi * (np.arange(p)[:, None] + 0.5) * np.arange(p) / p
    found: Floats = np.cos(angles) * np.where(np.arange(p) == 0, np.sqrt(1 / p), np.sqrt(2 / p))
    return found


def passed(U: Floats) -> Floats:
    """The share of each frequency's energy that Uᵀ lets through, 0 to 1 for an orthonormal U.

    Any rotation of U's columns has the same: only their span matters.

    >>> passed(cosines(4)[:, :2]).round(6) + 0.0  # a low-pass
    array([1., 1., 0., 0.])
    """
    shares: Floats = np.square(U.T @ cosines(len(U))).sum(axis=0)
    return shares


def low_pass(U: Floats) -> float:
    """The share of U's columns that lies in the span of the lowest cosines, 0 to 1.

    1 for a low-pass with as many columns, some q/p for columns of no direction.

    >>> round(low_pass(np.ones((4, 1)) / 2), 6)
    1.0
    """
    total = float(np.square(U).sum())
    return float(passed(U)[: U.shape[1]].sum()) / total if total else math.nan
