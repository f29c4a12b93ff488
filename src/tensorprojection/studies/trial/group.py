"""Processes that train one network together: each has a share of every batch.

Shares are runs of neighbours, so that what is gathered from all ranks is the batch in its order,
and differ by one row at most. A share may be empty, as the last batch of an epoch can be small.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor, distributed

from ..inputs import Rows


class Group:
    """This process's rank among those that train together.

    Args:
        rank: its number.
        size: how many there are; 1 needs no process group.
    """

    def __init__(self, rank: int, size: int) -> None:
        self.rank, self.size = rank, size
        self.batch = 0  # rows of the batch at hand, of all ranks together

    def share(self, rows: Rows) -> Rows:
        """This rank's rows of the batch, which from now on is the one at hand."""
        self.batch = len(rows)
        return rows[self.bounds]

    @property
    def sizes(self) -> list[int]:
        """How many rows of the batch at hand each rank has."""
        return [len(part) for part in np.array_split(np.empty(self.batch), self.size)]

    @property
    def bounds(self) -> slice:
        """Where in the batch this rank's rows are."""
        start = sum(self.sizes[: self.rank])
        return slice(start, start + self.sizes[self.rank])

    def gather(self, mine: Tensor) -> Tensor:
        """The rows of all ranks, in their order; differentiable.

        Every rank goes on to compute the same from them. So the gradient of this rank's rows is
        that of its own result, times the number of ranks, over which gradients are averaged later.
        """
        if self.size == 1:
            return mine
        gathered: Tensor = _Gather.apply(mine, self)  # type: ignore[no-untyped-call]
        return gathered

    def total(self, mine: Tensor) -> Tensor:
        """The sum over all ranks; differentiable."""
        if self.size == 1:
            return mine
        summed: Tensor = _Total.apply(mine)  # type: ignore[no-untyped-call]
        return summed


class _Gather(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, mine: Tensor, group: Group) -> Tensor:
        ctx.bounds, ctx.size = group.bounds, group.size
        sizes = group.sizes
        # Of one size for all ranks, as the processes exchange them.
        padded = mine.new_zeros((max(sizes), *mine.shape[1:]))
        padded[: len(mine)] = mine
        parts = [torch.empty_like(padded) for _ in sizes]
        distributed.all_gather(parts, padded)
        return torch.cat([part[:size] for part, size in zip(parts, sizes, strict=True)])

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        return gradient[ctx.bounds] * ctx.size, None


class _Total(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, mine: Tensor) -> Tensor:
        return _summed(mine)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        return _summed(gradient)


def _summed(mine: Tensor) -> Tensor:
    whole = mine.detach().clone(memory_format=torch.contiguous_format)
    distributed.all_reduce(whole)
    return whole
