"""V and s of M = V diag(s²) Vᵀ, exactly enough, with the checks that a diverged W calls for.

Note [The decomposition runs on the host]
    For a q × q matrix of this size LAPACK is faster than a GPU's solver, which moreover may return
    garbage, silently, for a NaN; and the checks for NaN and for the condition are free there. For a
    W on a device that is four waits per mode: the copy of M to the host, and V, s and G back. So it
    is for the CPU, and for a W of float64; others on a device go by products (engine/device).
"""

from __future__ import annotations

from contextlib import suppress
from math import inf
from typing import NamedTuple

import torch
from torch import Tensor

from ..errors import DivergedError
from .kernels.header import FLOAT_LIMIT, FLOAT_SCALE, GRAM_LIMIT

# GRAM_LIMIT, FLOAT_LIMIT and FLOAT_SCALE are explained in kernels.h: polar.c chooses by the same.

# From this q on: see `_refined`. Its residual may be this large for its square to be negligible.
_WIDE = 256
_RESIDUAL_LIMIT = 1e-4

_LARGEST = torch.finfo(torch.float64).max


class Spectrum(NamedTuple):
    """What M = V diag(s²) Vᵀ gives: V, s ascending, and G = M^(-1/2)."""

    V: Tensor
    s: Tensor
    G: Tensor
    AV: Tensor | None = None  # where it is known better than by a product


def decompose(M: Tensor, A: Tensor, shift: Tensor | float, *, exact: bool, name: str) -> Spectrum:
    """From M or, where M is too ill-conditioned or ``exact`` is asked for, from A.

    Args:
        M: ``AᵀA + shift I``, shape ``(..., q, q)``.
        shift: a number, or a tensor of shape ``(..., 1)``.
        name: what an error calls A.
    """
    if M.numel() == 0:
        return Spectrum(M.clone(), M.new_empty(M.shape[:-1]), M.clone())
    host = M.to("cpu", torch.float64)
    found = None
    if not exact:
        with suppress(RuntimeError):  # NaN, most likely; what it is gets sorted out below
            found = (_refined(host) if is_wide(host) else None) or _by_eigenvalues(host)
    if found is None:
        _check_scale(host, A, name)
        found = _by_singular_values(A.to("cpu", torch.float64), shift)
    V, s, G, AV = found
    return Spectrum(V.to(M), s.to(M), G.to(M), None if AV is None else AV.to(M))


def is_wide(M: Tensor) -> bool:
    """Whether M is so large that its decomposition, not the calls around it, sets the time."""
    return M.shape[-1] >= _WIDE


def gram(A: Tensor) -> Tensor:
    """AᵀA; where it is large, only the blocks on and above the diagonal are computed."""
    q = A.shape[-1]
    if q < _WIDE or A.ndim > 2:
        return A.mT @ A
    M = A.new_empty(q, q)
    step = -(-q // 4)
    for i in range(0, q, step):
        block = A[:, i : i + step].mT @ A[:, i:]
        M[i : i + step, i:] = block
        M[i:, i : i + step] = block.mT
    return M


def _by_eigenvalues(M: Tensor) -> Spectrum | None:
    squares, V = torch.linalg.eigh(M)
    if _spread(squares) > GRAM_LIMIT:
        return None
    V, s = V.contiguous(), squares.sqrt_()
    return Spectrum(V, s, (V / s[..., None, :]) @ V.mT)


def _refined(M: Tensor) -> Spectrum | None:
    """Eigenvalues in float32, then one Newton step for G in float64; None where that won't do.

    With the residual R = I - G M G, the step G + G R / 2 leaves an error of the order R².
    """
    squares, V = torch.linalg.eigh(M.float())
    if _spread(squares) > FLOAT_LIMIT:
        return None
    V, s = V.contiguous(), squares.sqrt_()
    G = ((V / s[..., None, :]) @ V.mT).double()
    R = G @ M @ G
    R.neg_().diagonal(dim1=-2, dim2=-1).add_(1.0)
    if not bool(torch.linalg.matrix_norm(R).max() <= _RESIDUAL_LIMIT):
        return None
    return Spectrum(V.double(), s.double(), G + (G @ R).mul_(0.5))


def _by_singular_values(A: Tensor, shift: Tensor | float) -> Spectrum:
    P, sigma, Vh = torch.linalg.svd(A, full_matrices=False)
    # LAPACK's singular values descend.
    P, sigma, V = P.flip(-1), sigma.flip(-1), Vh.mT.flip(-1).contiguous()
    s = (sigma.square() + (shift.cpu().double() if isinstance(shift, Tensor) else shift)).sqrt()
    return Spectrum(V, s, (V / s[..., None, :]) @ V.mT, P * sigma[..., None, :])


def float32_suffices(s: Tensor) -> bool:
    """Whether products with G = V diag(1/s) Vᵀ are exact enough in float32."""
    if s.device.type != "cpu" or _spread(s) ** 2 > FLOAT_LIMIT:
        return False
    in_range = (s >= 1 / FLOAT_SCALE) & (s <= FLOAT_SCALE)
    return bool(in_range.all())


def _spread(ascending: Tensor) -> float:
    """The largest ratio of last to first; infinite where one is not finite or not positive."""
    # Python's floats are quicker here than tensors.
    if ascending.ndim == 1:
        pairs = [(ascending[0].item(), ascending[-1].item())]
    else:
        ends = (ascending[..., 0].reshape(-1).tolist(), ascending[..., -1].reshape(-1).tolist())
        pairs = list(zip(*ends, strict=True))
    ratios = (high / low if 0 < low <= high <= _LARGEST else inf for low, high in pairs)
    return max(ratios, default=1.0)


def _check_scale(M: Tensor, A: Tensor, name: str) -> None:
    if not bool(torch.isfinite(M).all()):
        if bool(torch.isfinite(A).all()):
            raise DivergedError(f"{name} is too large for its square to be represented.")
        raise DivergedError.not_finite(name)
    if not bool((M.diagonal(dim1=-2, dim2=-1).sum(-1) > 0).all()):
        raise DivergedError.no_scale(name)
