"""Initializations of W, in the form of `torch.nn.init`.

>>> import torch, tensorprojection as tp
>>> tp.init.block_(torch.empty(4, 2))
tensor([[0.7071, 0.0000],
        [0.7071, 0.0000],
        [0.0000, 0.7071],
        [0.0000, 0.7071]])

`normal_` and `orthogonal_` are random. `block_`, `blur_` and `dct_` are poolings: the first two are
local, the last mixes all positions. A layer's ``init`` is one of these names without the
underscore, or a function of a tensor; ``init_scale`` multiplies W.

Note [What auto is]
    ``init="auto"``, the default, is for channels first: the first mode of three or more is
    ``"normal"``, since channels have no order, and the others are ``"block"`` with
    ``init_scale=3``. It was chosen on the OCT study (docs/results/oct): mean difference from
    MaxPooling with its 95 % interval, corrected for shared images, and in how many of 10 paired
    trials it is better, at each network's epoch with the lowest validation loss:

    ==============  =========================  ====  =========================  ====
    spatial modes   loss                             accuracy
    ==============  =========================  ====  =========================  ====
    block × 3       -0.034 [-0.076, +0.008]    9/10  +0.020 [-0.005, +0.044]    9/10
    blur            -0.036 [-0.106, +0.033]    7/10  +0.021 [-0.022, +0.063]    8/10
    block           -0.026 [-0.084, +0.032]    8/10  +0.013 [-0.020, +0.045]    7/10
    normal          +0.177 [+0.017, +0.338]    0/10  -0.076 [-0.137, -0.014]    0/10
    ==============  =========================  ====  =========================  ====

    With one or two modes, tokens and features cannot be told apart: all are ``"normal"``.

Note [W's scale sets how fast U turns]
    U does not depend on the scale of W. Adam's steps have the size of the learning rate whatever
    the gradient's size, so they turn a small W through a large angle. The largest angle in radians
    (at most π/2) between the spans of U at initialization and after 100 steps of Adam at 1e-3, in
    a layer 32 -> 8 that learns to keep the energy of fixed data:

    ============  ====  ====  ====  ====
    init_scale     0.1   0.3     1     3
    ============  ====  ====  ====  ====
    orthogonal    1.48  1.32  0.75  0.26
    block         1.47  1.32  0.69  0.27
    blur          1.50  1.40  0.70  0.25
    dct           1.49  1.33  0.77  0.26
    normal        1.50  1.48  1.38  1.14
    ============  ====  ====  ====  ====

    ``test_the_scale_sets_how_fast_U_turns`` in tests/test_init.py measures it. The paper's
    initialization has singular values near 0.05 √p, 0.28 here: an orthonormal W turns as fast with
    ``init_scale=0.28``.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Literal

import torch
from torch import Tensor

from . import init_matrices
from .errors import ProjectionTypeError, ProjectionValueError
from .shapes import per_mode

__all__ = ["block_", "blur_", "dct_", "normal_", "orthogonal_"]

# Keras's default for RandomNormal, which the paper's own layer uses.
PAPER_STD = 0.05


def normal_(W: Tensor) -> Tensor:
    """Fill W with normal noise of standard deviation 0.05: the paper's initialization."""
    return torch.nn.init.normal_(W, std=PAPER_STD)


def orthogonal_(W: Tensor) -> Tensor:
    """Fill W with orthonormal columns, uniformly distributed: U is W itself, up to ε."""
    if W.is_meta:
        return W
    with torch.no_grad():
        # QR in float64: W then is orthonormal to its own precision, and half types work too.
        A = torch.randn(W.shape, device=W.device).cpu().double()
        Q, R = torch.linalg.qr(A)
        # LAPACK leaves the columns' signs to the algorithm; fixing R's makes Q uniform.
        return W.copy_((Q * R.diagonal().sign()).to(W.dtype))


def block_(W: Tensor) -> Tensor:
    """Fill W with normalised indicators of blocks: average pooling, up to a factor.

    The factor is the root of a block's size. If q does not divide p, sizes differ by one.
    """
    return _set(W, init_matrices.block(*W.shape))


def blur_(W: Tensor) -> Tensor:
    """Fill W with the orthonormal matrix closest to blur pooling: local and smooth.

    It is the polar factor of the windows of anti-aliased pooling, [1, 3, 3, 1] / 8 if the size is
    halved; see Note [Windows of blur pooling] in init_matrices.py. An inner column of 12 → 6:

    >>> [round(u, 2) for u in blur_(torch.empty(12, 6))[2:10, 2].tolist()]
    [-0.11, 0.12, 0.69, 0.69, 0.12, -0.11, -0.01, 0.03]
    """
    return _set(W, init_matrices.blur(*W.shape))


def dct_(W: Tensor) -> Tensor:
    """Fill W with the q lowest cosine frequencies (DCT-II, orthonormal): spectral pooling.

    >>> dct_(torch.empty(3, 2))
    tensor([[ 5.7735e-01,  7.0711e-01],
            [ 5.7735e-01,  ...],
            [ 5.7735e-01, -7.0711e-01]])
    """
    return _set(W, init_matrices.dct(*W.shape))


def _set(W: Tensor, U: init_matrices.Array) -> Tensor:
    with torch.no_grad():
        return W.copy_(torch.from_numpy(U).to(W.dtype))


INITS: dict[str, Callable[[Tensor], Tensor]] = {
    "normal": normal_,
    "orthogonal": orthogonal_,
    "block": block_,
    "blur": blur_,
    "dct": dct_,
}

InitName = Literal["auto", "normal", "orthogonal", "block", "blur", "dct"]
Init = InitName | Callable[[Tensor], Any]  # of one mode

# See Note [What auto is].
AUTO_LOCAL: InitName = "block"
AUTO_SCALE = 3.0


def resolve(
    init: Init | Sequence[Init], scale: float | Sequence[float] | None, order: int
) -> tuple[tuple[Init, ...], tuple[float, ...]]:
    """Return the initialization and its scale for each mode, "auto" resolved."""
    inits: list[Init] = list(per_mode("init", init, order))
    scales = [1.0] * order
    for k, chosen in enumerate(inits):
        if chosen == "auto":
            local = order >= 3 and k > 0
            inits[k], scales[k] = (AUTO_LOCAL, AUTO_SCALE) if local else ("normal", 1.0)
        elif not (callable(chosen) or (isinstance(chosen, str) and chosen in INITS)):
            raise ProjectionValueError(
                f"Expected init to be 'auto', {', '.join(map(repr, INITS))}, or a function of a "
                f"tensor, got {chosen!r}."
            )
    if scale is not None:
        scales = [_check_scale(s) for s in per_mode("init_scale", scale, order)]
    return tuple(inits), tuple(scales)


def initialize(W: Tensor, init: Init, scale: float, name: str) -> None:
    """Initialize W in place."""
    if isinstance(init, str):
        INITS[init](W)
    else:
        shape = W.shape
        with torch.no_grad():
            W.fill_(torch.nan)
            init(W)
        if W.shape != shape:
            raise ProjectionValueError(
                f"Expected init to fill {name} in place, but {init_name(init)} changed its shape "
                f"from {tuple(shape)} to {tuple(W.shape)}."
            )
        if not W.is_meta and bool(W.isnan().any()):
            raise ProjectionValueError(
                f"Expected init to fill {name} in place, but {init_name(init)} left NaN in it."
            )
    if scale != 1:
        with torch.no_grad():
            W.mul_(scale)


def init_name(init: Init) -> str:
    return init if isinstance(init, str) else getattr(init, "__name__", repr(init))


def _check_scale(scale: Any) -> float:
    if isinstance(scale, bool) or not isinstance(scale, int | float):
        raise ProjectionTypeError(f"Expected init_scale to be a number, got {scale!r}.")
    if not 0 < scale < float("inf"):
        raise ProjectionValueError(f"Expected a finite init_scale > 0, got {scale}.")
    return float(scale)
