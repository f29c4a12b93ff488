"""Which matrix products carry out a multilinear map, and in which order.

Note [The cost model]
    A tensor lies in memory as (L, d_1, …, d_m): L counts the rows of everything before the first
    mode to be projected, neighbouring modes left alone count as one. Projecting mode k is a matrix
    product over an (left, p_k, right) view of it, for which nothing is permuted or copied: one
    product where right = 1, else a batch of them. Neighbouring modes can go together as one
    product with the Kronecker product of their U's: more arithmetic, but in one pass of a shape
    that a GEMM is good at, in place of two passes of tiny ones.

    A pass costs whichever is larger: its traffic (bytes in and out), or its arithmetic, expressed
    as the bytes that could be moved in the same time (`FLOPS_PER_BYTE`). Arithmetic is dearer the
    smaller the product: each of its dimensions d adds `SMALL` / d to the time it would take at the
    full rate, half as much again in a batch of products, where besides an innermost dimension
    below the width of a vector register wastes the rest of the register.

    Three maps are planned: *shrink* (Eq. 1; the backward pass of Eq. 13), *grow* (Eq. 13; the
    backward pass of Eq. 1), and *pair*, the derivative by the U's, which pairs a large tensor X
    with a small one Z. For one mode that is one product of X and Z as they are once all other
    modes are brought to equal size, X shrunk or Z grown. These intermediate results are computed
    again from X and Z, not kept from the forward pass.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from itertools import permutations, product
from math import prod

# A group is a run of neighbouring axes that go together; axis 0 is L.
Group = tuple[int, ...]
Steps = tuple[Group, ...]

FLOPS_PER_BYTE = 6.0
SMALL = 8.0
VECTOR = 16
PASS_BYTES = 512.0  # what one more pass costs a row, in bytes that could be moved meanwhile
SEARCH_LIMIT = 5  # modes up to which all orders of all groupings are compared
KRONECKER_LIMIT = 2**18  # entries of a Kronecker product, at most
CHUNK_BYTES = 2**23  # of the larger tensor, so that intermediate results stay in the cache


@dataclass(frozen=True)
class Plan:
    """The steps of the three maps. ``large`` and ``small`` are the sizes of axes 1, 2, …"""

    large: tuple[int, ...]
    small: tuple[int, ...]
    touched: tuple[int, ...]
    shrink: Steps
    grow: Steps
    pair: Steps
    joint: bool  # whether grow(Z) and shrink(X), where wanted too, are the last step of `pair`


@lru_cache(maxsize=1024)
def make_plan(large: tuple[int, ...], small: tuple[int, ...], touched: tuple[int, ...]) -> Plan:
    """The cheapest steps for axes of these sizes, of which the touched ones (from 1) change."""
    ways = list(candidates(touched, large, small))
    shrink = min(ways, key=lambda steps: chain_cost(steps, large, small))
    grow = min(ways, key=lambda steps: chain_cost(steps, small, large))
    full = chain_cost(grow, small, large)
    pair = min(
        ways, key=lambda s: pair_cost(s, large, small) + min(full, last_cost(s, large, small))
    )
    joint = last_cost(pair, large, small) <= full
    return Plan(large, small, touched, shrink, grow, pair, joint)


def chain_cost(steps: Steps, source: tuple[int, ...], target: tuple[int, ...]) -> float:
    """Bytes per row for taking the source's sizes to the target's, group by group."""
    return sum(_product_cost(*view) for view in _views(steps, source, target))


def pair_cost(steps: Steps, large: tuple[int, ...], small: tuple[int, ...]) -> float:
    """Bytes per row for the derivative by every U, X being shrunk in the order of the steps."""
    shrinking = chain_cost(steps[:-1], large, small)
    growing = chain_cost(steps[:0:-1], small, large)  # Z grows in the opposite order
    return shrinking + growing + sum(_contraction_cost(*v) for v in _views(steps, large, small))


def last_cost(steps: Steps, large: tuple[int, ...], small: tuple[int, ...]) -> float:
    """Bytes per row for the step that is left to grow(Z) once the derivatives are there."""
    return chain_cost(steps[::-1], small, large) - chain_cost(steps[:0:-1], small, large)


def _views(
    steps: Steps, source: tuple[int, ...], target: tuple[int, ...]
) -> Iterator[tuple[int, int, int, int]]:
    """(left, P, Q, right) of each step's product."""
    sizes = list(source)
    for group in steps:
        P, Q = (prod(side[k - 1] for k in group) for side in (source, target))
        yield prod(sizes[: group[0] - 1]), P, Q, prod(sizes[group[-1] :])
        for k in group:
            sizes[k - 1] = target[k - 1]


def _product_cost(left: int, P: int, Q: int, right: int) -> float:
    traffic = 4.0 * left * (P + Q) * right
    flops = 2.0 * left * P * Q * right / _rate(P, Q, right)
    return max(traffic, flops / FLOPS_PER_BYTE) + PASS_BYTES


def _contraction_cost(left: int, P: int, Q: int, right: int) -> float:
    traffic = 4.0 * left * (P + Q) * right
    if right > 1:
        traffic *= 2  # it is repacked
    flops = 2.0 * left * P * Q * right / _rate(P, Q, right)
    return max(traffic, flops / FLOPS_PER_BYTE) + PASS_BYTES


def _rate(P: int, Q: int, right: int) -> float:
    """The share of the full rate that a product of these sizes reaches."""
    if right == 1:
        return 1 / (1 + SMALL / P + SMALL / Q)  # one product, as tall as the batch makes it
    small = 1.5 * SMALL  # a batch of small products is worse off than one tall product
    return 1 / (1 + small / P + small / Q + small / right) * min(1.0, right / VECTOR)


def candidates(
    touched: tuple[int, ...], large: tuple[int, ...], small: tuple[int, ...]
) -> Iterator[Steps]:
    """All orders of all groupings; of many modes, which have too many, one by one by shrinkage."""
    if len(touched) > SEARCH_LIMIT:
        by_shrinkage = sorted(touched, key=lambda k: small[k - 1] / large[k - 1])
        yield tuple((k,) for k in by_shrinkage)
        yield tuple((k,) for k in reversed(by_shrinkage))
        return
    for groups in _groupings(touched):
        entries = (prod(large[k - 1] * small[k - 1] for k in g) for g in groups if len(g) > 1)
        if all(n <= KRONECKER_LIMIT for n in entries):
            yield from permutations(groups)


def _groupings(touched: tuple[int, ...]) -> Iterator[Steps]:
    """All ways to cut the touched axes into runs of neighbours."""
    for cuts in product((False, True), repeat=max(len(touched) - 1, 0)):
        groups = [[k] for k in touched[:1]]
        for k, cut in zip(touched[1:], cuts, strict=True):
            if cut:
                groups.append([k])
            else:
                groups[-1].append(k)
        if all(g[-1] - g[0] == len(g) - 1 for g in groups):
            yield tuple(tuple(g) for g in groups)
