"""The cost model, computed a second time from its Note."""

from itertools import permutations
from math import prod

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tensorprojection.ops import plan
from tensorprojection.ops.plan import (
    Costs,
    candidates,
    make_plan,
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


def cost(group, before, after, contraction):
    moved = 4.0 * (prod(before) + prod(after))
    p = [before[k - 1] for k in group]
    q = [after[k - 1] for k in group]
    others = prod(before) // prod(p)
    if len(group) > 1:
        large, small = (p, q) if prod(p) >= prod(q) else (q, p)
        orders = permutations(range(len(p)))
        one = min(multiplications(o, large, small) for o in orders) / plan.TILE_RATE
        one *= 2 if contraction else 1
    else:
        rate = 1 / (1 + plan.SMALL * (1 / p[0] + 1 / q[0]))
        one = p[0] * q[0] / rate
    computed = 2.0 * others * one / plan.FLOPS_PER_BYTE
    return max(moved, computed) + moved / 2 + plan.PASS_BYTES


def chain(steps, source, target):
    return sum(cost(*step, False) for step in walk(steps, source, target))


def pair(steps, large, small):
    """X shrinks up to the last step, Z grows all the way, and at each step the two meet."""
    meetings = sum(cost(*step, True) for step in walk(steps, large, small))
    return chain(steps[:-1], large, small) + meetings + chain(steps[::-1], small, large)


sizes = st.lists(
    st.integers(1, 24).flatmap(lambda p: st.tuples(st.just(p), st.integers(1, p))),
    min_size=1,
    max_size=4,
)


def drawn(pairs):
    large, small = (tuple(side) for side in zip(*pairs, strict=True))
    return large, small, tuple(k for k in range(1, len(pairs) + 1) if k != 2 or len(pairs) < 3)


@given(sizes)
def test_costs_are_those_of_the_note(pairs):
    large, small, touched = drawn(pairs)
    costs = Costs(large, small)
    for steps in candidates(touched, large, small):
        assert costs.shrink(steps) == pytest.approx(chain(steps, large, small))
        assert costs.grow(steps) == pytest.approx(chain(steps, small, large))
        assert costs.pair(steps) == pytest.approx(pair(steps, large, small))


@given(sizes)
def test_the_plan_is_the_cheapest_by_them(pairs):
    large, small, touched = drawn(pairs)
    options = list(candidates(touched, large, small))
    made = make_plan(large, small, touched)
    shrunk = [chain(steps, large, small) for steps in options]
    grown = [chain(steps, small, large) for steps in options]
    paired = [pair(steps, large, small) for steps in options]
    assert chain(made.shrink, large, small) == pytest.approx(min(shrunk))
    assert chain(made.grow, small, large) == pytest.approx(min(grown))
    assert pair(made.pair, large, small) == pytest.approx(min(paired))


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
    options = list(candidates(touched, large, small))
    one_by_one = [k for (k,) in options[0]]
    shrinkage = [small[k - 1] for k in one_by_one]
    assert shrinkage == sorted(shrinkage)
    assert sorted(one_by_one) == list(touched)
    assert options[1] == options[0][::-1]
    assert len(options) == 2


def test_modes_that_do_not_fit_a_tile_go_alone():
    options = [*candidates((1, 2, 3), large=(4, 900, 4), small=(2, 900, 2))]
    assert {len(group) for steps in options for group in steps} == {1}
    few = [*candidates((1, 2, 3), large=(4, 6, 4), small=(2, 6, 2))]
    assert {len(group) for steps in few for group in steps} == {1, 2, 3}
