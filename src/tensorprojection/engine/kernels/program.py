"""A plan as the numbers that contract.c reads."""

from __future__ import annotations

from ctypes import Array, c_int64
from math import prod
from typing import NamedTuple

import torch

from ..plan import Plan, Steps, tile_order

MOST_AXES = 12  # as in contract.c
_CHUNK = 2**21  # numbers of the larger tensor: what is between two steps should stay in the cache
_FEW = 2**14  # numbers for which waking another thread does not pay


class Program(NamedTuple):
    """The three maps of a plan, for a tensor of a certain size."""

    shrink: Array[c_int64]
    grow: Array[c_int64]
    pair: Array[c_int64]
    few: bool
    entries: int  # of all matrices
    spectra: int  # numbers in G, V and s of all matrices (layer.c)

    def threads(self) -> int:
        return 1 if self.few else torch.get_num_threads()


def make_program(plan: Plan, L: int) -> Program:
    """For L rows."""
    shrink, grow, pair = (_encode(plan, steps, L) for steps in (plan.shrink, plan.grow, plan.pair))
    sides = [(plan.large[k - 1], plan.small[k - 1]) for k in plan.touched]
    entries, spectra = sum(p * q for p, q in sides), sum((2 * q + 1) * q for _, q in sides)
    return Program(shrink, grow, pair, L * prod(plan.large) <= _FEW, entries, spectra)


def _encode(plan: Plan, steps: Steps, L: int) -> Array[c_int64]:
    rows = max(_CHUNK // prod(plan.large), 1) if len(steps) > 1 else L
    numbers = [len(plan.large), L, rows, *plan.large, *plan.small, len(steps)]
    for group in steps:
        p, q = (tuple(side[k - 1] for k in group) for side in (plan.large, plan.small))
        numbers += [group[0] - 1, len(group), *tile_order(p, q)]
    return (c_int64 * len(numbers))(*numbers)
