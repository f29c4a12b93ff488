"""Carries out a plan: the three maps on a tensor (L, d_1, …, d_m) that is contiguous in memory.

``As[k]`` is the ``large × small`` matrix of axis k, None for an axis left alone and for axis 0.
No autograd here; see project.py for the derivatives, plan.py for the choice of steps.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from math import prod
from typing import Literal

import torch
from torch import Tensor

from .plan import CHUNK_BYTES, Group, Plan
from .steps import make_step

Matrices = Sequence[Tensor | None]


def shrink(X: Tensor, As: Matrices, plan: Plan) -> Tensor:
    """X ×_k A_kᵀ for all k."""
    return _chain(X, [make_step(g, As, plan).shrink for g in plan.shrink], plan.small)


def grow(Z: Tensor, As: Matrices, plan: Plan) -> Tensor:
    """Z ×_k A_k for all k."""
    return _chain(Z, [make_step(g, As, plan).grow for g in plan.grow], plan.large)


def pair(
    X: Tensor, Z: Tensor, As: Matrices, plan: Plan, *, want_grown: bool, want_shrunk: bool
) -> tuple[Tensor | None, Tensor | None, list[Tensor | None]]:
    """grow(Z), shrink(X), and the derivatives of <shrink(X), Z> by every A_k.

    The first two come along for the price of one step where the plan for them allows it.
    """
    steps, last = [make_step(group, As, plan) for group in plan.pair], len(plan.pair) - 1
    grown, shrunk = _Rows(X.shape, X), _Rows(Z.shape, X)
    by_axis: list[Tensor | None] = [None] * len(As)
    for rows in _chunks(X, several=last > 0):
        xs, z = [X[rows]], Z[rows]
        for step in steps[:last]:
            xs.append(step.shrink(xs[-1]))
        for i in range(last, -1, -1):
            paired = steps[i].pair(
                xs[i],
                z,
                grown=i > 0 or (want_grown and plan.joint and grown.room(rows)),
                shrunk=i == last and want_shrunk and plan.joint and shrunk.room(rows),
            )
            _add(by_axis, plan.pair[i], paired.derivatives)
            if i == last and paired.shrunk is not None:
                shrunk.put(rows, paired.shrunk)
            if i > 0:
                assert paired.grown is not None
                z = paired.grown
            elif paired.grown is not None:
                grown.put(rows, paired.grown)
    if want_grown and not plan.joint:
        grown.whole = grow(Z, As, plan)
    if want_shrunk and not plan.joint:
        shrunk.whole = shrink(X, As, plan)
    return grown.whole, shrunk.whole, by_axis


def _add(by_axis: list[Tensor | None], group: Group, derivatives: list[Tensor]) -> None:
    for k, D in zip(group, derivatives, strict=True):
        total = by_axis[k]
        by_axis[k] = D if total is None else total.add_(D)


def _chain(x: Tensor, maps: list[Callable[..., Tensor]], sizes: tuple[int, ...]) -> Tensor:
    """The maps one after the other, to a tensor (L, *sizes)."""
    if not maps:
        return x.clone()
    shape = torch.Size((x.shape[0], *sizes))
    result = _Rows(shape, x)
    larger = x if x.numel() > prod(shape) else x.new_empty(()).expand(shape)
    *first, last = maps
    for rows in _chunks(larger, several=len(maps) > 1):
        part = x[rows]
        for step in first:
            part = step(part)
        room = result.room(rows)
        result.put(rows, last(part, None if room is True else room))
    assert result.whole is not None
    return result.whole


class _Rows:
    """A result put together from its rows; where they come all at once, as it comes."""

    def __init__(self, shape: torch.Size, like: Tensor) -> None:
        self.shape, self.like = shape, like
        self.whole: Tensor | None = None

    def room(self, rows: slice) -> Tensor | Literal[True]:
        """Where to write these rows; True: anywhere."""
        if rows == slice(0, self.shape[0]):
            return True
        if self.whole is None:
            self.whole = self.like.new_empty(self.shape)
        return self.whole[rows]

    def put(self, rows: slice, result: Tensor) -> None:
        """What was written, in its room or anywhere."""
        if rows == slice(0, self.shape[0]):
            self.whole = result


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
