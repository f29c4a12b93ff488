"""W -> U by products, differentiable to every order, backward and forward, and under torch.func.

Note [The gradient without an eigenbasis]
    With ``Y = UᵀD`` for ``D = dL/dU``, ``dL/dW = (D - U Q) G`` where Q solves
    ``H Q + Q H = H Y + YᵀH``: the formula of polar.py (Note [The corrected Eq. 11]) with
    ``W = U H`` put in. Nothing in it is larger than D but G itself, whereas terms such as
    ``G (WᵀD) G`` lose all digits where W is large and ill-conditioned. A relative ε is a
    function of W too, which adds ``-ε²/q tr(G Q G) W``.

Note [Closed under differentiation, by products]
    U's derivative needs H, G and `_Lyapunov`. H as a function of M has `_Lyapunov` as its
    derivative, G as a function of H itself, and `_Lyapunov` itself. The values of all are known
    before: they are handed in as constants, so no derivative ever goes through the iteration.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from . import lyapunov
from .factors import Factors, factors, with_eps_below


def polar_by_products(W: Tensor, eps: float, relative: bool, dtype: torch.dtype) -> Tensor:
    """U = W (WᵀW + ε²I)^(-1/2) (Eq. 3) of a W of shape (..., p, q) with q <= p."""
    function: Any = _Polar
    U: Tensor = function.apply(W, eps, relative, dtype)[0]
    return U


def gradient(D: Tensor, found: Factors, weight: float | Tensor | None) -> Tensor:
    """dL/dW from D = dL/dU, (b, p, q) in float64; see Note [The gradient without an eigenbasis].

    Args:
        weight: ε²/q where ε is relative, a number or of shape (b, 1, 1); else None.
    """
    U, T, H, size = found
    C = H @ (U.mT @ D)
    Q = lyapunov.solve(H, C + C.mT)
    result = torch.baddbmm(D, U, Q, alpha=-1) @ T
    if weight is not None:
        result = result - weight * _trace(T @ Q @ T) * (U @ H)
    return result / size.sqrt()


def polar_gradient_by_products(W: Tensor, grad_U: Tensor, eps: float, relative: bool) -> Tensor:
    """dL/dW from dL/dU as a differentiable function of both, for a W of shape (..., p, q)."""
    function: Any = _Polar
    found = Factors(*function.apply(W.detach(), eps, relative, torch.float64)[1:])
    return _gradient_of(W, grad_U.to(torch.float64), found, eps, relative).to(W.dtype)


def _gradient_of(W: Tensor, D: Tensor, found: Factors, eps: float, relative: bool) -> Tensor:
    """What `gradient` computes, as a differentiable function of W and D."""
    weight = eps * eps / W.shape[-1] if relative else None
    A, H, G = _roots(W, found, weight, eps)
    U = A @ G
    C = H @ (U.mT @ D)
    Q = _solve(H, C + C.mT, found.size)
    grad_A = (D - U @ Q) @ G
    if weight is not None:
        grad_A = grad_A - weight * _trace(G @ Q @ G) * A
    return grad_A


def _trace(M: Tensor) -> Tensor:
    return M.diagonal(dim1=-2, dim2=-1).sum(-1)[..., None, None]


def _flat(M: Tensor) -> Tensor:
    return M.reshape(-1, *M.shape[-2:])


class _Polar(torch.autograd.Function):
    """W -> U, and what its derivatives need as constants."""

    @staticmethod
    def forward(
        W: Tensor, eps: float, relative: bool, dtype: torch.dtype
    ) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
        found = factors(with_eps_below(_flat(W), eps, relative), W.shape[-2])
        batch = W.shape[:-2]
        U, T, H, size = (t.reshape(*batch, *t.shape[-2:]) for t in found)
        return _distinct(U.to(dtype), U), U, T, H, size

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        W, eps, ctx.relative, ctx.dtype = inputs
        _, U, T, H, size = output
        ctx.eps = eps
        ctx.mark_non_differentiable(U, T, H, size)
        ctx.save_for_backward(W, U, T, H, size)
        ctx.save_for_forward(W, U, T, H, size)

    @staticmethod
    def backward(ctx: Any, grad_U: Tensor, *_: Any) -> Any:
        W, *rest = ctx.saved_tensors
        found = Factors(*rest)
        D = grad_U.to(torch.float64)
        if not torch.is_grad_enabled():
            weight = ctx.eps**2 / W.shape[-1] if ctx.relative else None
            flat = gradient(_flat(D), Factors(*map(_flat, found)), weight)
            return flat.reshape(D.shape).to(W.dtype), None, None, None
        return _gradient_of(W, D, found, ctx.eps, ctx.relative).to(W.dtype), None, None, None

    @staticmethod
    def jvp(ctx: Any, dW: Tensor, *_: Any) -> Any:
        W, *rest = ctx.saved_tensors
        found = Factors(*rest)
        weight = ctx.eps**2 / W.shape[-1] if ctx.relative else None
        A, H, G = _roots(W, found, weight, ctx.eps)
        dA = dW.to(torch.float64)
        dM = A.mT @ dA
        dM = dM + dM.mT
        if weight is not None:
            dM = dM + weight * _trace(dM) * _eye_like(dM)
        # From U H = W follows dU = (dW - U dH) G, and dH solves H dH + dH H = dM.
        dU = (dA - A @ G @ _solve(H, dM, found.size)) @ G
        return dU.to(ctx.dtype), None, None, None, None

    @staticmethod
    def vmap(info: Any, in_dims: Any, W: Tensor, *rest: Any) -> Any:
        function: Any = _Polar
        return function.apply(W.movedim(in_dims[0], 0), *rest), (0, 0, 0, 0, 0)


def _distinct(cast: Tensor, original: Tensor) -> Tensor:
    # A cast to the type that it has already gives the tensor itself, and two outputs must be two.
    return cast.clone() if cast is original else cast


def _eye_like(M: Tensor) -> Tensor:
    return torch.eye(M.shape[-1], dtype=M.dtype, device=M.device)


# Functions of M and H: see Note [Closed under differentiation, by products].


def _roots(
    W: Tensor, found: Factors, weight: float | None, eps: float
) -> tuple[Tensor, Tensor, Tensor]:
    """W in float64, H and G, the latter two as differentiable functions of W."""
    root: Any = _Root
    inverse: Any = _Inverse
    A = W.to(torch.float64)
    M = A.mT @ A
    shift = eps * eps if weight is None else weight * _trace(M)
    M = M + shift * _eye_like(M)
    unit = found.size.sqrt()
    H = root.apply(M, found.H * unit, found.size)
    return A, H, inverse.apply(H, found.T / unit)


def _solve(H: Tensor, C: Tensor, size: Tensor) -> Tensor:
    function: Any = _Lyapunov
    X: Tensor = function.apply(H, C, size)
    return X


class _Root(torch.autograd.Function):
    """M -> H = M^(1/2), whose value is known."""

    generate_vmap_rule = True

    @staticmethod
    def forward(M: Tensor, H: Tensor, size: Tensor) -> Tensor:
        return H.clone()

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Tensor) -> None:
        ctx.save_for_backward(output, inputs[2])
        ctx.save_for_forward(output, inputs[2])

    @staticmethod
    def backward(ctx: Any, grad_H: Tensor) -> Any:
        H, size = ctx.saved_tensors
        return _solve(H, grad_H, size), None, None

    @staticmethod
    def jvp(ctx: Any, dM: Tensor, *_: Any) -> Any:
        H, size = ctx.saved_tensors
        return _solve(H, dM, size)


class _Inverse(torch.autograd.Function):
    """H -> G = H⁻¹, whose value is known."""

    generate_vmap_rule = True

    @staticmethod
    def forward(H: Tensor, G: Tensor) -> Tensor:
        return G.clone()

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Tensor) -> None:
        ctx.save_for_backward(output)
        ctx.save_for_forward(output)

    @staticmethod
    def backward(ctx: Any, grad_G: Tensor) -> Any:
        (G,) = ctx.saved_tensors
        return -(G.mT @ grad_G @ G.mT), None

    @staticmethod
    def jvp(ctx: Any, dH: Tensor, *_: Any) -> Any:
        (G,) = ctx.saved_tensors
        return -(G @ dH @ G)


class _Lyapunov(torch.autograd.Function):
    """H, C -> the X with H X + X H = C; M's norm, ``size``, is the square of H's unit."""

    generate_vmap_rule = True

    @staticmethod
    def forward(H: Tensor, C: Tensor, size: Tensor) -> Tensor:
        unit = size.sqrt()
        X = lyapunov.solve(_flat(H / unit), _flat(C / unit))
        return X.reshape(C.shape)

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Tensor) -> None:
        H, _, size = inputs
        ctx.save_for_backward(H, output, size)
        ctx.save_for_forward(H, output, size)

    @staticmethod
    def backward(ctx: Any, grad_X: Tensor) -> Any:
        # dX solves H dX + dX H = dC - dH X - X dH, and the solution is self-adjoint in its right
        # side.
        H, X, size = ctx.saved_tensors
        grad_C = _solve(H, grad_X, size)
        return -(grad_C @ X.mT + X.mT @ grad_C), grad_C, None

    @staticmethod
    def jvp(ctx: Any, dH: Tensor | None, dC: Tensor | None, *_: Any) -> Any:
        H, X, size = ctx.saved_tensors
        right = torch.zeros_like(X) if dC is None else dC
        if dH is not None:
            right = right - dH @ X - X @ dH
        return _solve(H, right, size)
