"""The cost model, written a second time from its Note: step by step, by counting."""

from itertools import permutations
from math import prod

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tensorprojection.ops import plan
from tensorprojection.ops.plan import (
    Costs,
    candidates,
    chain_cost,
    last_cost,
    make_plan,
    pair_cost,
    tile_order,
)


def walk(steps, source, target):
    """Sizes before and after each step, and which axes it changes."""
    now = list(source)
    for group in steps:
        before = tuple(now)
        for k in group:
            now[k - 1] = target[k - 1]
        yield group, before, tuple(now)


def multiplications(order, before, after):
    """Of a tile whose modes go one by one: every number of a result takes as many as it sums."""
    now, total = list(before), 0
    for k in order:
        summed, now[k] = now[k], after[k]
        total += prod(now) * summed
    return total


def share_of_full_rate(rows, columns, behind):
    if behind == 1:
        return 1 / (1 + plan.SMALL * (1 / rows + 1 / columns))
    slow = 1 + 1.5 * plan.SMALL * (1 / rows + 1 / columns + 1 / behind)
    return min(1.0, behind / plan.VECTOR) / slow


def cost(group, before, after, tiles, contraction):
    moved = 4.0 * (prod(before) + prod(after))
    p = [before[k - 1] for k in group]
    q = [after[k - 1] for k in group]
    behind = prod(before[group[-1] :])
    others = prod(before) // prod(p)
    together = tiles and len(group) > 1
    if together:
        large, small = (p, q) if prod(p) >= prod(q) else (q, p)
        orders = permutations(range(len(p)))
        one = min(multiplications(o, large, small) for o in orders) / plan.TILE_RATE
    else:
        rate = share_of_full_rate(prod(p), prod(q), 1 if tiles else behind)
        one = prod(p) * prod(q) / rate
    computed = 2.0 * others * one / plan.FLOPS_PER_BYTE
    packed = moved / 2 if tiles else 0.0
    if contraction:
        if not tiles and behind > 1:
            moved *= 2
        if together:
            computed *= 2
    return max(moved, computed) + packed + plan.PASS_BYTES


def chain(steps, source, target, tiles):
    return sum(cost(*step, tiles, False) for step in walk(steps, source, target))


sizes = st.lists(
    st.integers(1, 24).flatmap(lambda p: st.tuples(st.just(p), st.integers(1, p))),
    min_size=1,
    max_size=4,
)


def drawn(pairs):
    large, small = (tuple(side) for side in zip(*pairs, strict=True))
    return large, small, tuple(k for k in range(1, len(pairs) + 1) if k != 2 or len(pairs) < 3)


@given(sizes, st.booleans())
def test_costs_are_those_of_the_note(pairs, tiles):
    large, small, touched = drawn(pairs)
    for steps in candidates(touched, large, small, tiles):
        assert chain_cost(steps, large, small, tiles) == pytest.approx(
            chain(steps, large, small, tiles)
        )
        backwards = steps[::-1]
        assert chain_cost(backwards, small, large, tiles) == pytest.approx(
            chain(backwards, small, large, tiles)
        )
        # X shrinks up to the last step and Z grows up to the first, and at each the two meet.
        meetings = sum(cost(*step, tiles, True) for step in walk(steps, large, small))
        pair = chain(steps[:-1], large, small, tiles) + meetings
        pair += chain(backwards[:-1], small, large, tiles)
        assert pair_cost(steps, large, small, tiles) == pytest.approx(pair)
        *_, final = walk(backwards, small, large)
        assert last_cost(steps, large, small, tiles) == pytest.approx(cost(*final, tiles, False))


@given(sizes, st.booleans())
def test_the_plan_is_the_cheapest_by_them(pairs, tiles):
    large, small, touched = drawn(pairs)
    ways = list(candidates(touched, large, small, tiles))
    made = make_plan(large, small, touched, tiles)
    grown = {steps: chain(steps, small, large, tiles) for steps in ways}
    least = min(grown.values())
    assert chain(made.shrink, large, small, tiles) == pytest.approx(
        min(chain(steps, large, small, tiles) for steps in ways)
    )
    assert grown[made.grow] == pytest.approx(least)
    whole = Costs(large, small, touched, tiles)
    assert whole.pair(made.pair) == pytest.approx(min(map(whole.pair, ways)))
    if tiles:
        assert made.joint
    assert make_plan(large, small, touched).tiles is False


@given(sizes)
def test_a_tile_takes_the_order_with_the_fewest_multiplications(pairs):
    large, small, _ = drawn(pairs)
    order = tile_order(large, small)
    least = min(multiplications(o, large, small) for o in permutations(range(len(large))))
    assert multiplications(order, large, small) == least


def test_many_modes_go_by_how_much_they_shrink():
    count = plan.SEARCH_LIMIT + 1
    large, small = (8,) * count, tuple(1 + k % 8 for k in range(count))
    touched = tuple(range(1, count + 1))
    ways = list(candidates(touched, large, small))
    one_by_one = [k for (k,) in ways[0]]
    shrinkage = [small[k - 1] for k in one_by_one]
    assert shrinkage == sorted(shrinkage)
    assert sorted(one_by_one) == list(touched)
    assert ways[1] == ways[0][::-1]
    assert len(ways) == 2


def test_a_kronecker_product_that_would_be_too_large_is_no_candidate():
    ways = [*candidates((1, 2, 3), large=(4, 600, 4), small=(2, 600, 2))]
    assert {len(group) for steps in ways for group in steps} == {1}
    few = [*candidates((1, 2, 3), large=(4, 6, 4), small=(2, 6, 2))]
    assert {len(group) for steps in few for group in steps} == {1, 2, 3}
