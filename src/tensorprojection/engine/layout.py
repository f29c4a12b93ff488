"""How a tensor lies in memory, and the plan that goes with it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from math import prod

from torch import Tensor

from .kernels.header import MOST_AXES
from .kernels.program import Program, make_program
from .plan import Plan, make_plan

Matrices = Sequence[Tensor | None]
Sizes = tuple[int, ...]


@dataclass(frozen=True)
class Strided:
    """A tensor's shape, and strides with which it has no gaps."""

    shape: Sizes
    stride: Sizes

    def is_that_of(self, x: Tensor) -> bool:
        """Whether x has these strides; the stride of an axis of size 1 says nothing."""
        strides = zip(self.shape, self.stride, x.stride(), strict=True)
        return all(n == 1 or a == b for n, a, b in strides)


@dataclass(frozen=True)
class Layout:
    """A tensor's axes from the outermost in memory on, seen as (L, d_1, …, d_m).

    The leading axes that no matrix touches, batch axes and modes left alone, are the rows L;
    elsewhere neighbouring ones are one axis. So a plan does not depend on the size of the batch
    wherever the batch lies outermost.
    """

    axes: Sizes  # of the tensor, in the order of memory
    modes: tuple[int | None, ...]  # for axis 1, 2, … the index of its matrix, or None
    plan: Plan
    program: Program | None  # where the compiled kernels serve
    as_large: Strided  # how the tensor with the large sizes lies, and that with the small ones
    as_small: Strided

    def large(self, x: Tensor) -> Tensor:
        """x, in whatever order it lies, as (L, large sizes)."""
        return x.permute(self.axes).reshape(-1, *self.plan.large)

    def small(self, z: Tensor) -> Tensor:
        return z.permute(self.axes).reshape(-1, *self.plan.small)

    def matrices(self, Us: Matrices) -> list[Tensor | None]:
        """The matrices of axes 1, 2, …"""
        return [None if k is None else Us[k] for k in self.modes]

    def dense(self, x: Tensor, *, large: bool) -> Tensor:
        """x as it is, or a copy if its memory layout is not this one."""
        lies = self.as_large if large else self.as_small
        if x.stride() == lies.stride or lies.is_that_of(x):
            return x
        return self.empty(x, large=large).copy_(x)

    def empty(self, like: Tensor, *, large: bool) -> Tensor:
        lies = self.as_large if large else self.as_small
        return like.new_empty_strided(lies.shape, lies.stride)

    def logical(self, y: Tensor, *, large: bool) -> Tensor:
        """The result (L, …) with the axes in the order of the tensor it came from."""
        to = self.as_large if large else self.as_small
        return y.contiguous().as_strided(to.shape, to.stride)


def layout_of(x: Tensor, Us: Matrices, *, tiles: bool) -> Layout:
    """The layout of x, be it the large or the small side of the map.

    Args:
        tiles: whether the plan is for the compiled kernels.
    """
    shapes = tuple([None if U is None else U.shape for U in Us])
    return _layout(x.shape, x.stride(), shapes, tiles and x.numel() > 0)


@lru_cache(maxsize=1024)
def _layout(shape: Sizes, stride: Sizes, matrices: tuple[Sizes | None, ...], tiles: bool) -> Layout:
    b = len(shape) - len(matrices)
    axes = _memory_order(shape, stride, b)
    large: list[int] = []
    small: list[int] = []
    modes: list[int | None] = []
    for a in axes:
        U = matrices[a - b] if a >= b else None
        if U is not None:
            large.append(U[0])
            small.append(U[1])
            modes.append(a - b)
        elif modes and modes[-1] is None:
            large[-1] = small[-1] = large[-1] * shape[a]
        elif modes:
            large.append(shape[a])
            small.append(shape[a])
            modes.append(None)
    touched = tuple(k for k, mode in enumerate(modes, start=1) if mode is not None)
    tiles = tiles and bool(touched) and len(modes) <= MOST_AXES
    plan = make_plan(tuple(large), tuple(small), touched, tiles)
    large_shape, small_shape = (
        [
            *shape[:b],
            *(n if U is None else U[side] for n, U in zip(shape[b:], matrices, strict=True)),
        ]
        for side in (0, 1)
    )
    program = make_program(plan, prod(large_shape) // prod(large)) if tiles else None
    lies = (strided(sizes, axes) for sizes in (large_shape, small_shape))
    return Layout(axes, tuple(modes), plan, program, *lies)


def strided(shape: Sequence[int], axes: Sizes) -> Strided:
    """The tensor of this shape whose axes lie in that order, without gaps."""
    stride = [0] * len(shape)
    for i, a in enumerate(axes):
        stride[a] = prod(shape[k] for k in axes[i + 1 :])
    return Strided(tuple(shape), tuple(stride))


def memory_order(x: Tensor, b: int) -> Sizes:
    """The axes of x from the outermost in memory on.

    The first b, its batch axes, come first, unless x has no gaps and one of them lies further in,
    as the channels of a channels_last image do for a map of height and width.
    """
    return _memory_order(x.shape, x.stride(), b)


def _memory_order(shape: Sizes, stride: Sizes, b: int) -> Sizes:
    # The stride of an axis of size 1 says nothing, so what is contiguous without it comes first.
    n = len(shape)
    as_they_are = tuple(range(n))
    if _has_no_gaps(as_they_are, shape, stride):
        return as_they_are
    batch_first = order_of_modes(stride, b)
    if b < 2 or 0 in shape or _has_no_gaps(batch_first, shape, stride):
        return batch_first
    by_stride = tuple(sorted(range(n), key=lambda a: -stride[a]))
    return by_stride if _has_no_gaps(by_stride, shape, stride) else batch_first


def order_of_modes(stride: Sizes, b: int) -> Sizes:
    """The batch axes, then the others from the outermost in memory on; asks for no size."""
    return (*range(b), *sorted(range(b, len(stride)), key=lambda a: -stride[a]))


def _has_no_gaps(axes: Sizes, shape: Sizes, stride: Sizes) -> bool:
    """Whether the axes, in this order, lie one inside the other without gaps or overlap."""
    step = 1
    for a in reversed(axes):
        if shape[a] != 1 and stride[a] != step:
            return False
        step *= shape[a]
    return True


def inverse(axes: Sequence[int]) -> list[int]:
    return [axes.index(a) for a in range(len(axes))]
