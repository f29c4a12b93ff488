"""The order in which a tensor's axes lie in memory, and the plan that goes with it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from math import prod
from typing import Any

from torch import Tensor

from ..errors import ProjectionValueError
from .limits import MOST_AXES
from .plan import Plan, make_plan

Matrices = Sequence[Tensor | None]
Sizes = tuple[int, ...]


@dataclass(frozen=True)
class Strided:
    """A tensor's shape, and strides with which it has no gaps."""

    shape: Sizes
    stride: Sizes

    def matches(self, x: Tensor) -> bool:
        """Return True if x has these strides; the stride of an axis of size 1 does not count."""
        strides = zip(self.shape, self.stride, x.stride(), strict=True)
        return all(n == 1 or a == b for n, a, b in strides)


@dataclass(eq=False)
class Layout:
    """A tensor's axes from the outermost in memory on, seen as (L, d_1, …, d_m).

    The leading axes that no matrix touches, batch axes and modes left alone, are the rows L;
    elsewhere neighbouring ones are one axis. So a plan does not depend on the size of the batch
    if the batch lies outermost.
    """

    axes: Sizes  # of the tensor, in the order of memory
    modes: tuple[int | None, ...]  # for axis 1, 2, … the index of its matrix, or None
    plan: Plan
    rows: int  # L
    as_large: Strided  # the tensor with the large sizes, and the one with the small sizes
    as_small: Strided
    program: Any = None  # the plan as the C kernels read it; set by them on first use

    def matrices(self, Us: Matrices) -> list[Tensor | None]:
        """Return the matrices of axes 1, 2, …"""
        return [None if k is None else Us[k] for k in self.modes]

    def dense(self, x: Tensor, *, large: bool) -> Tensor:
        """Return x, or a copy if its memory layout is not this one; refuse another shape."""
        layout = self.as_large if large else self.as_small
        if x.shape != layout.shape:
            raise ProjectionValueError(
                f"Expected a tensor of shape {layout.shape}, got {tuple(x.shape)}."
            )
        if x.stride() == layout.stride or layout.matches(x):
            return x
        return self.empty(x, large=large).copy_(x)

    def empty(self, like: Tensor, *, large: bool) -> Tensor:
        layout = self.as_large if large else self.as_small
        return like.new_empty_strided(layout.shape, layout.stride)


def layout_of(x: Tensor, Us: Matrices, *, transposed: bool) -> Layout | None:
    """Return the layout of an input x: the large side of the map or, transposed, the small one.

    None if the compiled kernels have nothing to do, or the tensor has too many axes for them.
    """
    shapes = tuple([None if U is None else U.shape for U in Us])
    return _layout(x.shape, x.stride(), shapes, transposed) if x.numel() > 0 else None


@lru_cache(maxsize=1024)
def _layout(
    shape: Sizes, stride: Sizes, matrices: tuple[Sizes | None, ...], transposed: bool
) -> Layout | None:
    b = len(shape) - len(matrices)
    for k, U in enumerate(matrices):
        if b < 0 or (U is not None and (len(U) != 2 or U[transposed] != shape[b + k])):
            raise ProjectionValueError(
                f"Expected matrices for an input of shape {tuple(shape)}, got shapes "
                f"{[None if U is None else tuple(U) for U in matrices]}."
            )
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
    if not touched or len(modes) > MOST_AXES:
        return None
    plan = make_plan(tuple(large), tuple(small), touched)
    large_shape, small_shape = (
        [
            *shape[:b],
            *(n if U is None else U[side] for n, U in zip(shape[b:], matrices, strict=True)),
        ]
        for side in (0, 1)
    )
    rows = prod(large_shape) // prod(large)
    strides = (strided(sizes, axes) for sizes in (large_shape, small_shape))
    return Layout(axes, tuple(modes), plan, rows, *strides)


def strided(shape: Sequence[int], axes: Sizes) -> Strided:
    """Return the strides of a tensor of this shape whose axes lie in that order, without gaps."""
    stride = [0] * len(shape)
    for i, a in enumerate(axes):
        stride[a] = prod(shape[k] for k in axes[i + 1 :])
    return Strided(tuple(shape), tuple(stride))


def memory_order(x: Tensor, b: int) -> Sizes:
    """Return the axes of x from the outermost in memory on.

    The first b, its batch axes, come first, unless x has no gaps and one of them lies further in,
    as the channels of a channels_last image do for a map of height and width.
    """
    return _memory_order(x.shape, x.stride(), b)


def _memory_order(shape: Sizes, stride: Sizes, b: int) -> Sizes:
    # The stride of an axis of size 1 does not count, so what is contiguous without it comes first.
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
    """Return the batch axes, then the others from the outermost in memory on; read no size."""
    return (*range(b), *sorted(range(b, len(stride)), key=lambda a: -stride[a]))


def _has_no_gaps(axes: Sizes, shape: Sizes, stride: Sizes) -> bool:
    """Return True if the axes, in this order, lie one inside the other without gaps or overlap."""
    step = 1
    for a in reversed(axes):
        if shape[a] != 1 and stride[a] != step:
            return False
        step *= shape[a]
    return True


def inverse(axes: Sequence[int]) -> list[int]:
    return [axes.index(a) for a in range(len(axes))]
