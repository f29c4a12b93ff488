"""A layer in float64 whose derivatives of every order are those of ordinary operations.

Nothing here is from the library, nor of the library's way. U is not a function with a derivative of
its own but an integral over inverses, through which automatic differentiation goes as it stands:

    M^(-1/2) = 2/π ∫ e^u (M + e^(2u) I)^(-1) du,    M = WᵀW + ε²I

Substituted so, the integrand is 1/(2s) sech(u - log s) in every eigendirection of M, s its root,
and the trapezoidal rule is exact to float64 with some 350 points. W's singular value decomposition
enters as constants V and σ only: with D = (σ² + ε² + e^(2u))^(-1/2), the matrix
K = D Vᵀ(M + e^(2u)I) V D is the identity whatever W's condition, so that its inverse, and the
derivative of that, lose no digits.

`Rounding` disturbs all that a computation in another type would round, and so says how far its
result may be off; see there.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import log, pi, sqrt

import torch
from torch import Tensor

UNIT64 = torch.finfo(torch.float64).eps / 2
# e^(-π²/step) and e^(-tail) are below float64's unit, the first also times the (2π/step)^k that the
# k-th derivative has.
_STEP, _TAIL = 0.22, 37.0


def unit(dtype: torch.dtype) -> float:
    """The largest relative error of one rounding."""
    return torch.finfo(dtype).eps / 2


class Rounding:
    """Noise of the size of a type's roundings (Monte Carlo arithmetic, Parker 1997).

    Every number that is stored is disturbed by the type's unit u, and, where it takes part in a sum
    of n products, by √n u: what n independent roundings add up to (Higham and Mary 2019). Halves
    are summed in float32 by torch on every processor, so there it is √n times float32's unit.
    Disturbances are factors and stay in the graph, so derivatives are disturbed by them as well.

    Args:
        dtype: in which the map is carried out.
        W_dtype: that of the parameters.
        frozen: whether U is stored in the parameters' type, and not only in that of the map.
    """

    def __init__(
        self, dtype: torch.dtype, W_dtype: torch.dtype, seed: int, *, frozen: bool = False
    ) -> None:
        self.frozen = frozen
        self.generator = torch.Generator().manual_seed(seed)
        self.W_dtype = W_dtype
        self.stored = unit(dtype)
        self.summed = min(unit(dtype), unit(torch.float32))
        self.smallest = torch.finfo(dtype).smallest_normal * torch.finfo(dtype).eps

    def factor(self, x: Tensor, n: int = 1) -> Tensor:
        relative = (self.stored + sqrt(n) * self.summed) * self._normal(x)
        return x * (1 + relative) + self.smallest * self._normal(x)

    def W(self, W: Tensor, condition: float) -> Tensor:
        """W as a backward stable float64 algorithm may see it: off by float64's unit of its norm.

        A library in float32 has to be as good: of float32 is only what becomes of U. The derivative
        by W is a sum in which as many digits cancel as M^(1/2)'s condition number has, in float64
        too, and is rounded to W's own type.
        """
        seen = W + UNIT64 * torch.linalg.matrix_norm(W.detach(), 2) * self._normal(W)
        rounded = unit(self.W_dtype) + UNIT64 * condition
        return seen + (W - W.detach()) * (rounded * self._normal(W))

    def U(self, U: Tensor) -> Tensor:
        """U as a product in float32 makes it, where W's condition is at most 8; else in float64.

        Only a float64 W has a U of float64's precision, and the integral here has some 350 terms.
        """
        size = sqrt(350 * len(U)) * UNIT64
        if self.W_dtype != torch.float64:
            size += 8 * unit(torch.float32)
        if self.frozen:
            size += unit(self.W_dtype)
        return U * (1 + size * self._normal(U))

    def _normal(self, x: Tensor) -> Tensor:
        return torch.randn(x.shape, generator=self.generator, dtype=torch.float64)


def polar_by_svd(W: Tensor, eps: float, eps_mode: str) -> Tensor:
    """The values alone: W = P diag(σ) Vᵀ gives U = P diag(σ/√(σ² + shift)) Vᵀ (Eq. 3)."""
    P, sigma, Vt = torch.linalg.svd(W, full_matrices=False)
    return P * (sigma / (sigma.square() + _shift(W, eps, eps_mode)).sqrt()) @ Vt


def polar(W: Tensor, eps: float, eps_mode: str) -> Tensor:
    """The same, to be differentiated as often as one likes."""
    with torch.no_grad():
        _, sigma, Vt = torch.linalg.svd(W, full_matrices=False)
        V = Vt.mT
        squares = sigma.square() + _shift(W, eps, eps_mode)
        first, last = log(squares.min().sqrt()) - _TAIL, log(squares.max().sqrt()) + _TAIL
        t = torch.arange(first, last, _STEP, dtype=torch.float64).exp()
        D = (squares + t[:, None].square()).rsqrt()
    B = W @ V
    BD, VD = B * D[:, None, :], V * D[:, None, :]
    added = _shift(W, eps, eps_mode) + t.square()
    K = BD.mT @ BD + added[:, None, None] * (VD.mT @ VD)
    weights = (2 / pi * _STEP * t)[:, None, None] * D[:, :, None] * D[:, None, :]
    return B @ (weights * torch.linalg.inv(K)).sum(0) @ Vt


def _condition(W: Tensor, eps: float, eps_mode: str) -> float:
    """Of M^(1/2)."""
    squares = torch.linalg.svdvals(W).square() + _shift(W, eps, eps_mode)
    return float((squares.max() / squares.min()).sqrt())


def _shift(W: Tensor, eps: float, eps_mode: str) -> Tensor:
    """What is added to the diagonal of WᵀW."""
    if eps_mode == "absolute":
        return torch.tensor(eps**2, dtype=torch.float64)
    return eps**2 * W.square().sum() / W.shape[1]


def multilinear(
    x: Tensor, Us: Sequence[Tensor | None], transposed: bool, rounding: Rounding | None = None
) -> Tensor:
    """Eq. 1, or 13 where ``transposed``: one einsum per mode."""
    for k, U in enumerate(Us):
        if U is None:
            continue
        # The derivative with respect to U sums over all of x's other axes.
        n = U.shape[0] + max(x.numel() // max(x.shape[k - len(Us)], 1), 1)
        if rounding is not None:
            x, U = rounding.factor(x, U.shape[0]), rounding.factor(U, n)
        x = x.movedim(k - len(Us), -1)
        x = torch.einsum("...q,pq->...p" if transposed else "...p,pq->...q", x, U)
        x = x.movedim(-1, k - len(Us))
    return x if rounding is None else rounding.factor(x)


def layer(
    x: Tensor,
    Ws: Sequence[Tensor | None],
    eps: Sequence[float],
    eps_mode: str,
    transposed: bool,
    rounding: Rounding | None = None,
    differentiable: bool = True,
) -> Tensor:
    of = polar if differentiable else polar_by_svd
    Us: list[Tensor | None] = []
    for W, e in zip(Ws, eps, strict=True):
        if W is None or rounding is None:
            Us.append(None if W is None else of(W, e, eps_mode))
        else:
            seen = rounding.W(W, _condition(W.detach(), e, eps_mode))
            Us.append(rounding.U(of(seen, e, eps_mode)))
    return multilinear(x, Us, transposed, rounding)
