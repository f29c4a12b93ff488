"""How certain a difference is: 95 % intervals from the differences of all trials.

Note [Trials share images]: every trial splits the same images anew. Two trials train on images of
which most are the same, so their differences resemble each other more than those on new images
would, and an interval that takes them to be independent is too narrow: a quarter as wide as the
corrected one for 30 trials of a 70/30 split. Nadeau & Bengio, "Inference for the generalization
error", Machine Learning 52 (2003), therefore add to the variance of the mean, s²/J for J trials,
the share of it that more trials cannot take away: s² n₂/n₁, with n₂ images that validate and n₁
that train.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]

RESAMPLES = 10_000
# In all three studies 70 % train and 30 % validate.
VALIDATION_TO_TRAINING = 3 / 7


def bootstrap(values: Floats, seed: int = 0) -> tuple[float, float]:
    """A 95 % interval of the median by the percentile bootstrap; NaN of fewer than two values.

    >>> bootstrap(np.array([1.0, 2.0]))
    (1.0, 2.0)
    """
    if len(values) < 2:
        return math.nan, math.nan
    drawn = np.random.default_rng(seed).choice(values, (RESAMPLES, len(values)))
    low, high = np.quantile(np.median(drawn, axis=1), (0.025, 0.975))
    return float(low), float(high)


def corrected(values: Floats, ratio: float = VALIDATION_TO_TRAINING) -> tuple[float, float]:
    """The corrected 95 % interval of the mean, see Note [Trials share images]; NaN of fewer than 2.

    >>> corrected(np.array([1.0, 1.0, 1.0]))
    (1.0, 1.0)

    Args:
        values: a difference for each trial.
        ratio: how many images validate for each one that trains.
    """
    if len(values) < 2:
        return math.nan, math.nan
    from scipy.special import stdtrit

    spread = values.std(ddof=1) * math.sqrt(1 / len(values) + ratio)
    reach = float(stdtrit(len(values) - 1, 0.975) * spread)
    mean = float(values.mean())
    return mean - reach, mean + reach
