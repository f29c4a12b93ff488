"""Sharing out whole groups (patients) so that each class is divided as nearly as wanted."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

# Steps of the search for groups that bring each class to both sides. With a few classes it needs a
# handful; a table made so that there is no answer must not take for ever.
PATIENCE = 10_000
PASSES = 20


def share_groups(
    table: NDArray[np.int64], fraction: float, draw: np.random.Generator
) -> NDArray[np.bool_]:
    """Which groups train. ``table[g, c]`` is how many images of class c group g has.

    First some groups are set so that every class of two groups or more is on both sides, if any
    choice can do that. The others follow in random order, each to the side that lacks its classes
    most. Then single groups change sides as long as that brings the shares closer.

    >>> table = np.array([[1, 0]] * 10 + [[0, 1]] * 10)
    >>> trains = share_groups(table, 0.7, np.random.default_rng(0))
    >>> table[trains].sum(axis=0)
    array([7, 7])
    """
    # All images count as one more class: 70 % of all is wanted too, and neither side empty.
    table = np.column_stack([table[:, table.sum(axis=0) > 0], table.sum(axis=1)])
    shares = table / table.sum(axis=0)
    order = draw.permutation(len(table))
    side = _both_sides(table, order)
    _greedy(side, shares, fraction, order)
    trains: NDArray[np.bool_] = side == 1
    for _ in range(PASSES):
        if not _improve(trains, shares, table, fraction, order):
            break
    return trains


def _both_sides(table: NDArray[np.int64], order: NDArray[np.int64]) -> NDArray[np.int8]:
    """1 (trains), 0 (validates) or −1 (free) per group: each class that can is on both sides."""
    has = [[int(g) for g in order if table[g, c]] for c in range(table.shape[1])]
    # Rare classes first: they leave the least choice.
    scarce = sorted((c for c in range(len(has)) if len(has[c]) > 1), key=lambda c: len(has[c]))
    needs = [(c, wanted) for c in scarce for wanted in (1, 0)]
    side = np.full(len(table), -1, np.int8)
    steps = 0

    def settle(k: int) -> bool:
        nonlocal steps
        steps += 1
        if k == len(needs):
            return True
        c, wanted = needs[k]
        if any(side[g] == wanted for g in has[c]):
            return settle(k + 1)
        for g in has[c]:
            if steps > PATIENCE:
                return False
            if side[g] == -1:
                side[g] = wanted
                if settle(k + 1):
                    return True
                side[g] = -1
        return False

    settle(0)
    return side


def _greedy(
    side: NDArray[np.int8], shares: NDArray[np.float64], fraction: float, order: NDArray[np.int64]
) -> None:
    """Each free group goes where its classes are missing most, relative to that side's target."""
    have = np.stack([shares[side == 0].sum(axis=0), shares[side == 1].sum(axis=0)])
    wanted = np.array([[1 - fraction], [fraction]])
    for g in order:
        if side[g] == -1:
            full = (have / wanted) @ shares[g]
            side[g] = int(full[1] <= full[0])
            have[side[g]] += shares[g]


def _improve(
    trains: NDArray[np.bool_],
    shares: NDArray[np.float64],
    table: NDArray[np.int64],
    fraction: float,
    order: NDArray[np.int64],
) -> bool:
    """Let groups change sides where it helps and takes no class from a side; whether any did."""
    off = shares[trains].sum(axis=0) - fraction
    present = table > 0
    count = np.stack([present[~trains].sum(axis=0), present[trains].sum(axis=0)])
    several = count.sum(axis=0) > 1
    changed = False
    for g in order:
        here = int(trains[g])
        after = off + (shares[g] if here == 0 else -shares[g])
        # The sums carry rounding; without a margin two groups could swap for ever.
        last = present[g] & several & (count[here] == 1)
        if after @ after >= off @ off - 1e-12 or last.any():
            continue
        trains[g] = not trains[g]
        count[here] -= present[g]
        count[1 - here] += present[g]
        off = after
        changed = True
    return changed
