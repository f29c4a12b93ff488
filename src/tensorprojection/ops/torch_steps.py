"""The multilinear map and its gradients with torch's own operations, for any type and device.

A plan runs on a tensor (L, d_1, …, d_m) that is contiguous in memory. ``As[k - 1]`` is the
``large × small`` matrix of axis k, None for an axis left alone. Values only: multilinear.py has the
derivatives, plan.py chooses the steps, and kernels/calls.py does the same with compiled kernels.

Note [Products as convolutions]
    A product of a tall matrix with a small one, (left × P) times (P × Q), is a 1×1 convolution of
    P channels to Q over `left` places with the channels innermost. On a CPU the kernels for that
    are generated for the very P and Q, whereas a BLAS has general ones: for 16 × 8 they are three
    times as fast, for the derivative up to ten times. With the channels outside and few places
    inside, (left, P, right), they serve the derivative, which a batch of products could only give
    as a sum over `left` small matrices, and the product itself if P and Q are large.

Note [The derivative in float32]
    The derivative of a half type is a sum over all samples and places, and the gradient of W is
    what is left of it when its symmetric part, U times a symmetric matrix, is taken away. That
    part may be nearly all: with (32, 12, 12) -> (20, 6, 6) and 300 random samples, rounding the
    derivative to bfloat16 alone made W's gradient wrong by 10 %. So it is float32 until then. The
    tensors in between are of the type of x; their rounding averages out.
"""

from __future__ import annotations

from collections.abc import Iterator
from math import prod

import torch
from torch import Tensor

from .dtypes import cast
from .layout import Matrices, layout_of
from .plan import CHUNK_BYTES, Group, Plan, Steps

_FEW_PLACES = 32
_HALF = (torch.float16, torch.bfloat16)


def derivative_dtype(dtype: torch.dtype) -> torch.dtype:
    """Return float32 for half types: see Note [The derivative in float32]."""
    return torch.float32 if dtype in _HALF else dtype


def multilinear(x: Tensor, Us: Matrices, transposed: bool) -> Tensor:
    """Return the map of x (Eq. 1) or, transposed, Eq. 13, in the memory format of x."""
    layout = layout_of(x, Us, transposed=transposed)
    As = layout.matrices([None if U is None else cast(U, x.dtype) for U in Us])
    if transposed:
        result = grow(layout.small(x), As, layout.plan)
    else:
        result = shrink(layout.large(x), As, layout.plan)
    return layout.logical(result, large=transposed)


def multilinear_backward(
    x: Tensor, grad: Tensor, Us: Matrices, transposed: bool, want_x: bool, want_Us: bool
) -> list[Tensor]:
    """Return dL/dx (empty if not wanted), then dL/dU of each U, if these are wanted."""
    layout = layout_of(x, Us, transposed=transposed)
    As = layout.matrices([None if U is None else cast(U, x.dtype) for U in Us])
    X, Z = (grad, x) if transposed else (x, grad)
    if not want_Us:
        if transposed:
            result = shrink(layout.large(layout.dense(grad, large=True)), As, layout.plan)
        else:
            result = grow(layout.small(layout.dense(grad, large=False)), As, layout.plan)
        return [layout.logical(result, large=not transposed)]
    grown, shrunk, grad_As = pair(
        layout.large(layout.dense(X, large=True)),
        layout.small(layout.dense(Z, large=False)),
        As,
        layout.plan,
        want_grown=want_x and not transposed,
        want_shrunk=want_x and transposed,
    )
    found = shrunk if transposed else grown
    by_mode = dict(zip(layout.modes, grad_As, strict=True))
    grad_x = x.new_empty(0) if found is None else layout.logical(found, large=not transposed)
    return [
        grad_x,
        *(by_mode[k].to(U.dtype).contiguous() for k, U in enumerate(Us) if U is not None),  # type: ignore[union-attr]
    ]


def shrink(X: Tensor, As: Matrices, plan: Plan) -> Tensor:
    """X ×_k A_kᵀ for all k."""
    return _chain(X, plan.shrink, _group_matrices(As, plan.shrink), plan.small)


def grow(Z: Tensor, As: Matrices, plan: Plan) -> Tensor:
    """Z ×_k A_k for all k."""
    matrices = [A.mT for A in _group_matrices(As, plan.grow)]
    return _chain(Z, plan.grow, matrices, plan.large)


def pair(
    X: Tensor, Z: Tensor, As: Matrices, plan: Plan, *, want_grown: bool, want_shrunk: bool
) -> tuple[Tensor | None, Tensor | None, list[Tensor | None]]:
    """grow(Z), shrink(X), and the derivatives of <shrink(X), Z> with respect to every A_k.

    The first two come along for the price of one step where the plan for them allows it.
    """
    steps, last = plan.pair, len(plan.pair) - 1
    matrices = _group_matrices(As, steps)
    transposed = [A.mT for A in matrices]
    joint_grow = want_grown and plan.joint
    joint_shrink = want_shrunk and plan.joint
    grown_parts, shrunk_parts = _Parts(X.shape), _Parts(Z.shape)
    sums: list[Tensor | None] = [None] * len(steps)
    for rows in _chunks(X, several=last > 0):
        x, z = X[rows], Z[rows]
        xs = [x]
        for group, A in zip(steps[:last], matrices, strict=False):
            xs.append(_step(xs[-1], group, A, plan.small))
        for i in range(last, -1, -1):
            part = _contraction(xs[i], z, steps[i])
            sums[i] = part if sums[i] is None else sums[i].add_(part)  # type: ignore[union-attr]
            if i > 0:
                z = _step(z, steps[i], transposed[i], plan.large)
        if joint_grow:
            grown_parts.add(rows, z, steps[0], transposed[0], plan.large)
        if joint_shrink:
            shrunk_parts.add(rows, xs[last], steps[last], matrices[last], plan.small)
    grown = grown_parts.whole
    if want_grown and grown is None:
        grown = grow(Z, As, plan)
    shrunk = shrunk_parts.whole
    if want_shrunk and shrunk is None:
        shrunk = shrink(X, As, plan)
    return grown, shrunk, _by_axis(sums, steps, As)


def _chain(x: Tensor, steps: Steps, matrices: list[Tensor], target: tuple[int, ...]) -> Tensor:
    if not steps:
        return x.clone()
    shape = list(x.shape)
    for k in (k for group in steps for k in group):
        shape[k] = target[k - 1]
    parts = _Parts(torch.Size(shape))
    larger = x if x.numel() > prod(shape) else x.new_empty(()).expand(shape)
    for rows in _chunks(larger, several=len(steps) > 1):
        part = x[rows]
        for group, A in zip(steps[:-1], matrices, strict=False):
            part = _step(part, group, A, target)
        parts.add(rows, part, steps[-1], matrices[-1], target)
    assert parts.whole is not None
    return parts.whole


class _Parts:
    """The result of a last step, assembled from its chunks of rows; a single chunk as it is."""

    def __init__(self, shape: torch.Size) -> None:
        self.shape = shape
        self.whole: Tensor | None = None

    def add(self, rows: slice, x: Tensor, group: Group, A: Tensor, target: tuple[int, ...]) -> None:
        if rows == slice(0, self.shape[0]):
            self.whole = _step(x, group, A, target)
            return
        if self.whole is None:
            self.whole = x.new_empty(self.shape)
        _step(x, group, A, target, out=self.whole[rows])


def _step(
    x: Tensor, group: Group, A: Tensor, target: tuple[int, ...], out: Tensor | None = None
) -> Tensor:
    """One product: the axes of the group, taken together, times A."""
    shape = list(x.shape)
    for k in group:
        shape[k] = target[k - 1]
    left, right = prod(x.shape[: group[0]]), prod(x.shape[group[-1] + 1 :])
    flat = x.reshape(left, A.shape[0], right)
    place = None if out is None else out.view(left, A.shape[1], right)
    return _multiply(flat, A, out=place).view(shape)


def _contraction(x: Tensor, z: Tensor, group: Group) -> Tensor:
    """The derivative of <x times A, z> with respect to A: x and z over all axes but the group's."""
    first, end = group[0], group[-1] + 1
    left, right = prod(x.shape[:first]), prod(x.shape[end:])
    P, Q = prod(x.shape[first:end]), prod(z.shape[first:end])
    return _contract(x.reshape(left, P, right), z.reshape(left, Q, right))


def _chunks(larger: Tensor, *, several: bool) -> Iterator[slice]:
    """Rows that fit the cache together, where several steps read what the one before wrote."""
    L = larger.shape[0]
    row = max(larger[0].numel() * larger.element_size(), 1) if L else 1
    rows = max(CHUNK_BYTES // row, 1)
    if not several or larger.device.type != "cpu" or rows >= L:
        yield slice(0, L)
        return
    for start in range(0, L, rows):
        yield slice(start, min(start + rows, L))


def _group_matrices(As: Matrices, steps: Steps) -> list[Tensor]:
    """One matrix per group: the Kronecker product of its axes' matrices."""
    result = []
    for group in steps:
        first, *others = [A for A in (As[k - 1] for k in group) if A is not None]
        for A in others:
            first = _kron(first, A)
        result.append(first)
    return result


def _kron(A: Tensor, B: Tensor) -> Tensor:
    # torch.kron refuses matrices that are strided or expanded, and takes three times as long.
    blocks = torch.outer(A.reshape(-1), B.reshape(-1)).view(*A.shape, *B.shape)
    return blocks.transpose(1, 2).reshape(A.shape[0] * B.shape[0], -1)


def _by_axis(sums: list[Tensor | None], steps: Steps, As: Matrices) -> list[Tensor | None]:
    """The derivative of each A_k from those of the groups' Kronecker products."""
    result: list[Tensor | None] = [None] * len(As)
    for group, total in zip(steps, sums, strict=True):
        assert total is not None
        matrices = [A for A in (As[k - 1] for k in group) if A is not None]
        for k, derivative in zip(group, _factors(total, matrices), strict=True):
            result[k - 1] = derivative
    return result


def _factors(total: Tensor, matrices: list[Tensor]) -> Iterator[Tensor]:
    """From the derivative of A ⊗ B, those of A and of B; B may be such a product itself."""
    A, *rest = [A.to(total.dtype) for A in matrices]
    while rest:
        B = rest[0]
        for C in rest[1:]:
            B = _kron(B, C)
        # One row per entry of A, one column per entry of B.
        blocks = total.reshape(A.shape[0], B.shape[0], A.shape[1], B.shape[1])
        blocks = blocks.transpose(1, 2).reshape(A.numel(), B.numel())
        yield (blocks @ B.reshape(-1)).view(A.shape)
        total = (A.reshape(-1) @ blocks).view(B.shape)
        A, *rest = rest
    yield total


def _multiply(x: Tensor, A: Tensor, *, out: Tensor | None = None) -> Tensor:
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


def _contract(x: Tensor, z: Tensor) -> Tensor:
    """Σ x[l, :, r] z[l, :, r]ᵀ over l and r: the P × Q derivative of <x A, z> wrt A.

    Float32 if x is of a half type: see Note [The derivative in float32].
    """
    x, z = x.to(derivative_dtype(x.dtype)), z.to(derivative_dtype(z.dtype))
    P, right = x.shape[1:]
    Q = z.shape[1]
    if not _has_kernels(x):
        return x[:, :, 0].mT @ z[:, :, 0] if right == 1 else torch.bmm(x, z.mT).sum(0)
    if right == 1:
        return _weight_derivative(_channels_inside(x), _channels_inside(z))
    if right <= _FEW_PLACES or (P + Q) * right < P * Q:
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
    """Return True if convolutions of x are generated for their shape, and x is not empty."""
    return (
        x.device.type == "cpu"
        and x.dtype in (torch.float32, torch.bfloat16)
        and x.numel() > 0
        and torch.backends.mkldnn.is_available()
    )
