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
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from ..engine.device.polar import polar_by_products
from ..engine.device.unrolled import polar_unrolled
from ..engine.dispatch import by_products, engine
from ..engine.dtypes import check_floating, has_float64, in_float64, no_autocast
from ..engine.interface import Polar
from ..engine.operators import WAITS, opaque
from ..engine.saved import save, saved
from ..engine.torch_engine import lyapunov, through_gram, trace
from ..engine.tracing import (
    Onlooker,
    compiles_forward_mode,
    ignores_rules,
    in_compiler,
    in_transform,
    is_opaque,
    onlooker,
)
from ..eps import EpsMode, check_eps
from ..errors import ProjectionError, ProjectionValueError


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

    On an accelerator U is made by products alone, and nothing waits for the device; a W of type
    float64 is decomposed on the host, and so is any W on a device without float64 (Apple's), where
    U is float32 at most. Off the CPU, a W that has diverged gives NaN: only a layer reports it.
    """
    eps = check_eps(eps, eps_mode)
    check_floating(W, name)
    p, q = W.shape[-2:] if W.ndim >= 2 else (0, 0)
    if not 1 <= q <= p:
        raise ProjectionValueError(
            f"Expected {name} of shape (..., p, q) with 1 <= q <= p, got {tuple(W.shape)}."
        )
    if compiles_forward_mode():
        # Dynamo silently drops a Function's rule for it (pytorch/pytorch#192985), and has crashed
        # the process on ordinary operations.
        raise ProjectionError(
            "torch.func.jvp inside torch.compile is not supported here: call jvp outside of the "
            "compiled function."
        )
    dtype = dtype or W.dtype
    if not has_float64(W):
        # All of it on the host, whose copies autograd knows; no float64 crosses.
        narrow = torch.float32 if dtype == torch.float64 else dtype
        return polar(W.cpu(), eps, eps_mode=eps_mode, dtype=narrow, name=name).to(W.device)
    options = (eps, eps_mode == "relative", dtype)
    usual: Any = _Polar
    transformed: Any = _PolarTransformed
    with no_autocast(W):
        U: Tensor
        products, looks_on = by_products(W), onlooker(W)
        if looks_on != Onlooker.TRANSFORM and not products:  # Dynamo has a copy of it
            U = usual.apply(W, *options, name)
        elif ignores_rules(W):
            U = polar_unrolled(W, *options)  # see Note [Ordinary operations]
        elif products:
            U = polar_by_products(W, *options)
        else:
            U = transformed.apply(W, *options, name)[0]
    return U


# Values: what the functions below return, without any derivative. As operators they are opaque to
# compilers and tracers, and have shapes for tensors that have no values.


def _polar_values(
    W: Tensor, eps: float, relative: bool, dtype: torch.dtype, name: str
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """U, G, V and s."""
    return engine().polar(W, eps, relative, dtype, name)


def _polar_grad_values(
    W: Tensor, grad_U: Tensor, G: Tensor, V: Tensor, s: Tensor, eps: float, relative: bool
) -> Tensor:
    """dL/dW from dL/dU."""
    return engine().polar_grad(W, grad_U, Polar(W, G, V, s), eps, relative)


def _fake_polar(W: Tensor, eps: float, relative: bool, dtype: torch.dtype, name: str) -> Any:
    M = W.new_empty((*W.shape[:-2], W.shape[-1], W.shape[-1]), dtype=torch.float64)
    return W.new_empty(W.shape, dtype=dtype), M, torch.empty_like(M), M.new_empty(M.shape[:-1])


def _fake_polar_grad(W: Tensor, *_: Any) -> Tensor:
    return W.new_empty(W.shape)


_polar_op = opaque(
    "polar",
    "(Tensor W, float eps, bool relative, ScalarType dtype, str name)"
    " -> (Tensor, Tensor, Tensor, Tensor)",
    _polar_values,
    _fake_polar,
    WAITS,
)
_polar_grad_op = opaque(
    "polar_grad",
    "(Tensor W, Tensor grad_U, Tensor G, Tensor V, Tensor s, float eps, bool relative) -> Tensor",
    _polar_grad_values,
    _fake_polar_grad,
    WAITS,
)


def polar_values(W: Tensor, eps: float, relative: bool, dtype: torch.dtype, name: str) -> Polar:
    """U, G, V and s: as one opaque operator where a tracer or compiler looks on, else directly."""
    values: Any = _polar_op if is_opaque(W) else _polar_values
    return Polar(*values(W, eps, relative, dtype, name))


def polar_by_svd(W: Tensor, eps: float, relative: bool, dtype: torch.dtype) -> Tensor:
    """U by operations that every runtime knows, for graphs that leave torch."""
    P, sigma, Vh = torch.linalg.svd(in_float64(W), full_matrices=False)
    squares = sigma.square()
    unit = squares.mean(-1, keepdim=True) if relative else 1.0
    scaled = sigma * torch.rsqrt(squares + eps * eps * unit)
    U: Tensor = ((P * scaled[..., None, :]) @ Vh).to(dtype).to(W.device)
    return U


# Functions of W and M: see Note [Closed under differentiation].


def _call(function: type[torch.autograd.Function], *args: Any) -> Any:
    """Applies the function; outside of torch.compile, its variant that supports forward mode."""
    chosen: Any = function if in_compiler() else _FORWARD[function]
    return chosen.apply(*args)


def _M(W: Tensor, eps: float, relative: bool) -> Tensor:
    """M = WᵀW + ε²I (Eq. 3), as a differentiable function of W."""
    M = W.mT @ W
    shift = eps * eps * (trace(M) / M.shape[-1] if relative else 1.0)
    return M + shift * torch.eye(M.shape[-1], dtype=M.dtype, device=M.device)


class _Polar(torch.autograd.Function):
    """W -> U, for the usual backward mode."""

    @staticmethod
    def forward(
        ctx: Any, W: Tensor, eps: float, relative: bool, dtype: torch.dtype, name: str
    ) -> Tensor:
        U, G, V, s = polar_values(W, eps, relative, dtype, name)
        ctx.eps, ctx.relative = eps, relative
        save(ctx, W, G, V, s)
        return U

    @staticmethod
    def backward(ctx: Any, grad_U: Tensor) -> Any:
        grad_W = _polar_backward(saved(ctx), grad_U, ctx.eps, ctx.relative)
        return grad_W, None, None, None, None


def _polar_backward(kept: Sequence[Tensor], grad_U: Tensor, eps: float, relative: bool) -> Tensor:
    """dL/dW from dL/dU (Eq. 8 to 12, the 11th corrected)."""
    W, G, V, s = kept
    with no_autocast(grad_U):  # a backward pass may be called where autocast is on
        if torch.is_grad_enabled() or in_transform(grad_U):
            return polar_gradient(W, grad_U, V, s, eps, relative)
        values: Any = _polar_grad_op if is_opaque(W, grad_U) else _polar_grad_values
        result: Tensor = values(W, grad_U, G, V, s, eps, relative)
        return result


def polar_gradient(
    W: Tensor, grad_U: Tensor, V: Tensor, s: Tensor, eps: float, relative: bool
) -> Tensor:
    """dL/dW from dL/dU, as a differentiable function of W and dL/dU; V and s are constants."""
    A, grad_U = W.to(V.dtype), grad_U.to(V.dtype)
    M = _M(A, eps, relative)
    G = _call(_InverseSqrt, M, V, s)
    grad_M = -_call(_Lyapunov, M, G @ (A.mT @ grad_U) @ G, V, s)
    grad_A: Tensor = grad_U @ G + A @ through_gram(grad_M, eps, relative)
    return grad_A.to(W.dtype)


class _PolarTransformed(torch.autograd.Function):
    """W -> U, and G, V and s as constants: for torch.func's transforms and forward mode.

    The form of Function that these need costs some 50 µs more per call, so `_Polar` is separate.
    """

    @staticmethod
    def forward(
        W: Tensor, eps: float, relative: bool, dtype: torch.dtype, name: str
    ) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        U, G, V, s = polar_values(W, eps, relative, dtype, name)
        return U, G, V, s

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        W, ctx.eps, ctx.relative, ctx.dtype, _ = inputs
        _, G, V, s = output
        ctx.mark_non_differentiable(G, V, s)
        ctx.save_for_backward(W, G, V, s)
        ctx.save_for_forward(W, G, V, s)

    @staticmethod
    def backward(ctx: Any, grad_U: Tensor, *_: Any) -> Any:
        grad_W = _polar_backward(ctx.saved_tensors, grad_U, ctx.eps, ctx.relative)
        return grad_W, None, None, None, None

    @staticmethod
    def jvp(ctx: Any, dW: Tensor, *_: Any) -> Any:
        W, G, V, s = ctx.saved_tensors
        A, dA = W.to(G.dtype), dW.to(G.dtype)
        M = _M(A, ctx.eps, ctx.relative)
        G = _call(_InverseSqrt, M, V, s)
        dM = through_gram(A.mT @ dA, ctx.eps, ctx.relative)
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
        return lyapunov(C, V, s)

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
