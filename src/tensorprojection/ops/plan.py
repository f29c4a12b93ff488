"""The steps of a multilinear map with the compiled kernels, and their order.

Note [The cost model]
    A tensor lies in memory as (L, d_1, …, d_m): L counts the rows of everything before the first
    mode to be projected, neighbouring modes left alone count as one. Projecting mode k is a matrix
    product over an (left, p_k, right) view of it, for which nothing is permuted or copied.
    Neighbouring modes can go together in one pass, as a *tile*: a piece that goes through all of
    its products while it is in the cache (kernels/csrc/maps.c, where it was built).

    A pass costs whichever is larger: its traffic (bytes in and out), or its arithmetic, expressed
    as the bytes that could be moved in the same time (`FLOPS_PER_BYTE`). Arithmetic is dearer the
    smaller the product: each of its dimensions d adds `SMALL` / d to the time it would take at the
    full rate. Tiles of several modes run at `TILE_RATE` of the full rate. Packing and unpacking
    costs half of the traffic, and each pass `PASS_BYTES`.

    Three maps are planned: *shrink* (Eq. 1; the backward pass of Eq. 13), *grow* (Eq. 13; the
    backward pass of Eq. 1), and *pair*, the derivatives with respect to the U's, which pair a large
    tensor X with a small one Z. For one mode that is one product of X and Z, once all other modes
    are brought to equal size, X shrunk or Z grown. These intermediate results are computed
    again from X and Z, not saved in the forward pass. grow(Z) or shrink(X) comes with the last
    step.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from itertools import permutations, product
from math import prod

from .limits import TILE_ENTRIES, TILE_MODES, TILE_NUMBERS

Sizes = tuple[int, ...]
# A group is a run of neighbouring axes that go together; axis 0 is L.
Group = tuple[int, ...]
Steps = tuple[Group, ...]

FLOPS_PER_BYTE = 6.0
SMALL = 8.0
PASS_BYTES = 512.0
SEARCH_LIMIT = 5  # modes up to which all orders of all groupings are compared
TILE_RATE = 0.85


@dataclass(frozen=True)
class Plan:
    """The steps of the three maps. ``large`` and ``small`` are the sizes of axes 1, 2, …"""

    large: Sizes
    small: Sizes
    shrink: Steps
    grow: Steps
    pair: Steps


@lru_cache(maxsize=1024)
def make_plan(large: Sizes, small: Sizes, touched: Sizes) -> Plan:
    """Return the cheapest steps for axes of these sizes, of which the touched (from 1) change."""
    costs = Costs(large, small)
    options = list(candidates(touched, large, small))
    steps = (min(options, key=cost) for cost in (costs.shrink, costs.grow, costs.pair))
    return Plan(large, small, *steps)


@dataclass(frozen=True)
class Costs:
    """The cost of steps in bytes per row, for each map. See Note [The cost model]."""

    large: Sizes
    small: Sizes

    def shrink(self, steps: Steps) -> float:
        return chain_cost(steps, self.large, self.small)

    def grow(self, steps: Steps) -> float:
        return chain_cost(steps, self.small, self.large)

    def pair(self, steps: Steps) -> float:
        """Return the cost of the derivatives of all U's, and of grow(Z): X shrinks in this order.

        Z grows in the opposite order.
        """
        contracting = sum(v.contraction_cost() for v in _views(steps, self.large, self.small))
        return self.shrink(steps[:-1]) + contracting + self.grow(steps[::-1])


def chain_cost(steps: Steps, source: Sizes, target: Sizes) -> float:
    """Return the bytes per row for taking the source's sizes to the target's, group by group."""
    return sum(view.product_cost() for view in _views(steps, source, target))


def fits_tile(p: Sizes, q: Sizes) -> bool:
    """Return True if modes of these sizes can go together as a tile; p is the large side."""
    entries = sum(a * b for a, b in zip(p, q, strict=True))
    return len(p) <= TILE_MODES and prod(p) <= TILE_NUMBERS and entries <= TILE_ENTRIES


@lru_cache(maxsize=1024)
def tile_order(p: Sizes, q: Sizes) -> Sizes:
    """Return the order of a tile's modes with the least arithmetic: to shrink; reversed to grow.

    Of equal ones, the innermost mode shrinks first and grows last: the tensor is then read and
    written line by line.
    """
    orders = permutations(reversed(range(len(p))))
    return min(orders, key=lambda order: _multiplications(order, p, q))


def _multiplications(order: Sizes, p: Sizes, q: Sizes) -> int:
    sizes, total = list(p), 0
    for k in order:
        total += prod(sizes) * q[k]
        sizes[k] = q[k]
    return total


@dataclass(frozen=True)
class _View:
    """One step over (left, p_1, p_2, …, right) -> (left, q_1, q_2, …, right)."""

    left: int
    p: Sizes
    q: Sizes
    right: int

    @property
    def traffic(self) -> float:
        return 4.0 * self.left * (prod(self.p) + prod(self.q)) * self.right

    @property
    def arithmetic(self) -> float:
        """The bytes that could be moved in the time of its operations."""
        P, Q = prod(self.p), prod(self.q)
        if len(self.p) > 1:
            large, small = (self.p, self.q) if P >= Q else (self.q, self.p)
            each = _multiplications(tile_order(large, small), large, small) / TILE_RATE
        else:
            each = P * Q * (1 + SMALL / P + SMALL / Q)
        return 2.0 * self.left * each * self.right / FLOPS_PER_BYTE

    def product_cost(self) -> float:
        return max(self.traffic, self.arithmetic) + self.traffic / 2 + PASS_BYTES

    def contraction_cost(self) -> float:
        # Of several modes, the steps within the tile as well.
        arithmetic = self.arithmetic * (2 if len(self.p) > 1 else 1)
        return max(self.traffic, arithmetic) + self.traffic / 2 + PASS_BYTES


def _views(steps: Steps, source: Sizes, target: Sizes) -> Iterator[_View]:
    sizes = list(source)
    for group in steps:
        p, q = (tuple(side[k - 1] for k in group) for side in (source, target))
        left, right = prod(sizes[: group[0] - 1]), prod(sizes[group[-1] :])
        yield _View(left, p, q, right)
        for k in group:
            sizes[k - 1] = target[k - 1]


def candidates(touched: Sizes, large: Sizes, small: Sizes) -> Iterator[Steps]:
    """Yield all orders of all groupings; of many modes, which have too many, one by one."""
    if len(touched) > SEARCH_LIMIT:
        by_shrinkage = sorted(touched, key=lambda k: small[k - 1] / large[k - 1])
        yield tuple((k,) for k in by_shrinkage)
        yield tuple((k,) for k in reversed(by_shrinkage))
        return
    for groups in _groupings(touched):
        if all(_can_go_together(group, large, small) for group in groups):
            yield from permutations(groups)


def _can_go_together(group: Group, large: Sizes, small: Sizes) -> bool:
    p, q = (tuple(side[k - 1] for k in group) for side in (large, small))
    return len(group) == 1 or fits_tile(p, q)


def _groupings(touched: tuple[int, ...]) -> Iterator[Steps]:
    """Yield every partition of the touched axes into runs of neighbours."""
    for cuts in product((False, True), repeat=max(len(touched) - 1, 0)):
        groups = [[k] for k in touched[:1]]
        for k, cut in zip(touched[1:], cuts, strict=True):
            if cut:
                groups.append([k])
            else:
                groups[-1].append(k)
        if all(g[-1] - g[0] == len(g) - 1 for g in groups):
            yield tuple(tuple(g) for g in groups)
