"""W -> U = W (WᵀW + ε²I)^(-1/2), with exact derivatives of every order (paper 2.2 and 2.3).

The paper's letters: ``M = WᵀW + ε²I``, ``G = M^(-1/2)``, ``U = W G``; ``H = M^(1/2)`` as in the
correction of Eq. 11. ``V`` and ``s`` are M's eigenvectors and the roots of its eigenvalues, so
that ``H = V diag(s) Vᵀ``.

Note [The corrected Eq. 11]
    The paper's Eq. 11, dG = -1/2 M^(-3/4) dM M^(-3/4), holds only if dM commutes with M. From
    H H = M follows H dH + dH H = dM, a Lyapunov equation, and from G = H^(-1) follows
    dG = -G dH G. In the eigenbasis of M that reads dG_ij = -dM_ij / (s_i s_j (s_i + s_j)). The
    denominators are sums: repeated singular values of W are not a special case, as they are for
    automatic differentiation through `eigh` or `svd`, whose 1/(λ_i - λ_j) gives NaN there.

Note [Closed under differentiation]
    The derivative of U needs G and `Lyapunov`; that of G only `Lyapunov`; that of `Lyapunov` only
    itself. Both take M as the variable they depend on, and what is known of M's roots as constants
    that merely make the solution cheap. So every order of derivative, backward or forward, is
    exact, and none goes through the derivative of a decomposition or of an iteration.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.autograd import Function

from . import matmul_only, spectrum
from .dtypes import has_float64, no_autocast
from .kernels import calls
from .layout import Matrices
from .spectrum import Spectrum, trace
from .tracing import (
    Strategy,
    constant_behind,
    constant_to_dynamo,
    differentiable,
    is_exporting,
    register,
    strategy,
    without_modes,
)


def projections(
    Ws: Matrices,
    eps: Sequence[float],
    relative: bool,
    dtype: torch.dtype,
    *,
    constant: bool = False,
) -> list[Any]:
    """Return U of each W, None for None, all in one call.

    On an accelerator, U comes from products of matrices only and nothing synchronizes. A W of
    type float64, and any W on a device without float64, is decomposed on the host.

    Args:
        constant: torch.export may take U for a constant of the program.
    """
    found = [(W, e) for W, e in zip(Ws, eps, strict=True) if W is not None]
    if not found:
        return [None] * len(Ws)
    present, by_W = zip(*found, strict=True)
    Us: Sequence[Tensor]
    if constant and is_exporting():
        let_dynamo_export()
        Us = exported_projections(by_W, relative, dtype, *present)
    elif not all(map(_on_own_device, present)):
        # The copies are differentiable. No float64 crosses to a device without it.
        narrow = dtype if has_float64(present[0]) or dtype != torch.float64 else torch.float32
        on_host = projections([W.cpu() for W in present], by_W, relative, narrow)
        Us = [U.to(W.device) for U, W in zip(on_host, present, strict=True)]
    else:
        with no_autocast(present[0]):
            how = strategy(*present)
            if how is Strategy.PLAIN:
                Us = [matmul_only.polar_plain(W, e, relative, dtype) for W, e in found]
            else:
                Us = _polar.form(how).apply(by_W, relative, dtype, *present)
    each = iter(Us)
    return [None if W is None else next(each) for W in Ws]


def exported_projections(
    eps: tuple[float, ...], relative: bool, dtype: torch.dtype, *Ws: Tensor
) -> tuple[Tensor, ...]:
    """Return the U's inside of torch.export, as constants of the graph if possible.

    If the fake tensor W stands for a parameter that the traced program does not write to, U is
    computed from the parameter's values. Otherwise U is computed in the graph, from W.
    """
    from torch.fx.experimental.proxy_tensor import get_proxy_mode

    if get_proxy_mode() is None:  # Dynamo asks for shapes and types; nothing is recorded yet
        return tuple(W.new_empty(W.shape, dtype=dtype) for W in Ws)
    Us = []
    for W, e in zip(Ws, eps, strict=True):
        real = constant_behind(W)
        if real is None:
            Us.append(matmul_only.polar_plain(W, e, relative, dtype))
            continue
        with without_modes():
            real = real.detach() if _on_own_device(real) else real.detach().cpu()
            Us.append(Polar.forward((e,), relative, dtype, real)[0].to(W.device))
    return tuple(Us)


@constant_to_dynamo
def let_dynamo_export() -> None:
    """Have Dynamo, which a strict torch.export uses, call `exported_projections` with fake tensors.

    Only the exporter's next stage sees whether W is a parameter, and whether it was written to.
    """
    torch.compiler.allow_in_graph(exported_projections)


def _on_own_device(W: Tensor) -> bool:
    """Return True if U of such a W is computed on the device where W is."""
    if W.device.type in ("cpu", "meta"):
        return True
    return has_float64(W) and W.dtype != torch.float64


def _is_on_host(Ws: Sequence[Tensor]) -> bool:
    return Ws[0].device.type in ("cpu", "meta")


class Polar(Function):
    """W_1, W_2, … -> U_1, U_2, …, followed by constants that the derivatives need."""

    @staticmethod
    def forward(
        eps: tuple[float, ...], relative: bool, dtype: torch.dtype, *Ws: Tensor
    ) -> tuple[Tensor, ...]:
        if _is_on_host(Ws):
            return tuple(polar_op(Ws, eps, relative, dtype))
        return matmul_only.polar_values(Ws, eps, relative, dtype)

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        ctx.eps, ctx.relative, ctx.dtype, *Ws = inputs
        constants = output[len(Ws) :]
        ctx.mark_non_differentiable(*constants)
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(*Ws, *constants)
        ctx.save_for_forward(*Ws, *constants)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor | None) -> Any:
        n, saved = len(ctx.needs_input_grad) - 3, ctx.saved_tensors
        Ws, constants = saved[:n], saved[n:]
        wanted = [k for k in range(n) if ctx.needs_input_grad[3 + k] and grads[k] is not None]
        result: list[Tensor | None] = [None] * n
        given: list[Any] = [grads[k] for k in wanted]
        if not wanted:
            return None, None, None, *result
        with no_autocast(given[0]):  # a backward pass may run where autocast is on
            if torch.is_grad_enabled() or strategy(*given) is not Strategy.QUICK:
                found = [
                    _gradient(Ws[k], D, _roots(k, Ws, constants), ctx.eps[k], ctx.relative)
                    for k, D in zip(wanted, given, strict=True)
                ]
            elif _is_on_host(Ws):
                some = [Ws[k] for k in wanted], given, [constants[k].double() for k in wanted]
                found = polar_backward_op(*some, [ctx.eps[k] for k in wanted], ctx.relative)
            else:
                # One W of a stack costs as much as the whole stack.
                pairs = zip(Ws, grads[:n], strict=True)
                every = [torch.zeros_like(W) if g is None else g for W, g in pairs]
                all_found = matmul_only.polar_gradients(Ws, every, constants, ctx.eps, ctx.relative)
                found = [all_found[k] for k in wanted]
        for k, grad_W in zip(wanted, found, strict=True):
            result[k] = grad_W
        return None, None, None, *result

    @staticmethod
    def jvp(ctx: Any, *tangents: Any) -> Any:
        n, saved = len(tangents) - 3, ctx.saved_tensors
        Ws, constants = saved[:n], saved[n:]
        dUs = [
            torch.zeros_like(Ws[k], dtype=ctx.dtype)
            if dW is None
            else _tangent(Ws[k], dW, _roots(k, Ws, constants), ctx.eps[k], ctx.relative).to(
                ctx.dtype
            )
            for k, dW in enumerate(tangents[3:])
        ]
        return *dUs, *[None] * len(constants)

    @staticmethod
    def vmap(
        info: Any, in_dims: Any, eps: Any, relative: bool, dtype: torch.dtype, *Ws: Tensor
    ) -> Any:
        dims = in_dims[3:]
        moved = [W if d is None else W.movedim(d, 0) for W, d in zip(Ws, dims, strict=True)]
        full: Any = Polar
        outputs = full.apply(eps, relative, dtype, *moved)
        out = [None if d is None else 0 for d in dims]
        each = (len(outputs) - len(Ws)) // len(Ws)  # constants of one W: batches are not stacked
        return outputs, (*out, *(d for d in out for _ in range(each)))


# U's derivatives as differentiable functions: see Note [Closed under differentiation].


def _roots(k: int, Ws: Sequence[Tensor], constants: Sequence[Tensor]) -> tuple[Tensor, ...]:
    """Return what is known of the roots of M for the W of that number."""
    if _is_on_host(Ws):
        return Spectrum.unpacked(constants[k].double())
    return matmul_only.roots_of(k, Ws, constants)


def _gradient(
    W: Tensor, D: Tensor, roots: tuple[Tensor, ...], eps: float, relative: bool
) -> Tensor:
    """Return dL/dW from D = dL/dU (Eq. 8 to 12, the 11th corrected)."""
    A, D = W.to(torch.float64), D.to(torch.float64)
    M = _M(A, eps, relative)
    G = _inverse_sqrt(M, *roots)
    grad_M = -_lyapunov(M, G @ (A.mT @ D) @ G, *roots)
    grad_A = D @ G + A @ _through_gram(grad_M, eps, relative)
    result: Tensor = grad_A.to(W.dtype)
    return result


def _tangent(
    W: Tensor, dW: Tensor, roots: tuple[Tensor, ...], eps: float, relative: bool
) -> Tensor:
    """Return dU from dW: from U H = W follows dU = (dW - U dH) G, where H dH + dH H = dM."""
    A, dA = W.to(torch.float64), dW.to(torch.float64)
    M = _M(A, eps, relative)
    G = _inverse_sqrt(M, *roots)
    dM = _through_gram(A.mT @ dA, eps, relative)
    dU: Tensor = (dA - A @ G @ _lyapunov(M, dM, *roots)) @ G
    return dU


def _through_gram(X: Tensor, eps: float, relative: bool) -> Tensor:
    """Return X + Xᵀ, and what a relative ε adds: dM for X = WᵀdW; dL/dW = W S for X = dL/dM."""
    S = X + X.mT
    if not relative:
        return S
    q = S.shape[-1]
    return S + (eps * eps / q) * trace(S) * torch.eye(q, dtype=S.dtype, device=S.device)


def _M(W: Tensor, eps: float, relative: bool) -> Tensor:
    """Return M = WᵀW + ε²I (Eq. 3)."""
    M = W.mT @ W
    shift = eps * eps * (trace(M) / M.shape[-1] if relative else 1.0)
    return M + shift * torch.eye(M.shape[-1], dtype=M.dtype, device=M.device)


def _solve(C: Tensor, roots: Sequence[Tensor]) -> Tensor:
    """Return the X with H X + X H = C."""
    if roots[2].ndim < roots[0].ndim:  # G, V and s
        return spectrum.lyapunov(C, roots[1], roots[2])
    _, H, norm = roots  # T, H and the norm of M
    unit = norm.sqrt()
    q = C.shape[-1]
    shape = torch.broadcast_shapes(C.shape, H.shape)
    X = matmul_only.lyapunov(
        (C / unit).expand(shape).reshape(-1, q, q), H.expand(shape).reshape(-1, q, q)
    )
    return X.reshape(shape)


class InverseSqrt(Function):
    """M -> G = M^(-1/2), whose value is known from the roots."""

    generate_vmap_rule = True

    @staticmethod
    def forward(M: Tensor, *roots: Tensor) -> Tensor:
        if roots[2].ndim < roots[0].ndim:
            return roots[0].clone()
        return roots[0] / roots[2].sqrt()

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Tensor) -> None:
        M, *roots = inputs
        ctx.save_for_backward(M, output, *roots)
        ctx.save_for_forward(M, output, *roots)

    @staticmethod
    def backward(ctx: Any, grad_G: Tensor) -> Any:
        M, G, *roots = ctx.saved_tensors
        return -_lyapunov(M, G @ grad_G @ G, *roots), None, None, None

    @staticmethod
    def jvp(ctx: Any, dM: Tensor, *_: Any) -> Any:
        M, G, *roots = ctx.saved_tensors
        return -_lyapunov(M, G @ dM @ G, *roots)


class Lyapunov(Function):
    """M, C -> the X with H X + X H = C, where H = M^(1/2)."""

    generate_vmap_rule = True

    @staticmethod
    def forward(M: Tensor, C: Tensor, *roots: Tensor) -> Tensor:
        return _solve(C, roots)

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Tensor) -> None:
        M, _, *roots = inputs
        ctx.save_for_backward(M, output, *roots)
        ctx.save_for_forward(M, output, *roots)

    @staticmethod
    def backward(ctx: Any, grad_X: Tensor) -> Any:
        # dX solves H dX + dX H = dC - dH X - X dH, and dH solves H dH + dH H = dM; the solution
        # is self-adjoint in its right-hand side.
        M, X, *roots = ctx.saved_tensors
        grad_C = _lyapunov(M, grad_X, *roots)
        grad_H = -(grad_C @ X.mT + X.mT @ grad_C)
        return _lyapunov(M, grad_H, *roots), grad_C, None, None, None

    @staticmethod
    def jvp(ctx: Any, dM: Tensor | None, dC: Tensor | None, *_: Any) -> Any:
        M, X, *roots = ctx.saved_tensors
        right = torch.zeros_like(X) if dC is None else dC
        if dM is not None:
            dH = _lyapunov(M, dM, *roots)
            right = right - dH @ X - X @ dH
        return _lyapunov(M, right, *roots)


_polar = differentiable(Polar)
_inverse_sqrt = differentiable(InverseSqrt)
_lyapunov = differentiable(Lyapunov)


# Values on the CPU, as custom ops: with the compiled kernels, else with torch's operations.


def _fake_polar(Ws: Sequence[Tensor], eps: Any, relative: bool, dtype: torch.dtype) -> list[Tensor]:
    spectra = [
        W.new_empty((*W.shape[:-2], 2 * W.shape[-1] + 1, W.shape[-1]), dtype=torch.float64)
        for W in Ws
    ]
    return [*(W.new_empty(W.shape, dtype=dtype) for W in Ws), *spectra]


def _fake_polar_backward(Ws: Sequence[Tensor], *_: Any) -> list[Tensor]:
    return [W.new_empty(W.shape) for W in Ws]


polar_op = register(
    "polar",
    "(Tensor[] Ws, float[] eps, bool relative, ScalarType dtype) -> Tensor[]",
    calls.polar,
    _fake_polar,
)
polar_backward_op = register(
    "polar_backward",
    "(Tensor[] Ws, Tensor[] grads, Tensor[] spectra, float[] eps, bool relative) -> Tensor[]",
    calls.polar_backward,
    _fake_polar_backward,
)
