"""Carries out a plan: the three maps on a tensor (L, d_1, …, d_m) that is contiguous in memory.

``As[k - 1]`` is the ``large × small`` matrix of axis k, None for an axis left alone. By torch's own
operations, for any type and device; kernels/calls.py does the same by compiled kernels.
No autograd here; see algebra/multilinear.py for the derivatives, plan.py for the choice of steps.
"""

from __future__ import annotations

from collections.abc import Iterator
from math import prod

import torch
from torch import Tensor

from . import products
from .layout import Matrices
from .plan import CHUNK_BYTES, Group, Plan, Steps


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
    return products.multiply(flat, A, out=place).view(shape)


def _contraction(x: Tensor, z: Tensor, group: Group) -> Tensor:
    """The derivative of <x times A, z> with respect to A: x and z over all axes but the group's."""
    first, end = group[0], group[-1] + 1
    left, right = prod(x.shape[:first]), prod(x.shape[end:])
    P, Q = prod(x.shape[first:end]), prod(z.shape[first:end])
    return products.contract(x.reshape(left, P, right), z.reshape(left, Q, right))


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
