"""W to U and its gradient with torch's own operations, through the spectrum of M = WᵀW + ε²I.

Note [Float64 inside]
    Forming WᵀW squares W's condition number, so in float32 the Gram matrix of a W of condition 10³
    has lost all digits of its smallest direction. M is small: M and all that follows from it are
    float64, and only the finished U is cast. The products of tall matrices are float32 if W is
    well-conditioned enough for that to cost nothing.

Note [NaN propagates]
    A W with NaN or infinity, a W whose square overflows, and a zero W with a relative ε have no U.
    Their U is NaN, and so is its gradient, without an exception: as everywhere in torch. LAPACK may
    raise for such a matrix or return anything, so it is given the identity in its place.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from math import inf
from typing import NamedTuple

import torch
from torch import Tensor

from .limits import FLOAT_LIMIT, FLOAT_SCALE, GRAM_LIMIT

# From this q on, eigenvectors are computed in float32 and refined: see `_refined`. Its residual may
# be this large for its square to be negligible.
_WIDE = 256
_RESIDUAL_LIMIT = 1e-4

_LARGEST = torch.finfo(torch.float64).max


class Spectrum(NamedTuple):
    """G = M^(-1/2), and V and s (ascending) of M = V diag(s²) Vᵀ."""

    G: Tensor
    V: Tensor
    s: Tensor

    def packed(self) -> Tensor:
        """Return G, V and s below one another: one tensor (..., 2 q + 1, q), as C writes it."""
        return torch.cat([self.G, self.V, self.s[..., None, :]], -2)

    @classmethod
    def unpacked(cls, packed: Tensor) -> Spectrum:
        q = packed.shape[-1]
        return cls(packed[..., :q, :], packed[..., q : 2 * q, :], packed[..., 2 * q, :])


def polar_values(
    Ws: Sequence[Tensor], eps: Sequence[float], relative: bool, dtype: torch.dtype
) -> list[Tensor]:
    """Return the U's, then the packed spectra."""
    found = [_polar(W, e, relative, dtype) for W, e in zip(Ws, eps, strict=True)]
    return [*(U for U, _ in found), *(spectrum.packed() for _, spectrum in found)]


def polar_gradients(
    Ws: Sequence[Tensor],
    grads: Sequence[Tensor],
    spectra: Sequence[Tensor],
    eps: Sequence[float],
    relative: bool,
) -> list[Tensor]:
    """Return dL/dW for each dL/dU (Eq. 8 to 12, the 11th corrected)."""
    return [
        _gradient(W, grad, Spectrum.unpacked(packed), e, relative)
        for W, grad, packed, e in zip(Ws, grads, spectra, eps, strict=True)
    ]


def lyapunov(C: Tensor, V: Tensor, s: Tensor) -> Tensor:
    """Return the X with H X + X H = C, where H = V diag(s) Vᵀ."""
    return V @ ((V.mT @ C @ V) / (s[..., :, None] + s[..., None, :])) @ V.mT


def trace(M: Tensor) -> Tensor:
    return M.diagonal(dim1=-2, dim2=-1).sum(-1)[..., None, None]


def _polar(W: Tensor, eps: float, relative: bool, dtype: torch.dtype) -> tuple[Tensor, Spectrum]:
    A = W.to(torch.float64)
    M = _gram(A)
    diagonal = M.diagonal(dim1=-2, dim2=-1)
    shift = (
        eps
        * eps
        * (diagonal.mean(-1, keepdim=True) if relative else torch.ones_like(diagonal[..., :1]))
    )
    diagonal.add_(shift)
    valid = torch.isfinite(M).all(-1).all(-1)[..., None, None]
    if not bool(valid.all()):  # see Note [NaN propagates]
        M = torch.where(valid, M, torch.eye(M.shape[-1], dtype=M.dtype))
        A = torch.where(valid, A, torch.eye(*A.shape[-2:], dtype=A.dtype))
        shift = torch.where(valid[..., 0], shift, torch.nan)
    spectrum, AV = _decomposed(M, A, shift, exact=W.dtype == torch.float64)
    if AV is not None:
        return ((AV / spectrum.s[..., None, :]) @ spectrum.V.mT).to(dtype), spectrum
    if W.dtype == torch.float32 and dtype != torch.float64 and _float32_suffices(spectrum.s):
        A = W
    return (A @ spectrum.G.to(A.dtype)).to(dtype), spectrum


def _gradient(W: Tensor, grad_U: Tensor, spectrum: Spectrum, eps: float, relative: bool) -> Tensor:
    A = W if W.dtype == torch.float32 and _float32_suffices(spectrum.s) else W.double()
    G, V, s = (t.to(A.dtype) for t in spectrum)
    grad_U = grad_U.to(A.dtype)
    grad_M = -lyapunov(G @ (A.mT @ grad_U) @ G, V, s)
    S = grad_M + grad_M.mT  # dL/dW = W S through M (Eq. 12)
    if relative:
        q = S.shape[-1]
        S = S + (eps * eps / q) * trace(S) * torch.eye(q, dtype=S.dtype)
    return (grad_U @ G).add_(A @ S).to(W.dtype)


def _gram(A: Tensor) -> Tensor:
    """Return AᵀA; of a large one, only the blocks on and above the diagonal are computed."""
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


def _decomposed(
    M: Tensor, A: Tensor, shift: Tensor, *, exact: bool
) -> tuple[Spectrum, Tensor | None]:
    """Return the spectrum of M = AᵀA + shift I, and A V if that is known better than as a product.

    From M or, if M is too ill-conditioned or ``exact``, from A.
    """
    if M.numel() == 0:
        return Spectrum(M, M.clone(), M.new_empty(M.shape[:-1])), None
    found = None
    if not exact:
        with suppress(RuntimeError):  # LinAlgError: it did not converge
            found = (_refined(M) if M.shape[-1] >= _WIDE else None) or _by_eigenvalues(M)
    if found is not None:
        # A matrix without a U has the identity in its place, and NaN in its shift.
        bad = shift.isnan()
        return (found, None) if not bool(bad.any()) else (_with_nan(found, bad), None)
    P, sigma, Vh = torch.linalg.svd(A, full_matrices=False)
    P, sigma, V = P.flip(-1), sigma.flip(-1), Vh.mT.flip(-1).contiguous()  # LAPACK's descend
    s = (sigma.square() + shift).sqrt()
    return Spectrum((V / s[..., None, :]) @ V.mT, V, s), P * sigma[..., None, :]


def _with_nan(found: Spectrum, bad: Tensor) -> Spectrum:
    G, V, s = found
    return Spectrum(G.masked_fill(bad[..., None], torch.nan), V, s.masked_fill(bad, torch.nan))


def _by_eigenvalues(M: Tensor) -> Spectrum | None:
    squares, V = torch.linalg.eigh(M)
    if _spread(squares) > GRAM_LIMIT:
        return None
    V, s = V.contiguous(), squares.sqrt_()
    return Spectrum((V / s[..., None, :]) @ V.mT, V, s)


def _refined(M: Tensor) -> Spectrum | None:
    """Return eigenvalues in float32, then one Newton step for G in float64; None if not enough.

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
    return Spectrum(G + (G @ R).mul_(0.5), V.double(), s.double())


def _float32_suffices(s: Tensor) -> bool:
    """Return True if products with G = V diag(1/s) Vᵀ are exact enough in float32."""
    if _spread(s) ** 2 > FLOAT_LIMIT:
        return False
    return bool(((s >= 1 / FLOAT_SCALE) & (s <= FLOAT_SCALE)).all())


def _spread(ascending: Tensor) -> float:
    """Return the largest ratio of last to first; infinity if one is not finite or not positive."""
    # Python's floats are quicker here than tensors.
    first, last = (ascending[..., i].reshape(-1).tolist() for i in (0, -1))
    pairs = zip(first, last, strict=True)
    ratios = (high / low if 0 < low <= high <= _LARGEST else inf for low, high in pairs)
    return max(ratios, default=1.0)
