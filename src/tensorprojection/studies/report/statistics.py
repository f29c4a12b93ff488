"""Statistics of a report: medians, paired differences, and how certain a difference is.

Note [Trials share images]: every trial is a new split of the same images. Two trials have most of
their training images in common, so their differences are correlated. An interval for independent
differences is too narrow: a quarter as wide as the corrected one for 30 trials of a 70/30 split, an
eighth with a quarter of the training images. Nadeau & Bengio, "Inference for the generalization
error", Machine Learning 52 (2003), add s² n₂/n₁ to the variance of the mean, s²/J for J trials,
with n₁ training and n₂ validation images. More trials do not reduce this term.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from .run import Run

Floats = NDArray[np.float64]

BASE = "base"
RESAMPLES = 10_000
# The range of n values contains the median of their distribution in 1 − 2^(1−n) of all cases: with
# fewer values than these, no interval within the range reaches 95 %, and nothing is decided.
FEWEST = 6


@dataclass(frozen=True)
class Estimate:
    """A difference with its 95 % interval; the interval's ends are NaN if there is none.

    Attributes:
        kind: "corrected mean", see Note [Trials share images]; or "bootstrap median", if all trials
            have one split of the images.
        value: the mean or the median.
        low: the lower end.
        high: the upper end.
        trials: the number of differences.
    """

    kind: Literal["corrected mean", "bootstrap median"]
    value: float
    low: float
    high: float
    trials: int

    @property
    def sign(self) -> int:
        """The sign of the whole interval; 0 if it contains zero or has too few trials."""
        if self.trials < FEWEST or not (self.low > 0 or self.high < 0):
            return 0
        return 1 if self.low > 0 else -1


@dataclass(frozen=True)
class Comparison:
    """One model by one metric, with medians and quartiles over the trials.

    ``difference`` is model minus base, paired by trial, at the last epoch; None without pairs.
    ``better`` counts the trials in which the model is better; None if that is not known.
    """

    metric: str
    model: str
    trials: int
    last_epoch: int
    last: tuple[float, float, float]  # quartiles
    best_epoch: int | None  # None if no value is finite
    best: tuple[float, float, float]
    difference: Estimate | None
    better: int | None


def quartiles(values: Floats) -> Floats:
    """Return the 25, 50 and 75 % quantiles of each column as three rows, without NaN.

    >>> quartiles(np.array([[1.0, np.nan], [2.0, np.nan], [5.0, np.nan]]))
    array([[1.5, nan],
           [2. , nan],
           [3.5, nan]])
    """
    result = np.full((3, values.shape[1]), np.nan)
    for k, column in enumerate(values.T):
        if len(known := finite(column)):
            result[:, k] = np.quantile(known, (0.25, 0.5, 0.75))
    return result


def finite(values: Floats) -> Floats:
    """Return the values that are not NaN."""
    return values[~np.isnan(values)]


def bootstrap(values: Floats, seed: int = 0) -> tuple[float, float]:
    """Return a 95 % interval of the median by the percentile bootstrap; NaN for fewer than two.

    >>> bootstrap(np.array([1.0, 2.0]))
    (1.0, 2.0)
    """
    if len(values) < 2:
        return math.nan, math.nan
    drawn = np.random.default_rng(seed).choice(values, (RESAMPLES, len(values)))
    low, high = np.quantile(np.median(drawn, axis=1), (0.025, 0.975))
    return float(low), float(high)


def corrected(values: Floats, ratio: float) -> tuple[float, float]:
    """Return the corrected 95 % interval of the mean; see Note [Trials share images].

    >>> corrected(np.array([1.0, 1.0, 1.0]), ratio=3 / 7)
    (1.0, 1.0)

    Args:
        values: a difference for each trial; fewer than two give NaN.
        ratio: n₂/n₁, how many images validate for each one that trains; NaN gives NaN.
    """
    if len(values) < 2 or math.isnan(ratio):
        return math.nan, math.nan
    from scipy.special import stdtrit

    spread = values.std(ddof=1) * math.sqrt(1 / len(values) + ratio)
    reach = float(stdtrit(len(values) - 1, 0.975) * spread)
    mean = float(values.mean())
    return mean - reach, mean + reach


def estimate(run: Run, by_trial: Floats) -> Estimate | None:
    """Return the estimate of a difference that has a value for each trial; None without any."""
    values = finite(by_trial)
    if not len(values):
        return None
    if run.one_split:
        ends = bootstrap(values)
        return Estimate("bootstrap median", float(np.median(values)), *ends, len(values))
    ratio = float(run.ratios[~np.isnan(by_trial)].mean())
    ends = corrected(values, ratio)
    return Estimate("corrected mean", float(values.mean()), *ends, len(values))


def last_column(run: Run) -> int:
    """Return the column of the last epoch that every model has reached in some trial."""
    return int(min(np.flatnonzero(run.measured[model].any(axis=0))[-1] for model in run.models))


def compare(run: Run) -> tuple[Comparison, ...]:
    """Return a comparison for each metric and model.

    The last epoch is the last that every model has reached. All numbers are of the trials that
    have reached it, so that an unfinished trial does not count at some epochs only.
    """
    last = last_column(run)
    return tuple(_compare(run, m.name, model, last) for m in run.metrics for model in run.models)


def _compare(run: Run, metric: str, model: str, last: int) -> Comparison:
    there = run.measured[model][:, last]
    values = np.where(there[:, None], run.values[metric, model], np.nan)[:, : last + 1]
    by_epoch = quartiles(values)
    higher = run.metric(metric).higher_is_better
    best = _best(by_epoch[1], higher)
    difference, better = None, None
    if model != BASE and BASE in run.models:
        differences = values[:, last] - run.values[metric, BASE][:, last]
        difference = estimate(run, differences)
        if higher is not None:
            better = int(((differences > 0) if higher else (differences < 0)).sum())
    return Comparison(
        metric=metric,
        model=model,
        trials=int(there.sum()),
        last_epoch=int(run.epochs[last]),
        last=_three(by_epoch[:, last]),
        best_epoch=None if best is None else int(run.epochs[best]),
        best=(math.nan,) * 3 if best is None else _three(by_epoch[:, best]),
        difference=difference,
        better=better,
    )


def _best(medians: Floats, higher: bool | None) -> int | None:
    """Return the column of the best median, the first of equals; None if it is not known."""
    if higher is None or np.isnan(medians).all():
        return None
    return int(np.nanargmax(medians) if higher else np.nanargmin(medians))


def _three(column: Floats) -> tuple[float, float, float]:
    low, median, high = map(float, column)
    return low, median, high
