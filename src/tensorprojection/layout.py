"""How a tensor lies in memory, and the plan that goes with it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from torch import Tensor

from .compiled.library import serves
from .plan import Plan, make_plan

Matrices = Sequence[Tensor | None]


@dataclass(frozen=True)
class Layout:
    """A tensor's axes from the outermost in memory on, seen as (L, d_1, …, d_m).

    Batch axes and leading modes left alone are the rows L; neighbouring modes left alone are one
    axis. So a plan depends on the feature shape and the memory format, never on the batch.
    """

    axes: tuple[int, ...]  # of the tensor, in the order of memory; batch axes first
    modes: tuple[int | None, ...]  # for axis 1, 2, … the index of its matrix, or None
    plan: Plan

    def large(self, x: Tensor) -> Tensor:
        """x, in whatever order it lies, as (L, large sizes)."""
        return x.permute(self.axes).reshape(-1, *self.plan.large)

    def small(self, z: Tensor) -> Tensor:
        return z.permute(self.axes).reshape(-1, *self.plan.small)

    def matrices(self, Us: Matrices) -> list[Tensor | None]:
        """The matrices by axis; axis 0, the rows, has none."""
        return [None, *(None if k is None else Us[k] for k in self.modes)]

    def logical(self, y: Tensor, like: Tensor, Us: Matrices, *, large: bool) -> Tensor:
        """The result (L, …) with the axes in the order of the tensor it came from."""
        shape = [like.shape[a] for a in self.axes]
        b = like.ndim - len(Us)
        for i, a in enumerate(self.axes[b:], start=b):
            U = Us[a - b]
            if U is not None:
                shape[i] = U.shape[0 if large else 1]
        return y.view(shape).permute(inverse(self.axes))


def layout_of(x: Tensor, Us: Matrices) -> Layout:
    """The layout of x, be it the large or the small side of the map."""
    b = x.ndim - len(Us)
    axes = memory_order(x, b)
    large: list[int] = []
    small: list[int] = []
    modes: list[int | None] = []
    for a in axes[b:]:
        U = Us[a - b]
        if U is not None:
            large.append(U.shape[0])
            small.append(U.shape[1])
            modes.append(a - b)
        elif modes and modes[-1] is None:
            large[-1] = small[-1] = large[-1] * x.shape[a]
        elif modes:
            large.append(x.shape[a])
            small.append(x.shape[a])
            modes.append(None)
    touched = tuple(k for k, mode in enumerate(modes, start=1) if mode is not None)
    plan = make_plan(tuple(large), tuple(small), touched, serves(x))
    return Layout(axes, tuple(modes), plan)


def memory_order(x: Tensor, b: int) -> tuple[int, ...]:
    """The axes of x: its b batch axes, then the others from the outermost in memory on."""
    strides = x.stride()
    return (*range(b), *sorted(range(b, x.ndim), key=lambda a: -strides[a]))


def inverse(axes: Sequence[int]) -> list[int]:
    return [axes.index(a) for a in range(len(axes))]
