"""V and s of M = V diag(s²) Vᵀ, exactly enough, with the checks that a diverged W calls for.

Note [The decomposition runs on the host]
    For a q × q matrix of this size LAPACK is faster than a GPU's solver, which moreover may return
    garbage, silently, for a NaN. The copy of M to the host is the one synchronisation (`eigh` on
    the device would cost one too), and the checks for NaN and for the condition are free there.
"""

from __future__ import annotations

import torch
from torch import Tensor

from .errors import DivergedError

# Beyond this ratio of M's eigenvalues the Gram matrix in float64 no longer gives V and s to
# float32's precision: its error in the smallest direction is about 2e-16 times the ratio.
_GRAM_LIMIT = 5e7

# Up to this ratio products with G keep float32's precision when done in float32: their error is
# about 6e-8 times the ratio of the singular values, the root of this.
_FLOAT32_LIMIT = 64.0

_LARGEST = torch.finfo(torch.float64).max


def decompose(
    M: Tensor, A: Tensor, shift: Tensor | float, *, exact: bool, name: str
) -> tuple[Tensor, Tensor, Tensor | None]:
    """V and s, from M or, where M is too ill-conditioned or ``exact`` is asked for, from A.

    In the second case also A V, which for a vanishing s is not to be had by a product any more.

    Args:
        M: ``AᵀA + shift I``, shape ``(..., q, q)``.
        shift: a number, or a tensor of shape ``(..., 1)``.
        name: what an error calls A.
    """
    if M.numel() == 0:
        return M.clone(), M.new_empty(M.shape[:-1]), None
    host = M.to("cpu", torch.float64)
    if not exact:
        try:
            squares, V = torch.linalg.eigh(host)
        except RuntimeError:
            pass  # NaN, most likely; what it is gets sorted out below
        else:
            if _ratio_within(squares, _GRAM_LIMIT):
                return V.contiguous().to(M), squares.sqrt_().to(M), None
    _check_scale(host, A, name)
    P, sigma, Vh = torch.linalg.svd(A.to("cpu", torch.float64), full_matrices=False)
    if isinstance(shift, Tensor):
        shift = shift.to("cpu", torch.float64)
    s = (sigma.square() + shift).sqrt()
    # LAPACK's eigenvalues ascend, its singular values descend.
    AV = (P * sigma[..., None, :]).flip(-1)
    return Vh.mT.flip(-1).contiguous().to(M), s.flip(-1).to(M), AV.to(M)


def float32_suffices(s: Tensor) -> bool:
    """Whether products with G = V diag(1/s) Vᵀ are exact enough in float32."""
    return s.device.type == "cpu" and _ratio_within(s, _FLOAT32_LIMIT**0.5)


def _ratio_within(ascending: Tensor, limit: float) -> bool:
    # False for NaN, infinity and zeros as well.
    smallest, largest = ascending[..., 0], ascending[..., -1]
    if ascending.ndim == 1:
        return 0 < largest.item() <= min(limit * smallest.item(), _LARGEST)
    return bool(((largest > 0) & (largest <= (limit * smallest).clamp(max=_LARGEST))).all())


def _check_scale(M: Tensor, A: Tensor, name: str) -> None:
    if not bool(torch.isfinite(M).all()):
        finite = bool(torch.isfinite(A).all())
        raise DivergedError(
            f"{name} is too large for its square to be represented."
            if finite
            else f"{name} contains NaN or infinity: the training has most likely diverged. "
            "Look at the loss and the gradients of the steps before this one."
        )
    if not bool((M.diagonal(dim1=-2, dim2=-1).sum(-1) > 0).all()):
        raise DivergedError(
            f"{name} is all zeros, or so small that its square and what eps adds to it vanish. With "
            f"eps_mode='relative' the scale of {name} is the unit of eps, so it must have one: "
            "start from other values, or use eps_mode='absolute' with an eps that counts."
        )
