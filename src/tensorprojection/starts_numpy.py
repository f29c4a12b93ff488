"""Starts of W that are matrices of numbers, not noise: one array for every framework."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]


def block(p: int, q: int) -> Array:
    """Normalised indicators of contiguous blocks: average pooling, up to a factor.

    >>> block(4, 2).round(4)
    array([[0.7071, 0.    ],
           [0.7071, 0.    ],
           [0.    , 0.7071],
           [0.    , 0.7071]])

    The factor is the root of a block's size. Where q does not divide p, sizes differ by one.
    """
    U = np.zeros((p, q))
    for j, (first, end) in enumerate(pairwise(j * p // q for j in range(q + 1))):
        U[first:end, j] = (end - first) ** -0.5
    return U


def dct(p: int, q: int) -> Array:
    """The q lowest cosine frequencies (DCT-II, orthonormal): spectral pooling.

    >>> dct(4, 2).round(4)
    array([[ 0.5   ,  0.6533],
           [ 0.5   ,  0.2706],
           [ 0.5   , -0.2706],
           [ 0.5   , -0.6533]])
    """
    place = np.arange(p)[:, None] + 0.5
    U: Array = np.cos(place * np.arange(q) * (np.pi / p)) * (2 / p) ** 0.5
    U[:, 0] = p**-0.5
    return U
