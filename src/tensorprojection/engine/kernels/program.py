"""A plan as the struct that steps.c reads."""

from __future__ import annotations

from math import prod
from typing import NamedTuple

import torch

from ..plan import Group, Plan, Steps, tile_order
from . import header

_CHUNK = 2**21  # numbers of the larger tensor, so that what is between two steps stays in the cache


class Program(NamedTuple):
    """The three maps of a plan, for a tensor of a certain size."""

    shrink: header.Struct
    grow: header.Struct
    pair: header.Struct
    few: bool  # whether there are so few numbers that one thread is enough
    entries: int  # of all matrices together
    spectra: int  # numbers in G, V and s of all matrices (layer.c)

    def threads(self) -> int:
        return 1 if self.few else torch.get_num_threads()


def make_program(plan: Plan, L: int) -> Program:
    """The program for a tensor of L rows."""
    shrink, grow, pair = (_encode(plan, steps, L) for steps in (plan.shrink, plan.grow, plan.pair))
    sides = [(plan.large[k - 1], plan.small[k - 1]) for k in plan.touched]
    entries, spectra = sum(p * q for p, q in sides), sum((2 * q + 1) * q for _, q in sides)
    return Program(shrink, grow, pair, L * prod(plan.large) <= header.ONE_THREAD, entries, spectra)


def _encode(plan: Plan, steps: Steps, L: int) -> header.Struct:
    return header.Plan(
        axes=len(plan.large),
        L=L,
        chunk=max(_CHUNK // prod(plan.large), 1) if len(steps) > 1 else L,
        large=plan.large,
        small=plan.small,
        steps=len(steps),
        step=tuple(_step(plan, group) for group in steps),
    )


def _step(plan: Plan, group: Group) -> header.Struct:
    p, q = (tuple(side[k - 1] for k in group) for side in (plan.large, plan.small))
    return header.Step(first=group[0] - 1, modes=len(group), order=tile_order(p, q))
