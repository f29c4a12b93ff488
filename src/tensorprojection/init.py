"""Starts for W.

``"normal"`` and ``"orthogonal"`` are noise; ``"block"``, ``"blur"`` and ``"dct"`` are poolings that
a layer can begin as and learn away from: the first two are local, the last mixes all positions. A
layer's ``init_scale`` multiplies whichever it is.

Note [W's scale sets how fast U turns]
    U does not depend on the scale of W, but its gradient does, by the inverse; and Adam, whose
    steps have the learning rate's size whatever the gradient's, turns a small W through a large
    angle. The largest angle in radians between the spans of U at the start and after 100 steps of
    Adam at 1e-3, in a layer 32 -> 8 that learns to keep the energy of fixed data (at most π/2):

    ============  ====  ====  ====  ====
    init_scale     0.1   0.3     1     3
    ============  ====  ====  ====  ====
    orthogonal    1.48  1.32  0.75  0.26
    block         1.47  1.32  0.69  0.27
    blur          1.50  1.40  0.70  0.25
    dct           1.49  1.33  0.77  0.26
    normal        1.50  1.48  1.38  1.14
    ============  ====  ====  ====  ====

    ``test_the_scale_sets_how_fast_U_turns`` in tests/test_starts.py measures them. The paper's
    start has singular values near 0.05 √p, 0.28 here: an orthonormal start turns as fast with
    ``init_scale=0.28``. With the default of 1 a pooling or a start from data is kept for longer.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor

from .errors import ProjectionTypeError, ProjectionValueError

# Keras's default for RandomNormal, which the paper's own layer uses.
PAPER_STD = 0.05


def normal_(W: Tensor) -> Tensor:
    """Normal noise of standard deviation 0.05: the paper's start."""
    return torch.nn.init.normal_(W, std=PAPER_STD)


def orthogonal_(W: Tensor) -> Tensor:
    """Orthonormal columns, uniformly distributed: U starts as W itself, up to ε."""
    if W.is_meta:
        return W
    with torch.no_grad():
        # QR in float64: W then is orthonormal to its own precision, and half types work too.
        A = torch.randn(W.shape, device=W.device).to("cpu", torch.float64)
        Q, R = torch.linalg.qr(A)
        # LAPACK leaves the columns' signs to the algorithm; fixing R's makes Q uniform.
        return W.copy_(Q * R.diagonal().sign())


def block_(W: Tensor) -> Tensor:
    """Normalised indicators of contiguous blocks: average pooling, up to a factor.

    >>> block_(torch.empty(4, 2))
    tensor([[0.7071, 0.0000],
            [0.7071, 0.0000],
            [0.0000, 0.7071],
            [0.0000, 0.7071]])

    The factor is the root of a block's size. Where q does not divide p, sizes differ by one.
    """
    p, q = W.shape
    edges = [j * p // q for j in range(q + 1)]
    U = torch.zeros(p, q, dtype=torch.float64)
    for j, (first, end) in enumerate(pairwise(edges)):
        U[first:end, j] = (end - first) ** -0.5
    return _set(W, U)


def blur_(W: Tensor) -> Tensor:
    """The orthonormal frame closest to blur pooling: local, like ``block_``, and smooth.

    Its columns are the polar factor of the windows of anti-aliased pooling, [1, 3, 3, 1] / 8 where
    the size is halved; see Note [Windows of blur pooling]. An inner column of 12 → 6:

    >>> [round(u, 2) for u in blur_(torch.empty(12, 6))[2:10, 2].tolist()]
    [-0.11, 0.12, 0.69, 0.69, 0.12, -0.11, -0.01, 0.03]

    Three positions further out, entries are four times smaller.
    """
    if W.is_meta:
        return W
    P, _, Qt = torch.linalg.svd(_windows(*W.shape), full_matrices=False)
    return _set(W, P @ Qt)


def dct_(W: Tensor) -> Tensor:
    """The q lowest cosine frequencies (DCT-II, orthonormal): spectral pooling.

    >>> dct_(torch.empty(3, 2))
    tensor([[ 5.7735e-01,  7.0711e-01],
            [ 5.7735e-01,  ...],
            [ 5.7735e-01, -7.0711e-01]])
    """
    p, q = W.shape
    place = torch.arange(p, dtype=torch.float64)[:, None] + 0.5
    U = torch.cos(place * torch.arange(q, dtype=torch.float64) * (torch.pi / p)) * (2 / p) ** 0.5
    U[:, 0] = p**-0.5
    return _set(W, U)


def _windows(p: int, q: int) -> Tensor:
    """By column, the weights of blur pooling from p positions to q, in float64.

    Note [Windows of blur pooling]
        Where every s-th position is kept, s = p / q, a window has the weights C(n, k) of a binomial
        with n = s² − 1: 1 3 3 1 for s = 2. Its standard deviation, √n / 2, grows with s and is √3
        times that of s equal weights. For p = q a window is a single 1, so that windows stay
        independent where hardly anything is dropped. Where s is no integer, n and k are not
        either, and the factorials are Gamma functions.

        What lies beyond the border is mirrored back. For s = 2 that is one position, which goes to
        its neighbour on the border: clamping does the same. For larger s clamping would pile up a
        sixth of the outer windows on the outermost position; mirrored, they stay smooth.
    """
    s = p / q
    n = s * s - 1
    centres = (torch.arange(q, dtype=torch.float64) + 0.5) * s - 0.5
    reach = math.ceil(min(n / 2 + 1, 5 * s)) + 1  # 5 s are ten standard deviations
    places = centres.round() + torch.arange(-reach, reach + 1, dtype=torch.float64)[:, None]
    k = places - centres + n / 2
    inside = (k > -1) & (k < n + 1)
    k = k.where(inside, n / 2)
    log = math.lgamma(n + 1) - torch.lgamma(k + 1) - torch.lgamma(n - k + 1)
    weights = (log - n * math.log(2)).exp() * inside
    places = places.long() % (2 * p)  # the mirrored axis repeats
    places = torch.minimum(places, 2 * p - 1 - places)
    W = torch.zeros(p, q, dtype=torch.float64)
    W.scatter_add_(0, places, weights)
    return W / W.sum(0)


def check_scale(scale: Any) -> float:
    if isinstance(scale, bool) or not isinstance(scale, int | float):
        raise ProjectionTypeError(f"Expected init_scale to be a number, got {scale!r}.")
    if not 0 < scale < float("inf"):
        raise ProjectionValueError(f"Expected a finite init_scale > 0, got {scale}.")
    return float(scale)


def _set(W: Tensor, U: Tensor) -> Tensor:
    with torch.no_grad():
        return W.copy_(U)


INITS: dict[str, Callable[[Tensor], Tensor]] = {
    "normal": normal_,
    "orthogonal": orthogonal_,
    "block": block_,
    "blur": blur_,
    "dct": dct_,
}
