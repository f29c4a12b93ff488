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

# From this q on, eigh runs in float32 and U is corrected by one Newton step: see `_corrected`.
# The step is used if the norm of the residual is at most _RESIDUAL_LIMIT; the term ε²G² of the
# residual is skipped if no entry of ε²/s² exceeds _NEGLIGIBLE.
_WIDE = 256
_RESIDUAL_LIMIT = 1e-4
_NEGLIGIBLE = 1e-9

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
    if W.shape[-1] >= _WIDE and torch.float64 not in (W.dtype, dtype):
        found = _corrected(W.float(), eps, relative)
        if found is not None:
            return found[0].to(dtype), found[1]
    A = W.to(torch.float64)
    M, shift = _gram(A, eps, relative)
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
    q = A.shape[-1]
    if not _is_tall(A):  # the same in the eigenbasis of M, with fewer products
        row, column = s[..., None, :], s[..., :, None]
        P, D = A @ (G @ V), grad_U @ V
        B = P.mT @ D
        S = (B - B.mT) / (row + column) - B / row
        if relative:
            weight = (eps * eps / q) * trace(B / row.square())
            S.diagonal(dim1=-2, dim2=-1).sub_((weight * row)[..., 0, :])
        return ((D / row).add_(P @ S) @ V.mT).to(W.dtype)
    grad_M = -lyapunov(G @ (A.mT @ grad_U) @ G, V, s)
    S = grad_M + grad_M.mT  # dL/dW = W S through M (Eq. 12)
    if relative:
        S = S + (eps * eps / q) * trace(S) * torch.eye(q, dtype=S.dtype)
    return (grad_U @ G).add_(A @ S).to(W.dtype)


def _gram(A: Tensor, eps: float = 0.0, relative: bool = False) -> tuple[Tensor, Tensor]:
    """Return AᵀA + shift I, and the shift: ε², or ε² times the mean of AᵀA's diagonal.

    Of a large one, only the blocks on and above the diagonal are computed.
    """
    q = A.shape[-1]
    if q < _WIDE or A.ndim > 2:
        M = A.mT @ A
    else:
        M = A.new_empty(q, q)
        step = -(-q // 4)
        for i in range(0, q, step):
            block = A[:, i : i + step].mT @ A[:, i:]
            M[i : i + step, i:] = block
            M[i:, i : i + step] = block.mT
    diagonal = M.diagonal(dim1=-2, dim2=-1)
    unit = diagonal.mean(-1, keepdim=True) if relative else torch.ones_like(diagonal[..., :1])
    shift = eps * eps * unit
    diagonal.add_(shift)
    return M, shift


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
            found = _by_eigenvalues(M)
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


def _corrected(W: Tensor, eps: float, relative: bool) -> tuple[Tensor, Spectrum] | None:
    """Return U and the spectrum of a well-conditioned W from eigenvalues in float32; None if not.

    With the residual R = I - G M G, of float64, a Newton step takes G to G + G R / 2 and leaves an
    error of the order R². If W is not tall, R = I - UᵀU - ε²G² is cheaper, and the same step for U
    makes it as orthonormal as float32 can be.
    """
    tall = _is_tall(W)
    M, shift = _gram(W.double() if tall else W, eps, relative)
    if not bool(M.isfinite().all()):
        return None
    with suppress(RuntimeError):  # LinAlgError: it did not converge
        squares, V = torch.linalg.eigh(M.float())
        s = squares.sqrt()
        if not _float32_suffices(s):  # nor if one is NaN, the root of a negative number
            return None
        G = (V / s[..., None, :]) @ V.mT
        U = None if tall else W @ G
        R = G.double() @ M @ G.double() if U is None else _gram(U.double())[0]
        R = R.neg_()
        R.diagonal(dim1=-2, dim2=-1).add_(1.0)
        R = R.float()
        if U is not None and float((shift / squares).max()) > _NEGLIGIBLE:
            R -= shift[..., None] * ((V / squares[..., None, :]) @ V.mT)
        if not bool(torch.linalg.matrix_norm(R).max() <= _RESIDUAL_LIMIT):
            return None
        R *= 0.5
        G = G + G @ R
        U = W @ G if U is None else U + U @ R
        return U, Spectrum(G.double(), V.double(), s.double())
    return None


def _is_tall(W: Tensor) -> bool:
    """Return True if products with W's rows cost more than several with its columns alone."""
    return W.shape[-2] >= 2 * W.shape[-1]


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
