"""Which steps carry out a multilinear map, and in which order.

Note [The cost model]
    A tensor lies in memory as (L, d_1, …, d_m): L counts the rows of everything before the first
    mode to be projected, neighbouring modes left alone count as one. Projecting mode k is a matrix
    product over an (left, p_k, right) view of it, for which nothing is permuted or copied: one
    product where right = 1, else a batch of them. Neighbouring modes can go together, in one pass
    in place of one each: as a *tile*, a piece that goes through all of its products while it is in
    the cache (kernels/csrc/maps.c, where it was built), or else as one product with the Kronecker
    product of their U's, which is more arithmetic, but of a shape that a GEMM is good at.

    A pass costs whichever is larger: its traffic (bytes in and out), or its arithmetic, expressed
    as the bytes that could be moved in the same time (`FLOPS_PER_BYTE`). Arithmetic is dearer the
    smaller the product: each of its dimensions d adds `SMALL` / d to the time it would take at the
    full rate, half as much again in a batch of products, where besides an innermost dimension
    below the width of a vector register wastes the rest of the register. Tiles are not a batch of
    products, and those of several modes run at `TILE_RATE` of the full rate.

    Three maps are planned: *shrink* (Eq. 1; the backward pass of Eq. 13), *grow* (Eq. 13; the
    backward pass of Eq. 1), and *pair*, the derivatives with respect to the U's, which pair a large
    tensor X with a small one Z. For one mode that is one product of X and Z, once all other modes
    are brought to equal size, X shrunk or Z grown. These intermediate results are computed
    again from X and Z, not kept from the forward pass.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from itertools import permutations, product
from math import prod

from .limits import TILE_ENTRIES, TILE_MODES, TILE_NUMBERS

# A group is a run of neighbouring axes that go together; axis 0 is L.
Group = tuple[int, ...]
Steps = tuple[Group, ...]

FLOPS_PER_BYTE = 6.0
SMALL = 8.0
VECTOR = 16
PASS_BYTES = 512.0  # what one more pass costs per row, in bytes that could be moved meanwhile
SEARCH_LIMIT = 5  # modes up to which all orders of all groupings are compared
KRONECKER_LIMIT = 2**18  # entries of a Kronecker product, at most
TILE_RATE = 0.85  # of the full rate
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
    tiles: bool  # whether the steps are by compiled kernels


@lru_cache(maxsize=1024)
def make_plan(
    large: tuple[int, ...], small: tuple[int, ...], touched: tuple[int, ...], tiles: bool = False
) -> Plan:
    """The cheapest steps for axes of these sizes, of which the touched ones (from 1) change."""
    costs = Costs(large, small, touched, tiles)
    shrink, grow, pair = (min(costs.ways, key=c) for c in (costs.shrink, costs.grow, costs.pair))
    return Plan(large, small, touched, shrink, grow, pair, costs.is_joint(pair), tiles)


class Costs:
    """Bytes per row by which the ways to carry out each map are compared; `ways` are all of them.

    See Note [The cost model].
    """

    def __init__(
        self, large: tuple[int, ...], small: tuple[int, ...], touched: tuple[int, ...], tiles: bool
    ) -> None:
        self._sides = (large, small, tiles)
        self.ways = list(candidates(touched, large, small, tiles))
        self._least_grow = min(map(self.grow, self.ways))

    def shrink(self, steps: Steps) -> float:
        large, small, tiles = self._sides
        return chain_cost(steps, large, small, tiles)

    def grow(self, steps: Steps) -> float:
        large, small, tiles = self._sides
        return chain_cost(steps, small, large, tiles)

    def pair(self, steps: Steps) -> float:
        """The derivatives with respect to the U's, and what grow(Z) costs besides."""
        last = last_cost(steps, *self._sides) if self.is_joint(steps) else self._least_grow
        return pair_cost(steps, *self._sides) + last

    def is_joint(self, steps: Steps) -> bool:
        """Whether grow(Z) is best had as the last step of the derivatives."""
        return self._sides[2] or last_cost(steps, *self._sides) <= self._least_grow


def chain_cost(
    steps: Steps, source: tuple[int, ...], target: tuple[int, ...], tiles: bool
) -> float:
    """Bytes per row for taking the source's sizes to the target's, group by group."""
    return sum(view.product_cost() for view in _views(steps, source, target, tiles))


def pair_cost(steps: Steps, large: tuple[int, ...], small: tuple[int, ...], tiles: bool) -> float:
    """Bytes per row for the derivatives of all U's, X being shrunk in the order of the steps."""
    shrinking = chain_cost(steps[:-1], large, small, tiles)
    growing = chain_cost(steps[:0:-1], small, large, tiles)  # Z grows in the opposite order
    contracting = sum(view.contraction_cost() for view in _views(steps, large, small, tiles))
    return shrinking + growing + contracting


def last_cost(steps: Steps, large: tuple[int, ...], small: tuple[int, ...], tiles: bool) -> float:
    """Bytes per row for the step that is left to grow(Z) once the derivatives are there."""
    whole, before = (chain_cost(s, small, large, tiles) for s in (steps[::-1], steps[:0:-1]))
    return whole - before


def fits_tile(p: tuple[int, ...], q: tuple[int, ...]) -> bool:
    """Whether modes of these sizes can go together as a tile; p is the large side."""
    entries = sum(a * b for a, b in zip(p, q, strict=True))
    return len(p) <= TILE_MODES and prod(p) <= TILE_NUMBERS and entries <= TILE_ENTRIES


@lru_cache(maxsize=1024)
def tile_order(p: tuple[int, ...], q: tuple[int, ...]) -> tuple[int, ...]:
    """The order of a tile's modes with the least arithmetic: to shrink; reversed, to grow."""
    return min(permutations(range(len(p))), key=lambda order: _multiplications(order, p, q))


def _multiplications(order: tuple[int, ...], p: tuple[int, ...], q: tuple[int, ...]) -> int:
    sizes, total = list(p), 0
    for k in order:
        total += prod(sizes) * q[k]
        sizes[k] = q[k]
    return total


@dataclass(frozen=True)
class _View:
    """One step over (left, p_1, p_2, …, right) -> (left, q_1, q_2, …, right)."""

    left: int
    p: tuple[int, ...]
    q: tuple[int, ...]
    right: int
    tiles: bool

    @property
    def traffic(self) -> float:
        return 4.0 * self.left * (prod(self.p) + prod(self.q)) * self.right

    @property
    def arithmetic(self) -> float:
        """The bytes that could be moved in the time of its operations."""
        P, Q, right = prod(self.p), prod(self.q), self.right
        if self.tiles and len(self.p) > 1:
            large, small = (self.p, self.q) if P >= Q else (self.q, self.p)
            each = _multiplications(tile_order(large, small), large, small) / TILE_RATE
        else:
            each = P * Q / _rate(P, Q, 1 if self.tiles else right)
        return 2.0 * self.left * each * right / FLOPS_PER_BYTE

    def product_cost(self) -> float:
        return max(self.traffic, self.arithmetic) + self._packing + PASS_BYTES

    def contraction_cost(self) -> float:
        traffic, arithmetic = self.traffic, self.arithmetic
        if not self.tiles and self.right > 1:
            traffic *= 2  # it is repacked
        if self.tiles and len(self.p) > 1:
            arithmetic *= 2  # the steps within the tile as well
        return max(traffic, arithmetic) + self._packing + PASS_BYTES

    @property
    def _packing(self) -> float:
        """The cost of packing tiles and unpacking them."""
        return self.traffic / 2 if self.tiles else 0.0


def _views(
    steps: Steps, source: tuple[int, ...], target: tuple[int, ...], tiles: bool
) -> Iterator[_View]:
    sizes = list(source)
    for group in steps:
        p, q = (tuple(side[k - 1] for k in group) for side in (source, target))
        left, right = prod(sizes[: group[0] - 1]), prod(sizes[group[-1] :])
        yield _View(left, p, q, right, tiles)
        for k in group:
            sizes[k - 1] = target[k - 1]


def _rate(P: int, Q: int, right: int) -> float:
    """The share of the full rate that a product of these sizes reaches."""
    if right == 1:
        return 1 / (1 + SMALL / P + SMALL / Q)  # one product, as tall as the batch makes it
    small = 1.5 * SMALL  # a batch of small products is worse off than one tall product
    return 1 / (1 + small / P + small / Q + small / right) * min(1.0, right / VECTOR)


def candidates(
    touched: tuple[int, ...], large: tuple[int, ...], small: tuple[int, ...], tiles: bool = False
) -> Iterator[Steps]:
    """All orders of all groupings; of many modes, which have too many, one by one by shrinkage."""
    if len(touched) > SEARCH_LIMIT:
        by_shrinkage = sorted(touched, key=lambda k: small[k - 1] / large[k - 1])
        yield tuple((k,) for k in by_shrinkage)
        yield tuple((k,) for k in reversed(by_shrinkage))
        return
    for groups in _groupings(touched):
        if all(_can_go_together(group, large, small, tiles) for group in groups):
            yield from permutations(groups)


def _can_go_together(
    group: Group, large: tuple[int, ...], small: tuple[int, ...], tiles: bool
) -> bool:
    p, q = (tuple(side[k - 1] for k in group) for side in (large, small))
    fits = fits_tile(p, q) if tiles else prod(p) * prod(q) <= KRONECKER_LIMIT
    return len(group) == 1 or fits


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
