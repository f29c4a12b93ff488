"""Initializations of W that are not random, as arrays for every framework; see init.py."""

from __future__ import annotations

import math
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]


def block(p: int, q: int) -> Array:
    """Return normalised indicators of contiguous blocks; sizes differ by at most one."""
    U = np.zeros((p, q))
    for j, (first, end) in enumerate(pairwise(j * p // q for j in range(q + 1))):
        U[first:end, j] = (end - first) ** -0.5
    return U


def dct(p: int, q: int) -> Array:
    """Return the q lowest cosine frequencies (DCT-II, orthonormal)."""
    place = np.arange(p)[:, None] + 0.5
    U: Array = np.cos(place * np.arange(q) * (np.pi / p)) * (2 / p) ** 0.5
    U[:, 0] = p**-0.5
    return U


def blur(p: int, q: int) -> Array:
    """Return the polar factor of the windows of blur pooling."""
    P, _, Qt = np.linalg.svd(_windows(p, q), full_matrices=False)
    U: Array = P @ Qt
    return U


def _windows(p: int, q: int) -> Array:
    """Return the weights of blur pooling from p positions to q, one column per window.

    Note [Windows of blur pooling]
        If every s-th position is kept, s = p / q, a window has the weights C(n, k) of a binomial
        with n = s² − 1: 1 3 3 1 for s = 2. Its standard deviation, √n / 2, grows with s and is √3
        times that of s equal weights. For p = q a window is a single 1, so that the windows stay
        independent if hardly anything is dropped. If s is not an integer, n and k are not either,
        and the factorials are Gamma functions.

        Positions beyond the border are mirrored. For s = 2 this is the same as clamping. For larger
        s, clamping would put a sixth of the outer windows on the outermost position.
    """
    s = p / q
    n = s * s - 1
    lgamma = np.vectorize(math.lgamma, otypes=[np.float64])
    centres = (np.arange(q) + 0.5) * s - 0.5
    reach = math.ceil(min(n / 2 + 1, 5 * s)) + 1  # 5 s are ten standard deviations
    places = np.round(centres) + np.arange(-reach, reach + 1)[:, None]
    k = places - centres + n / 2
    inside = (k > -1) & (k < n + 1)
    k = np.where(inside, k, n / 2)
    log = math.lgamma(n + 1) - lgamma(k + 1) - lgamma(n - k + 1)
    weights = np.exp(log - n * math.log(2)) * inside
    mirrored = places.astype(np.int64) % (2 * p)  # the mirrored axis repeats
    mirrored = np.minimum(mirrored, 2 * p - 1 - mirrored)
    W: Array = np.zeros((p, q))
    np.add.at(W, (mirrored, np.broadcast_to(np.arange(q), mirrored.shape)), weights)
    W /= W.sum(0)
    return W
