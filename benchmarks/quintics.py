"""Print the constants of ops/matmul_only.py: the quintics of its iteration, and its shifts.

    python benchmarks/quintics.py

Note [Remez]
    The best approximation of 1 by an odd quintic on [l, u] has its error equal and of alternating
    sign in four points (Chebyshev), which Remez's exchange finds. It leaves [1 - E, 1 + E] to the
    next one, E being its largest error.
"""

from __future__ import annotations

from math import sqrt

import numpy as np

from tensorprojection.ops.matmul_only import GAIN, NEWTON, SMALLEST, SMALLEST_ROOT, STEEP

STEPS = 12
# What the rational step leaves to the quintics. Far above HIGH they would diverge, hence the slack.
LOW, HIGH = SMALLEST * GAIN, 1 + GAIN / STEEP + 5e-5
# An interval as narrow as this is served as well by the quintic that is flattest at 1, Newton's;
# the exchange would only lose digits in it.
NARROW = 2e-3

Quintic = tuple[float, float, float]


def quintics(low: float = LOW, high: float = HIGH, steps: int = STEPS) -> list[Quintic]:
    """Return the greedy sequence for [low, high]."""
    found = []
    for _ in range(steps):
        if high - low > NARROW:
            step, error = best_quintic(low, high)
            low, high = apply(step, low), 1 + error
        else:
            step, error = NEWTON, 2.5 * max(high - 1, 1 - low) ** 3
            low, high = 1 - error, 1 + error
        found.append(step)
    return found


def best_quintic(low: float, high: float) -> tuple[Quintic, float]:
    """Return the odd quintic closest to 1 on [low, high], and its largest error there."""
    points = low + (high - low) * np.array([0, 0.35, 0.8, 1])
    signs = np.array([1, -1, 1, -1])
    for _ in range(100):
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
    return (a, b, c), abs(error)


def apply(step: Quintic, x: float) -> float:
    a, b, c = step
    return x * (a + x * x * (b + x * x * c))


def shifts(low: float = SMALLEST_ROOT, high: float = 1.0, halvings: int = 2) -> tuple[float, ...]:
    """Return the best 2^halvings shifts for eigenvalues in [low, high] (Wachspress, 1963).

    x -> (x + low high / x) / 2 folds the interval onto [√(low high), (low + high)/2], where half as
    many are needed; each of those comes from two.
    """
    middle = sqrt(low * high)
    if halvings == 0:
        return (middle,)
    found: list[float] = []
    for p in shifts(middle, (low + high) / 2, halvings - 1):
        root = sqrt(p * p - low * high)
        found += [p + root, low * high / (p + root)]
    return tuple(found)


if __name__ == "__main__":
    print("QUINTICS = (")
    for step in quintics():
        print(f"    {step},")
    print(f")\nSHIFTS = {shifts()}")
