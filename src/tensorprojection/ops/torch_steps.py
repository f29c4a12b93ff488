"""The multilinear map and its gradients with torch's own operations, for any type and device.

One matrix product per mode, the largest reduction first, on x as it lies in memory. For float32 on
a CPU, kernels/calls.py does the same with compiled kernels.

Note [The derivative in float32]
    The derivative of a half type is a sum over all samples and places, and the gradient of W is
    what is left of it when its symmetric part, U times a symmetric matrix, is taken away. That
    part may be nearly all: with (32, 12, 12) -> (20, 6, 6) and 300 random samples, rounding the
    derivative to bfloat16 alone made W's gradient wrong by 10 %. So U and its derivative are
    float32 until then. The tensors in between are of the type of x; their rounding averages out.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

import torch
from torch import Tensor

from .dtypes import cast, derivative_dtype
from .layout import Matrices, inverse, memory_order, order_of_modes
from .tracing import is_exporting

Step = tuple[int, Tensor]  # an axis, and the matrix that multiplies it from the right


def multilinear(x: Tensor, Us: Matrices, transposed: bool) -> Tensor:
    """Return the map of x (Eq. 1) or, transposed, Eq. 13, in the memory format of x."""
    b = x.ndim - len(Us)
    if not torch.compiler.is_compiling() and torch.jit.is_tracing():
        # torch.jit.trace would take sizes for constants, or for tensors.
        for k, U in enumerate(Us):
            x = x if U is None else mode_matmul(x, _matrix(U, x, transposed), k - len(Us))
        return x
    # torch.export would take a comparison of sizes for a condition on the batch.
    axes = order_of_modes(x.stride(), b) if is_exporting() else memory_order(x, b)
    z = x.permute(axes)
    for axis, A in steps_of(x, Us, transposed, axes):
        z = _product(z, axis, A)
    return z.permute(inverse(axes))


def multilinear_backward(
    x: Tensor, grad: Tensor, Us: Matrices, transposed: bool, want_x: bool, want_Us: bool
) -> list[Tensor]:
    """Return dL/dx (empty if not wanted), then dL/dU of each U, if these are wanted."""
    b = x.ndim - len(Us)
    axes = memory_order(x, b)
    if not want_Us:
        return [multilinear(_in_order(grad, axes), Us, not transposed)]
    steps = steps_of(x, Us, transposed, axes)
    partial, grad = x.permute(axes), grad.permute(axes)
    partials = []
    for axis, A in steps:
        partials.append(partial)
        if len(partials) < len(steps):
            partial = _product(partial, axis, A)
    found: dict[int, Tensor] = {}
    for (axis, A), partial in zip(reversed(steps), reversed(partials), strict=True):
        derivative = _contraction(partial, grad, axis)
        found[axes[axis] - b] = derivative.mT if transposed else derivative
        if want_x or axis != steps[0][0]:
            grad = _product(grad, axis, A.transpose(0, 1))
    grad_x = _in_order(grad.permute(inverse(axes)), axes) if want_x else x.new_empty(0)
    changed = [(k, U) for k, U in enumerate(Us) if U is not None]
    return [grad_x, *(found[k].to(U.dtype).contiguous() for k, U in changed)]


def mode_matmul(x: Tensor, A: Tensor, axis: int) -> Tensor:
    """Return x multiplied by A along one axis, counted from the end; no size of x is read."""
    return (x.transpose(axis, -1) @ A).transpose(axis, -1)


def steps_of(x: Tensor, Us: Matrices, transposed: bool, axes: Sequence[int]) -> list[Step]:
    """Return the products, the largest reduction (or the smallest growth) first."""
    b = x.ndim - len(Us)
    steps = [
        (axes.index(b + k), _matrix(U, x, transposed)) for k, U in enumerate(Us) if U is not None
    ]
    return sorted(steps, key=lambda step: (step[1].shape[1] / step[1].shape[0], step[0]))


def _matrix(U: Tensor, x: Tensor, transposed: bool) -> Tensor:
    return cast(U.transpose(0, 1) if transposed else U, x.dtype)


def _product(x: Tensor, axis: int, A: Tensor) -> Tensor:
    """Return x times A along that axis."""
    shape = (*x.shape[:axis], A.shape[1], *x.shape[axis + 1 :])
    left, right = prod(x.shape[:axis]), prod(x.shape[axis + 1 :])
    if right == 1:
        return (x.reshape(left, A.shape[0]) @ A).reshape(shape)
    x, A = x.reshape(left, A.shape[0], right), A.transpose(0, 1)
    if is_exporting():  # an exporter would write the expanded matrix out
        return (A @ x).reshape(shape)
    return torch.bmm(A.expand(left, *A.shape), x).reshape(shape)


def _contraction(x: Tensor, z: Tensor, axis: int) -> Tensor:
    """Return the derivative of <x times A, z> with respect to A: a sum over all other axes."""
    dtype = derivative_dtype(x.dtype)
    left, right = prod(x.shape[:axis]), prod(x.shape[axis + 1 :])
    P, Q = x.shape[axis], z.shape[axis]
    x, z = x.reshape(left, P, right).to(dtype), z.reshape(left, Q, right).to(dtype)
    if right == 1:
        return x[:, :, 0].mT @ z[:, :, 0]
    # On a CPU, if copies of both are smaller than a product for each of `left`: one launch more.
    if x.device.type == "cpu" and (P + Q) * right < P * Q:
        return torch.einsum("lpr,lqr->pq", x, z)
    return torch.bmm(x, z.mT).sum(0)


def _in_order(x: Tensor, axes: Sequence[int]) -> Tensor:
    """Return x with its axes in that order in memory, without gaps."""
    return x.permute(*axes).contiguous().permute(inverse(axes))
