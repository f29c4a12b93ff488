"""The two products that everything is made of, each by the kernel that is best at its shape.

Note [Products as convolutions]
    A product of a tall matrix with a small one, (left × P) times (P × Q), is a 1×1 convolution of
    P channels to Q over `left` places with the channels innermost. On a CPU the kernels for that
    are generated for the very P and Q, where a BLAS has general ones: for 16 × 8 they are three
    times as fast, for the derivative up to ten times. With the channels outside and few places
    inside, (left, P, right), they serve the derivative, which a batch of products could only give
    as a sum over `left` small matrices, and the product itself where P and Q are large.

Note [The derivative in float32]
    The derivative of a half type is a sum over all samples and places, and the gradient of W is
    what is left of it when its symmetric part, U times a symmetric matrix, is taken away. That
    part may be nearly all: with (32, 12, 12) -> (20, 6, 6) and 300 random samples, rounding the
    derivative to bfloat16 alone made W's gradient wrong by 10 %. So it is float32 until then. The
    tensors in between are of the type of x; their rounding averages out.
"""

from __future__ import annotations

import torch
from torch import Tensor

FEW_PLACES = 32
_HALF = (torch.float16, torch.bfloat16)


def derivative_dtype(dtype: torch.dtype) -> torch.dtype:
    """See Note [The derivative in float32]."""
    return torch.float32 if dtype in _HALF else dtype


def multiply(x: Tensor, A: Tensor, *, out: Tensor | None = None) -> Tensor:
    """x of shape (left, P, right) times A, P × Q, over its middle axis."""
    left, P, right = x.shape
    Q = A.shape[1]
    if right == 1:
        if not _has_kernels(x):
            return torch.mm(x[:, :, 0], A, out=None if out is None else out[:, :, 0])[:, :, None]
        result = torch.conv2d(_channels_inside(x), A.mT[:, :, None, None])
        result = result.permute(0, 2, 3, 1).reshape(left, Q, 1)
    elif _has_kernels(x) and (P + Q) * right < P * Q:
        shrinks = Q < P
        result = (
            torch.conv1d(x, A.mT[:, :, None])
            if shrinks
            else torch.conv_transpose1d(x, A[:, :, None])
        )
    else:
        return torch.bmm(A.mT.expand(left, Q, P), x, out=out)
    return result if out is None else out.copy_(result)


def contract(x: Tensor, z: Tensor) -> Tensor:
    """Σ x[l, :, r] z[l, :, r]ᵀ over l and r: the P × Q derivative of <x A, z> wrt A.

    Float32 where x is of a half type: see Note [The derivative in float32].
    """
    x, z = x.to(derivative_dtype(x.dtype)), z.to(derivative_dtype(z.dtype))
    P, right = x.shape[1:]
    Q = z.shape[1]
    if not _has_kernels(x):
        return x[:, :, 0].mT @ z[:, :, 0] if right == 1 else torch.bmm(x, z.mT).sum(0)
    if right == 1:
        return _weight_derivative(_channels_inside(x), _channels_inside(z))
    if right <= FEW_PLACES or (P + Q) * right < P * Q:
        return _weight_derivative(x[:, :, None], z[:, :, None])
    return torch.bmm(x, z.mT).sum(0)


def _channels_inside(x: Tensor) -> Tensor:
    """(left, P, 1) as images of together `left` places and P channels, the channels innermost.

    With a single thread, torch takes the generated kernels from 16 images on only.
    """
    left, P, _ = x.shape
    count = next((n for n in range(16, 33) if left % n == 0), 1)
    return x.view(count, left // count, 1, P).permute(0, 3, 1, 2)


def _weight_derivative(x: Tensor, z: Tensor) -> Tensor:
    weight = x.new_empty(()).expand(z.shape[1], x.shape[1], 1, 1)  # only its shape counts
    one, zero = [1, 1], [0, 0]
    derivative: Tensor = torch.ops.aten.convolution_backward(
        z, x, weight, None, one, zero, one, False, zero, 1, [False, True, False]
    )[1]
    return derivative[:, :, 0, 0].mT


def _has_kernels(x: Tensor) -> bool:
    """Whether convolutions of x are generated for their shape (and x is not empty)."""
    return (
        x.device.type == "cpu"
        and x.dtype in (torch.float32, torch.bfloat16)
        and x.numel() > 0
        and torch.backends.mkldnn.is_available()
    )
