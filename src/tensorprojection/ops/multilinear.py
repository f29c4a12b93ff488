"""The multilinear map Z = X ×₁ U₁ᵀ ×₂ U₂ᵀ … (Eq. 1) and its transpose (Eq. 13), differentiable."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from math import prod
from typing import Any

import torch
from torch import Tensor
from torch.autograd import Function
from torch.utils.flop_counter import register_flop_formula

from . import torch_steps
from .dtypes import cast, map_dtype, no_autocast
from .kernels import calls
from .layout import Matrices, inverse, memory_order
from .tracing import Strategy, register, strategy


def multilinear(x: Tensor, Us: Matrices, *, transposed: bool) -> Tensor:
    """Return the map of x over its last ``len(Us)`` axes; see `functional.project`.

    The U's may be of a wider type than x. They are cast to x's, and their gradients are not: see
    Note [The derivative in float32].
    """
    dtype = map_dtype(x)
    if all(U is None for U in Us):
        return x.to(dtype, copy=True)  # never x itself: later operations may write into it
    x = cast(x, dtype)
    with no_autocast(x):
        if _planned(x, Us):
            if _is_on_host(x) and not torch.is_grad_enabled():  # a node would take 4 µs
                return multilinear_op(x, Us, transposed)  # type: ignore[no-any-return]
            function: Any = Multilinear
            result: Tensor = function.apply(transposed, x, *Us)
            return result
        return torch_steps.multilinear(x, Us, transposed)


def _planned(x: Tensor, Us: Matrices) -> bool:
    """Return True if the map is one autograd.Function; otherwise it is a chain of products.

    Products are differentiable as they stand, so a transform needs no rule of ours. For an
    accelerator, a compiler makes more of products than of a Function it cannot look into.
    """
    if strategy(x, *Us) is not Strategy.QUICK:
        return False
    return _is_on_host(x) or not torch.compiler.is_compiling()


def _is_on_host(x: Tensor) -> bool:
    return x.device.type in ("cpu", "meta")


class Multilinear(Function):
    """x, U_1, U_2, … -> the map, or its transpose, with a planned backward pass."""

    @staticmethod
    def forward(ctx: Any, transposed: bool, x: Tensor, *Us: Tensor | None) -> Tensor:
        ctx.transposed = transposed
        ctx.save_for_backward(x, *Us)
        run: Any = multilinear_op if _is_on_host(x) else torch_steps.multilinear
        result: Tensor = run(x, Us, transposed)
        return result

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Any:
        _, want_x, *want_Us = ctx.needs_input_grad
        # A hook on saved tensors may have compressed them.
        x, *Us = (cast(t, grad.dtype) if i == 0 else t for i, t in enumerate(ctx.saved_tensors))
        with no_autocast(grad):  # a backward pass may run where autocast is on
            if torch.is_grad_enabled() or strategy(grad, *Us) is not Strategy.QUICK:
                return None, *_gradients(x, grad, Us, ctx.transposed, [want_x, *want_Us])
            run: Any = (
                multilinear_backward_op if _is_on_host(x) else torch_steps.multilinear_backward
            )
            grad_x, *found = run(x, grad, Us, ctx.transposed, want_x, any(want_Us))
        by_mode = iter(found)
        grad_Us = [next(by_mode) if found and U is not None else None for U in Us]
        return None, grad_x if want_x else None, *grad_Us


def _gradients(
    x: Tensor, grad: Tensor, Us: Matrices, transposed: bool, wanted: Sequence[bool]
) -> Iterator[Tensor | None]:
    """Yield dL/dx and dL/dU by mode, if wanted, as differentiable functions of x, grad and U's."""
    b = x.ndim - len(Us)
    yield multilinear(grad, Us, transposed=not transposed) if wanted[0] else None
    for k, U in enumerate(Us):
        if U is None or not wanted[k + 1]:
            yield None
            continue
        others = [*Us[:k], None, *Us[k + 1 :]]
        partial = multilinear(x, others, transposed=transposed)
        large, small = (grad, partial) if transposed else (partial, grad)
        yield _unfolded(large, b + k).to(U.dtype) @ _unfolded(small, b + k).to(U.dtype).mT


def _unfolded(x: Tensor, axis: int) -> Tensor:
    return x.movedim(axis, 0).reshape(x.shape[axis], -1)


# Values on the CPU, as custom ops: with the compiled kernels, else with torch's operations.


def _fake_multilinear(x: Tensor, Us: Matrices, transposed: bool) -> Tensor:
    b = x.ndim - len(Us)
    shape = list(x.shape)
    for k, U in enumerate(Us):
        if U is not None:
            shape[b + k] = U.shape[0 if transposed else 1]
    return _empty_like(x, shape, b)


def _fake_multilinear_backward(
    x: Tensor, grad: Tensor, Us: Matrices, transposed: bool, want_x: bool, want_Us: bool
) -> list[Tensor]:
    grad_x = _empty_like(x, x.shape, x.ndim - len(Us)) if want_x or not want_Us else x.new_empty(0)
    return [grad_x, *(U.new_empty(U.shape) for U in Us if U is not None and want_Us)]


def _flops(x: Sequence[int], Us: Sequence[Any], transposed: bool, **_: Any) -> int:
    """Return the operations of the map, mode by mode, the largest reduction first."""
    sizes, b, total = list(x), len(x) - len(Us), 0
    steps = [(b + k, U[0 if transposed else 1]) for k, U in enumerate(Us) if U is not None]
    for axis, size in sorted(steps, key=lambda step: step[1] / sizes[step[0]]):
        total += 2 * prod(sizes) * size
        sizes[axis] = size
    return total


def _backward_flops(
    x: Any, grad: Any, Us: Any, transposed: bool, want_x: bool, want_Us: bool, **_: Any
) -> int:
    return (want_x + 2 * want_Us) * _flops(x, Us, transposed)


def _empty_like(x: Tensor, shape: Sequence[int], b: int) -> Tensor:
    """Return a tensor without gaps whose axes lie in the order of those of x."""
    axes = memory_order(x, b)
    return x.new_empty([shape[a] for a in axes]).permute(inverse(axes))


multilinear_op = register(
    "multilinear",
    "(Tensor x, Tensor?[] Us, bool transposed) -> Tensor",
    calls.multilinear,
    _fake_multilinear,
)
multilinear_backward_op = register(
    "multilinear_backward",
    "(Tensor x, Tensor grad, Tensor?[] Us, bool transposed, bool want_x, bool want_Us) -> Tensor[]",
    calls.multilinear_backward,
    _fake_multilinear_backward,
)

# For torch.utils.flop_counter, which cannot look into a custom op.
register_flop_formula(torch.ops.tensorprojection.multilinear)(_flops)
register_flop_formula(torch.ops.tensorprojection.multilinear_backward)(_backward_flops)
