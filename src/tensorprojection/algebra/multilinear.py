"""The multilinear map itself: Z = X ×₁ U₁ᵀ ×₂ U₂ᵀ … (Eq. 1) and its transpose (Eq. 13)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from math import prod
from typing import Any

import torch
from torch import Tensor

from ..engine import torch_private
from ..engine.dispatch import engine
from ..engine.dtypes import cast, check_floating, map_dtype, no_autocast
from ..engine.layout import Matrices, inverse, memory_order, order_of_modes
from ..engine.operators import opaque
from ..engine.products import derivative_dtype
from ..engine.saved import save, saved
from ..engine.tracing import Onlooker, in_compiler, in_jit_trace, is_exported, onlooker
from ..errors import ProjectionTypeError, ProjectionValueError


def project(x: Tensor, Us: Matrices) -> Tensor:
    """``x ×₁ U₁ᵀ ×₂ U₂ᵀ …`` over the last ``len(Us)`` axes of ``x`` (Eq. 1).

    >>> x = torch.ones(300, 32, 12, 12)
    >>> U = torch.linalg.qr(torch.ones(12, 6))[0]
    >>> project(x, [None, U, U]).shape
    torch.Size([300, 32, 6, 6])

    Args:
        x: any leading axes are batch axes. Its memory format is kept.
        Us: one ``p_k × q_k`` matrix per mode, or None for a mode left alone.
    """
    return _multilinear(x, Us, transposed=False)


def back_project(z: Tensor, Us: Matrices) -> Tensor:
    """``z ×₁ U₁ ×₂ U₂ …`` over the last ``len(Us)`` axes of ``z`` (Eq. 13).

    The transpose of :func:`project`; for orthonormal U its right inverse.

    >>> U = torch.linalg.qr(torch.randn(12, 6))[0]
    >>> z = torch.randn(300, 6)
    >>> x = back_project(z, [U])
    >>> x.shape, bool(torch.allclose(project(x, [U]), z, atol=1e-5))
    (torch.Size([300, 12]), True)

    Args:
        z: any leading axes are batch axes. Its memory format is kept.
        Us: one ``p_k × q_k`` matrix per mode, or None for a mode left alone.
    """
    return _multilinear(z, Us, transposed=True)


def _multilinear(x: Tensor, Us: Matrices, *, transposed: bool) -> Tensor:
    with torch_private.without_jit_trace():
        check_floating(x, "the input")
        _check(x, Us, transposed)
    dtype = map_dtype(x)
    if all(U is None for U in Us):
        return x.to(dtype, copy=True)  # never x itself: what follows may write into it
    x = cast(x, dtype)
    matrices = [None if U is None else cast(U, dtype) for U in Us]
    with no_autocast(x):
        if _wants_plain_operations(x, matrices):
            return composed(x, matrices, transposed=transposed)
        planned: Any = _Planned
        result: Tensor = planned.apply(transposed, x, *matrices)
        return result


# Note [Two ways to the same map]
#     A planned operation is one node of autograd with a planned backward pass. It cannot be looked
#     into by an exporter, by torch.func's transforms or by forward mode; these get `composed`,
#     made of ordinary differentiable operations. So does the backward pass where it is itself to
#     be differentiated.


def times(x: Tensor, A: Tensor, axis: int) -> Tensor:
    """x multiplied by A along one axis, counted from the end; no size of x is read."""
    return (x.transpose(axis, -1) @ A).transpose(axis, -1)


def composed(x: Tensor, Us: Matrices, *, transposed: bool) -> Tensor:
    """The map as a chain of ordinary operations, in the order in which x lies in memory."""
    if in_jit_trace():  # which would take sizes for constants, or for tensors
        for k, U in enumerate(Us):
            if U is not None:
                x = times(x, U.transpose(0, 1) if transposed else U, k - len(Us))
        return x
    b = x.ndim - len(Us)
    axes = _order(x, b)
    x = x.permute(axes)
    steps = [
        (A.shape[1] / A.shape[0], axes.index(b + k), A)
        for k, A in (
            (k, U.transpose(0, 1) if transposed else U) for k, U in enumerate(Us) if U is not None
        )
    ]
    for _, axis, A in sorted(steps, key=lambda step: step[:2]):
        left, right = prod(x.shape[:axis]), prod(x.shape[axis + 1 :])
        shape = (*x.shape[:axis], A.shape[1], *x.shape[axis + 1 :])
        if right == 1:
            x = (x.reshape(left, A.shape[0]) @ A).reshape(shape)
        else:
            x = (A.transpose(0, 1) @ x.reshape(left, A.shape[0], right)).reshape(shape)
    return x.permute(inverse(axes))


def _order(x: Tensor, b: int) -> tuple[int, ...]:
    """The order in which x lies in memory, its first b axes being batch axes."""
    if is_exported():
        # A comparison of sizes would be taken for a condition on the batch.
        return order_of_modes(x.stride(), b)
    return memory_order(x, b)


def _wants_plain_operations(x: Tensor, Us: Matrices) -> bool:
    return onlooker(x, *Us) in (Onlooker.EXPORTER, Onlooker.TRANSFORM, Onlooker.TRACER)


class _Planned(torch.autograd.Function):
    """x, U_1, U_2, … -> the map, or its transpose."""

    @staticmethod
    def forward(ctx: Any, transposed: bool, x: Tensor, *Us: Tensor | None) -> Tensor:
        ctx.transposed = transposed
        save(ctx, x, *Us)
        run: Any = _map_op if in_compiler() else _map_values
        result: Tensor = run(x, list(Us), transposed, x)
        return result

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Any:
        with no_autocast(grad):  # a backward pass may be called where autocast is on
            return _Planned._gradients(ctx, grad)

    @staticmethod
    def _gradients(ctx: Any, grad: Tensor) -> Any:
        x, *Us = saved(ctx)
        if torch.is_grad_enabled() or _wants_plain_operations(grad, Us):
            return None, *map_gradients(x, grad, Us, ctx.transposed, ctx.needs_input_grad[1:])
        _, want_x, *want_Us = ctx.needs_input_grad
        if not any(want_Us):
            run_map: Any = _map_op if in_compiler() else _map_values
            return None, run_map(grad, Us, not ctx.transposed, x), *[None] * len(Us)
        run: Any = _gradients_op if in_compiler() else _gradient_values
        grad_x, *grad_Us = run(x, grad, Us, ctx.transposed, want_x)
        by_mode = iter(cast(g, x.dtype) for g in grad_Us)
        return (
            None,
            grad_x if want_x else None,
            *(None if U is None else next(by_mode) for U in Us),
        )


def map_gradients(
    x: Tensor, grad: Tensor, Us: Matrices, transposed: bool, wanted: Sequence[bool]
) -> Iterator[Tensor | None]:
    """dL/dx and dL/dU by mode, where wanted, as differentiable functions of x, grad and the U's."""
    b = x.ndim - len(Us)
    yield _multilinear(grad, Us, transposed=not transposed) if wanted[0] else None
    for k, U in enumerate(Us):
        if U is None or not wanted[k + 1]:
            yield None
            continue
        others = [*Us[:k], None, *Us[k + 1 :]]
        partial = _multilinear(x, others, transposed=transposed)
        large, small = (grad, partial) if transposed else (partial, grad)
        yield _unfolded(large, b + k) @ _unfolded(small, b + k).mT


def _unfolded(x: Tensor, axis: int) -> Tensor:
    return x.movedim(axis, 0).reshape(x.shape[axis], -1)


# Values, and the same as operators that are opaque to compilers.


def _map_values(x: Tensor, Us: list[Tensor | None], transposed: bool, like: Tensor) -> Tensor:
    """The map of x in the memory format of ``like``; the U's may be of a wider type than x."""
    matrices = [None if U is None else cast(U, x.dtype) for U in Us]
    return engine().map(x, matrices, transposed, like)


def _gradient_values(
    x: Tensor, grad: Tensor, Us: list[Tensor | None], transposed: bool, want_x: bool
) -> list[Tensor]:
    """dL/dx (empty if not wanted) and dL/dU_k for every U_k that is not None.

    The latter are float32 for half types: see Note [The derivative in float32] in products.py.
    """
    grad_x, grad_Us = engine().gradients(x, grad, Us, transposed, want_x)
    return [x.new_empty(0) if grad_x is None else grad_x, *(g for g in grad_Us if g is not None)]


def _fake_map(x: Tensor, Us: list[Tensor | None], transposed: bool, like: Tensor) -> Tensor:
    b = x.ndim - len(Us)
    axes = _order(like, b)
    shape = list(x.shape)
    for k, U in enumerate(Us):
        if U is not None:
            shape[b + k] = U.shape[0 if transposed else 1]
    return x.new_empty([shape[a] for a in axes]).permute(inverse(axes))


def _fake_gradients(
    x: Tensor, grad: Tensor, Us: list[Tensor | None], transposed: bool, want_x: bool
) -> list[Tensor]:
    grad_x = x.new_empty(0)
    if want_x:
        axes = _order(x, x.ndim - len(Us))
        grad_x = x.new_empty([x.shape[a] for a in axes]).permute(inverse(axes))
    return [
        grad_x,
        *(U.new_empty(U.shape, dtype=derivative_dtype(U.dtype)) for U in Us if U is not None),
    ]


_map_op = opaque(
    "map",
    "(Tensor x, Tensor?[] Us, bool transposed, Tensor like) -> Tensor",
    _map_values,
    _fake_map,
)
_gradients_op = opaque(
    "gradients",
    "(Tensor x, Tensor grad, Tensor?[] Us, bool transposed, bool want_x) -> Tensor[]",
    _gradient_values,
    _fake_gradients,
)


def _check(x: Tensor, Us: Matrices, transposed: bool) -> None:
    if not Us or x.ndim < len(Us):
        raise ProjectionValueError(
            f"Expected a tensor with at least {max(len(Us), 1)} axes, one per mode, "
            f"got shape {tuple(x.shape)} and {len(Us)} matrices."
        )
    for k, U in enumerate(Us):
        size = x.shape[x.ndim - len(Us) + k]
        if U is None:
            continue
        check_floating(U, f"U{k + 1}")
        if U.ndim != 2 or U.shape[1 if transposed else 0] != size or U.numel() == 0:
            expected = f"(p, {size})" if transposed else f"({size}, q)"
            raise ProjectionValueError(
                f"Expected U{k + 1} of shape {expected} for an input of shape {tuple(x.shape)}, "
                f"got {tuple(U.shape)}."
            )
        if U.device != x.device:
            raise ProjectionTypeError(
                f"Expected input and U{k + 1} on one device, got the input on {x.device} and "
                f"U{k + 1} on {U.device}."
            )
