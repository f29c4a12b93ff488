"""W -> U = W (WᵀW + ε²I)^(-1/2), with exact derivatives of every order (paper 2.2 and 2.3).

The paper's letters: ``M = WᵀW + ε²I``, ``G = M^(-1/2)``, ``U = W G``; ``H = M^(1/2)`` as in the
correction of Eq. 11. ``V`` and ``s`` are M's eigenvectors and the roots of its eigenvalues, so
that ``H = V diag(s) Vᵀ``.

Note [The corrected Eq. 11]
    The paper's Eq. 11, dG = -1/2 M^(-3/4) dM M^(-3/4), holds only where dM commutes with M. From
    H H = M follows H dH + dH H = dM, a Lyapunov equation, and from G = H^(-1) follows
    dG = -G dH G. In the eigenbasis of M that reads dG_ij = -dM_ij / (s_i s_j (s_i + s_j)). The
    denominators are sums: repeated singular values of W are no special case, as they are for
    automatic differentiation through `eigh` or `svd`, whose 1/(λ_i - λ_j) gives NaN there.

Note [Closed under differentiation]
    The derivative of U needs G and `_Lyapunov`; that of G only `_Lyapunov`; that of `_Lyapunov`
    only itself. All take M as the variable they depend on, and V and s as constants that merely
    make the solution cheap. So every order of derivative, backward or forward, is exact, and none
    goes through a derivative of the decomposition.

Note [Float64 inside]
    Forming WᵀW squares W's condition number, so in float32 the Gram matrix of a W of condition 10³
    has lost all digits of its smallest direction. M is small; it and all that follows from it are
    float64, and only the finished U is cast. The products of tall matrices are float32 where W is
    well-conditioned enough for that to cost nothing.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.autograd import forward_ad

from .compiled.polar import is_small, small_polar, small_polar_grad
from .dtypes import cast, check_floating, has_values, in_transform, no_autocast
from .eps import EpsMode, check_eps
from .errors import ProjectionError, ProjectionValueError
from .spectrum import decompose, float32_suffices, gram


def polar(
    W: Tensor,
    eps: float | None = None,
    *,
    eps_mode: EpsMode = "absolute",
    dtype: torch.dtype | None = None,
    name: str = "W",
) -> Tensor:
    """The projection matrix ``U = W (WᵀW + ε²I)^(-1/2)`` of Eq. 3.

    >>> W = torch.randn(12, 6)
    >>> U = polar(W)
    >>> bool(torch.allclose(U.T @ U, torch.eye(6), atol=1e-4))
    True

    Args:
        W: ``(..., p, q)`` with ``q <= p``; leading axes are batch axes.
        eps: the paper's ε (ε² is added). Default 1e-3 (absolute) or 1e-5 (relative).
        eps_mode: ``"absolute"`` adds ε², as the paper does; ``"relative"`` adds ε² times the mean
            square of W's singular values, tr(WᵀW)/q, so that U does not depend on W's scale.
        dtype: the type of U; default that of W. Whatever it is, U is cast to it at the end only.
        name: what an error calls W.

    The singular values of U are ``σ / sqrt(σ² + ε²)`` for those of W, σ: U is orthonormal up to
    ε²/(σ² + ε²).
    """
    eps = check_eps(eps, eps_mode)
    check_floating(W, name)
    p, q = W.shape[-2:] if W.ndim >= 2 else (0, 0)
    if not 1 <= q <= p:
        raise ProjectionValueError(
            f"Expected {name} of shape (..., p, q) with 1 <= q <= p, got {tuple(W.shape)}."
        )
    # Dynamo refuses a Function that defines jvp, so it gets the ones without; and in forward mode
    # it would drop the rule in silence and give a wrong tangent (pytorch/pytorch#192985).
    if torch.compiler.is_compiling() and forward_ad._current_level >= 0:
        raise ProjectionError(
            "torch.func.jvp inside torch.compile is not supported here: call jvp outside of the "
            "compiled function."
        )
    options = (eps, eps_mode == "relative", dtype or W.dtype, name)
    usual: Any = _Polar
    transformed: Any = _PolarTransformed
    with no_autocast(W):
        U: Tensor
        if torch.compiler.is_compiling() or not in_transform(W):
            U = usual.apply(W, *options)
        else:
            U = transformed.apply(W, *options)[0]
    return U


# Values: what the functions below return, without any derivative.


def polar_values(
    W: Tensor, eps: float, relative: bool, dtype: torch.dtype, name: str
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """U, G, V and s."""
    if is_small(W) and dtype != torch.float64:
        found = small_polar(W, eps, relative)
        if found is not None:
            return cast(found[0], dtype), *found[1:]
    A = W.to(_work_dtype(W))
    M = gram(A)
    diagonal = M.diagonal(dim1=-2, dim2=-1)
    shift = eps * eps * (diagonal.mean(-1, keepdim=True) if relative else 1.0)
    diagonal.add_(shift)
    V, s, G, AV = decompose(M, A, shift, exact=W.dtype == torch.float64, name=name)
    if AV is not None:
        return ((AV / s[..., None, :]) @ V.mT).to(dtype), G, V, s
    if W.dtype == torch.float32 and dtype != torch.float64 and float32_suffices(s):
        A = W
    return (A @ G.to(A.dtype)).to(dtype), G, V, s


def polar_grad_values(
    W: Tensor, grad_U: Tensor, G: Tensor, V: Tensor, s: Tensor, eps: float, relative: bool
) -> Tensor:
    """dL/dW from dL/dU."""
    if is_small(W):
        return small_polar_grad(W, grad_U, G, V, s, eps, relative)
    A = W if W.dtype == torch.float32 and float32_suffices(s) else W.to(G.dtype)
    G, V, s = G.to(A.dtype), V.to(A.dtype), s.to(A.dtype)
    grad_U = grad_U.to(A.dtype)
    grad_G = A.mT @ grad_U
    S = _through_gram(-_Lyapunov.forward(G, G @ grad_G @ G, V, s), eps, relative)
    return (grad_U @ G).add_(A @ S).to(W.dtype)


def _work_dtype(W: Tensor) -> torch.dtype:
    # Apple's GPU has no float64.
    return torch.float32 if W.device.type == "mps" else torch.float64


# Operators of the same: opaque to compilers, and with shapes for tensors that have no values.

_polar_op = torch.library.custom_op("tensorprojection::polar", polar_values, mutates_args=())
_polar_grad_op = torch.library.custom_op(
    "tensorprojection::polar_grad", polar_grad_values, mutates_args=()
)


@_polar_op.register_fake
def _(W: Tensor, eps: float, relative: bool, dtype: torch.dtype, name: str) -> Any:
    M = W.new_empty((*W.shape[:-2], W.shape[-1], W.shape[-1]), dtype=_work_dtype(W))
    return W.new_empty(W.shape, dtype=dtype), M, torch.empty_like(M), M.new_empty(M.shape[:-1])


@_polar_grad_op.register_fake
def _(W: Tensor, *_: Any) -> Tensor:
    return torch.empty_like(W)


def _is_opaque(W: Tensor) -> bool:
    return torch.compiler.is_compiling() or not has_values(W)


# Functions of W and M: see Note [Closed under differentiation].


def _call(function: type[torch.autograd.Function], *args: Any) -> Any:
    """Applies the function; where no compiler looks on, the one that knows forward mode."""
    chosen: Any = function if torch.compiler.is_compiling() else _FORWARD[function]
    return chosen.apply(*args)


def _M(W: Tensor, eps: float, relative: bool) -> Tensor:
    """M = WᵀW + ε²I (Eq. 3), as a differentiable function of W."""
    M = W.mT @ W
    shift = eps * eps * (_trace(M) / M.shape[-1] if relative else 1.0)
    return M + shift * torch.eye(M.shape[-1], dtype=M.dtype, device=M.device)


def _through_gram(grad_M: Tensor, eps: float, relative: bool) -> Tensor:
    """The S with dL/dW = W S where L depends on W through M (Eq. 12, and the relative shift)."""
    S = grad_M + grad_M.mT
    if not relative:
        return S
    q = S.shape[-1]
    return S + (eps * eps / q) * _trace(S) * torch.eye(q, dtype=S.dtype, device=S.device)


def _trace(M: Tensor) -> Tensor:
    return M.diagonal(dim1=-2, dim2=-1).sum(-1)[..., None, None]


class _Polar(torch.autograd.Function):
    """W -> U, for all who differentiate backward."""

    @staticmethod
    def forward(
        ctx: Any, W: Tensor, eps: float, relative: bool, dtype: torch.dtype, name: str
    ) -> Tensor:
        values: Any = _polar_op if _is_opaque(W) else polar_values
        U, G, V, s = values(W, eps, relative, dtype, name)
        ctx.eps, ctx.relative = eps, relative
        ctx.save_for_backward(W, G, V, s)
        result: Tensor = U
        return result

    @staticmethod
    def backward(ctx: Any, grad_U: Tensor) -> Any:
        return _polar_backward(ctx, grad_U), None, None, None, None


def _polar_backward(ctx: Any, grad_U: Tensor) -> Tensor:
    """dL/dW from dL/dU (Eq. 8 to 12, the 11th corrected)."""
    with no_autocast(grad_U):  # a backward pass may be called where autocast is on
        return _polar_gradient(ctx, grad_U)


def _polar_gradient(ctx: Any, grad_U: Tensor) -> Tensor:
    W, G, V, s = ctx.saved_tensors
    if not torch.is_grad_enabled():
        values: Any = _polar_grad_op if _is_opaque(W) else polar_grad_values
        result: Tensor = values(W, grad_U, G, V, s, ctx.eps, ctx.relative)
        return result
    # The same once more, as a differentiable function of W and grad_U.
    A, grad_U = W.to(G.dtype), grad_U.to(G.dtype)
    M = _M(A, ctx.eps, ctx.relative)
    G = _call(_InverseSqrt, M, V, s)
    grad_M = -_call(_Lyapunov, M, G @ (A.mT @ grad_U) @ G, V, s)
    grad_A: Tensor = grad_U @ G + A @ _through_gram(grad_M, ctx.eps, ctx.relative)
    return grad_A.to(W.dtype)


class _PolarTransformed(torch.autograd.Function):
    """W -> U, and G, V and s as constants: for torch.func's transforms and forward mode.

    Their way to write a function costs some 50 µs a call more, so the usual way has its own.
    """

    @staticmethod
    def forward(
        W: Tensor, eps: float, relative: bool, dtype: torch.dtype, name: str
    ) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        return polar_values(W, eps, relative, dtype, name)

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        W, ctx.eps, ctx.relative, ctx.dtype, _ = inputs
        _, G, V, s = output
        ctx.mark_non_differentiable(G, V, s)
        ctx.save_for_backward(W, G, V, s)
        ctx.save_for_forward(W, G, V, s)

    @staticmethod
    def backward(ctx: Any, grad_U: Tensor, *_: Any) -> Any:
        return _polar_backward(ctx, grad_U), None, None, None, None

    @staticmethod
    def jvp(ctx: Any, dW: Tensor, *_: Any) -> Any:
        W, G, V, s = ctx.saved_tensors
        A, dA = W.to(G.dtype), dW.to(G.dtype)
        M = _M(A, ctx.eps, ctx.relative)
        G = _call(_InverseSqrt, M, V, s)
        dM = _through_gram(A.mT @ dA, ctx.eps, ctx.relative)
        dG = -_call(_Lyapunov, M, G @ dM @ G, V, s)
        return (dA @ G + A @ dG).to(ctx.dtype), None, None, None

    @staticmethod
    def vmap(info: Any, in_dims: Any, W: Tensor, *rest: Any) -> Any:
        function: Any = _PolarTransformed
        return function.apply(W.movedim(in_dims[0], 0), *rest), (0, 0, 0, 0)


class _InverseSqrt(torch.autograd.Function):
    """M -> G = M^(-1/2) = V diag(1/s) Vᵀ; see Note [The corrected Eq. 11]."""

    generate_vmap_rule = True

    @staticmethod
    def forward(M: Tensor, V: Tensor, s: Tensor) -> Tensor:
        return (V / s[..., None, :]) @ V.mT

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Tensor) -> None:
        M, V, s = inputs
        ctx.save_for_backward(M, output, V, s)
        ctx.save_for_forward(M, output, V, s)

    @staticmethod
    def backward(ctx: Any, grad_G: Tensor) -> Any:
        M, G, V, s = ctx.saved_tensors
        return -_call(_Lyapunov, M, G @ grad_G @ G, V, s), None, None


class _InverseSqrtForward(_InverseSqrt):
    """With the rule for forward mode."""

    @staticmethod
    def jvp(ctx: Any, dM: Tensor, *_: Any) -> Any:
        M, G, V, s = ctx.saved_tensors
        return -_call(_Lyapunov, M, G @ dM @ G, V, s)


class _Lyapunov(torch.autograd.Function):
    """M, C -> the X with H X + X H = C, where H = M^(1/2) = V diag(s) Vᵀ."""

    generate_vmap_rule = True

    @staticmethod
    def forward(M: Tensor, C: Tensor, V: Tensor, s: Tensor) -> Tensor:
        return V @ ((V.mT @ C @ V) / (s[..., :, None] + s[..., None, :])) @ V.mT

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Tensor) -> None:
        M, _, V, s = inputs
        ctx.save_for_backward(M, output, V, s)
        ctx.save_for_forward(M, output, V, s)

    @staticmethod
    def backward(ctx: Any, grad_X: Tensor) -> Any:
        # dX solves H dX + dX H = dC - dH X - X dH, and dH solves H dH + dH H = dM; the solution
        # is self-adjoint in its right-hand side.
        M, X, V, s = ctx.saved_tensors
        grad_C = _call(_Lyapunov, M, grad_X, V, s)
        grad_H = -(grad_C @ X.mT + X.mT @ grad_C)
        return _call(_Lyapunov, M, grad_H, V, s), grad_C, None, None


class _LyapunovForward(_Lyapunov):
    """With the rule for forward mode."""

    @staticmethod
    def jvp(ctx: Any, dM: Tensor | None, dC: Tensor | None, *_: Any) -> Any:
        M, X, V, s = ctx.saved_tensors
        right = torch.zeros_like(X) if dC is None else dC
        if dM is not None:
            dH = _call(_Lyapunov, M, dM, V, s)
            right = right - dH @ X - X @ dH
        return _call(_Lyapunov, M, right, V, s)


_FORWARD: dict[Any, Any] = {
    _InverseSqrt: _InverseSqrtForward,
    _Lyapunov: _LyapunovForward,
}
