"""Odd quintics that, one after the other, take every number of (0, 1] to 1 as fast as any can.

Note [Polar Express]
    x -> a x + b x³ + c x⁵ is applied to singular values by products of matrices alone. Amsel et al.
    (arXiv 2505.16932) show: of all compositions of odd quintics the best is the greedy one, where
    each is the best approximation of 1 on the interval [l, u] that the ones before left, and leaves
    [1 - E, 1 + E] itself, E being its largest error. The best approximation of 1 has its error
    equal and of alternating sign in four points (Chebyshev), which Remez's exchange finds.
"""

from __future__ import annotations

from functools import cache
from math import sqrt
from typing import NamedTuple

import numpy as np

STEPS = 13
SMALLEST = 4e-7  # the smallest number that STEPS quintics take to 1 up to float64's rounding

# An interval as narrow as this is as well served by the quintic that is flattest at 1, Newton's;
# the exchange would only lose digits in it.
_NARROW = 2e-3
_EXCHANGES = 100


class Quintic(NamedTuple):
    """x -> a x + b x³ + c x⁵."""

    a: float
    b: float
    c: float

    def __call__(self, x: float) -> float:
        return x * (self.a + x * x * (self.b + x * x * self.c))


NEWTON = Quintic(15 / 8, -10 / 8, 3 / 8)  # 1 is a fixed point, and two derivatives vanish there


@cache
def quintics(smallest: float = SMALLEST, steps: int = STEPS) -> tuple[Quintic, ...]:
    """The greedy sequence for [smallest, 1]; see Note [Polar Express]."""
    low, high = smallest, 1.0
    found = []
    for _ in range(steps):
        if high - low > _NARROW:
            step, error = best_quintic(low, high)
            low, high = step(low), 1 + error
        else:
            step = NEWTON
            error = 2.5 * max(high - 1, 1 - low) ** 3
            low, high = 1 - error, 1 + error
        found.append(step)
    return tuple(found)


def best_quintic(low: float, high: float) -> tuple[Quintic, float]:
    """The odd quintic closest to 1 on [low, high], and its largest error there."""
    points = low + (high - low) * np.array([0, 0.35, 0.8, 1])
    signs = np.array([1, -1, 1, -1])
    for _ in range(_EXCHANGES):
        system = np.stack([points, points**3, points**5, signs], axis=1)
        a, b, c, error = np.linalg.solve(system, np.ones(4)).tolist()
        # The extremes inside: a + 3 b x² + 5 c x⁴ = 0.
        root = sqrt(9 * b * b - 20 * a * c)
        inside = sqrt((-3 * b - root) / (10 * c)), sqrt((-3 * b + root) / (10 * c))
        moved = np.array([low, *inside, high])
        settled = np.abs(moved - points).max() <= 1e-14 * high
        points = moved
        if settled:
            break
    return Quintic(a, b, c), abs(error)


QUINTICS = quintics()  # computed at import, so that torch.compile never traces it
