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

    ``test_the_scale_sets_how_fast_U_turns`` in tests/algebra/test_starts.py does. The paper's
    start has singular values near 0.05 √p, 0.28 here: an orthonormal start turns as fast with
    ``init_scale=0.28``. With the default of 1 a pooling or a start from data is kept for longer.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from .. import start_values
from ..errors import ProjectionTypeError, ProjectionValueError

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
        A = torch.randn(W.shape, device=W.device).cpu().double()
        Q, R = torch.linalg.qr(A)
        # LAPACK leaves the columns' signs to the algorithm; fixing R's makes Q uniform.
        return W.copy_((Q * R.diagonal().sign()).to(W.dtype))


def block_(W: Tensor) -> Tensor:
    """Normalised indicators of contiguous blocks: average pooling, up to a factor.

    >>> block_(torch.empty(4, 2))
    tensor([[0.7071, 0.0000],
            [0.7071, 0.0000],
            [0.0000, 0.7071],
            [0.0000, 0.7071]])

    The factor is the root of a block's size. Where q does not divide p, sizes differ by one.
    """
    return _set(W, start_values.block(*W.shape))


def blur_(W: Tensor) -> Tensor:
    """The orthonormal frame closest to blur pooling: local, like ``block_``, and smooth.

    Its columns are the polar factor of the windows of anti-aliased pooling, [1, 3, 3, 1] / 8 where
    the size is halved; see Note [Windows of blur pooling] in start_values.py. An inner column of
    12 → 6:

    >>> [round(u, 2) for u in blur_(torch.empty(12, 6))[2:10, 2].tolist()]
    [-0.11, 0.12, 0.69, 0.69, 0.12, -0.11, -0.01, 0.03]

    Three positions further out, entries are four times smaller.
    """
    return _set(W, start_values.blur(*W.shape))


def dct_(W: Tensor) -> Tensor:
    """The q lowest cosine frequencies (DCT-II, orthonormal): spectral pooling.

    >>> dct_(torch.empty(3, 2))
    tensor([[ 5.7735e-01,  7.0711e-01],
            [ 5.7735e-01,  ...],
            [ 5.7735e-01, -7.0711e-01]])
    """
    return _set(W, start_values.dct(*W.shape))


def check_scale(scale: Any) -> float:
    if isinstance(scale, bool) or not isinstance(scale, int | float):
        raise ProjectionTypeError(f"Expected init_scale to be a number, got {scale!r}.")
    if not 0 < scale < float("inf"):
        raise ProjectionValueError(f"Expected a finite init_scale > 0, got {scale}.")
    return float(scale)


def _set(W: Tensor, U: start_values.Array) -> Tensor:
    with torch.no_grad():
        return W.copy_(torch.from_numpy(U).to(W.dtype))


INITS: dict[str, Callable[[Tensor], Tensor]] = {
    "normal": normal_,
    "orthogonal": orthogonal_,
    "block": block_,
    "blur": blur_,
    "dct": dct_,
}
