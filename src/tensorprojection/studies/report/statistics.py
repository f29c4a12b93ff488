"""Statistics of a report: scores, paired differences, and how certain a difference is.

Note [Trials share images]: every trial is a new split of the same images. Two trials have most of
their training images in common, so their differences are correlated. An interval for independent
differences is too narrow: a quarter as wide as the corrected one for 30 trials of a 70/30 split, an
eighth with a quarter of the training images. Nadeau & Bengio, "Inference for the generalization
error", Machine Learning 52 (2003), add s² n₂/n₁ to the variance of the mean, s²/J for J trials,
with n₁ training images and n₂ images that measure. More trials do not reduce this term. If all
trials have one split, the term is 0, and the interval is Student's.

Note [Scores]: the score of a trial is measured at the epoch with the lowest validation loss: on the
test part, if the run has one. On the validation images it is optimistic, because the epoch was
selected on the same data.
"""

from __future__ import annotations

import math
import warnings
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from .run import Run

Floats = NDArray[np.float64]
Part = Literal["validation", "test"]
Quartiles = tuple[float, float, float]

BASE = "base"
# The range of n values contains the median of their distribution in 1 − 2^(1−n) of all cases: with
# fewer values than these, no interval within the range reaches 95 %, and nothing is decided.
FEWEST = 6


@dataclass(frozen=True)
class Estimate:
    """A mean of paired differences with its 95 % interval; see Note [Trials share images].

    Attributes:
        value: the mean.
        low: the lower end; NaN if there is no interval.
        high: the upper end.
        p: of the two-sided test that the mean is zero; NaN without an interval.
        trials: the number of differences.
        ratio: n₂/n₁ of the correction; 0 if all trials have one split.
    """

    value: float
    low: float
    high: float
    p: float
    trials: int
    ratio: float

    @property
    def sign(self) -> int:
        """The sign of the whole interval; 0 if it contains zero or has too few trials."""
        if self.trials < FEWEST or not (self.low > 0 or self.high < 0):
            return 0
        return 1 if self.low > 0 else -1


@dataclass(frozen=True)
class Comparison:
    """One model by one metric, or by its column of one class; see Note [Scores].

    ``score`` and ``last`` are quartiles over the trials.
    ``difference`` is of the scores, model minus base, paired by trial; None without pairs.
    ``better`` counts the trials in which the model is better; None if that is not known.
    """

    metric: str
    model: str
    trials: int
    score: Quartiles
    difference: Estimate | None
    better: int | None
    last_epoch: int
    last: Quartiles  # on the validation images


def quartiles(values: Floats) -> Floats:
    """Return the 25, 50 and 75 % quantiles over the first axis as three rows, without NaN.

    >>> quartiles(np.array([[1.0, np.nan], [2.0, np.nan], [5.0, np.nan]]))
    array([[1.5, nan],
           [2. , nan],
           [3.5, nan]])
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)  # of a column without any value
        found: Floats = np.nanquantile(values, (0.25, 0.5, 0.75), axis=0)
    return found


def finite(values: Floats) -> Floats:
    """Return the values that are not NaN."""
    return values[~np.isnan(values)]


def corrected(values: Floats, ratio: float) -> Estimate:
    """Return the mean with its corrected interval; see Note [Trials share images].

    >>> found = corrected(np.array([1.0, 2.0, 3.0]), ratio=0)
    >>> round(found.low, 3), round(found.high, 3), round(found.p, 3)
    (-0.484, 4.484, 0.074)

    Args:
        values: a difference for each trial; fewer than two have no interval.
        ratio: n₂/n₁, the images that measure per image that trains.
    """
    from scipy.special import stdtr, stdtrit

    mean, freedom = float(values.mean()), len(values) - 1
    if freedom < 1:
        return Estimate(mean, math.nan, math.nan, math.nan, len(values), ratio)
    error = float(values.std(ddof=1)) * math.sqrt(1 / len(values) + ratio)
    reach = float(stdtrit(freedom, 0.975)) * error
    t = -abs(mean) / error if error else (-math.inf if mean else 0.0)
    p = 2 * float(stdtr(freedom, t))
    return Estimate(mean, mean - reach, mean + reach, p, len(values), ratio)


def estimate(run: Run, by_trial: Floats, part: Part = "validation") -> Estimate | None:
    """Return the mean of a difference that has a value for each trial; None without any."""
    there = ~np.isnan(by_trial)
    if not there.any():
        return None
    return corrected(by_trial[there], 0 if run.one_split else float(run.ratios[part][there].mean()))


def last_column(run: Run) -> int:
    """Return the column of the last epoch that every model has reached in some trial."""
    return int(min(np.flatnonzero(run.measured[model].any(axis=0))[-1] for model in run.models))


def paired(
    run: Run, metric: str, model: str, than: str = BASE
) -> tuple[Estimate | None, int | None]:
    """Return the difference of two models' scores, and in how many trials the first is better."""
    by_trial = run.scores(metric, model) - run.scores(metric, than)
    higher = run.metric(metric).higher_is_better
    better = None if higher is None else int(((by_trial if higher else -by_trial) > 0).sum())
    return estimate(run, by_trial, run.part), better


def compare(run: Run) -> tuple[Comparison, ...]:
    """Return a comparison for each metric and model, also of the metrics by class.

    The last epoch is the last that every model has reached. All numbers are of the trials that
    have reached it, so that an unfinished trial does not count at some epochs only.
    """
    last = last_column(run)
    found = []
    for metric in (*(one.name for one in run.metrics), *run.by_class):
        for model in run.models:
            if (metric, model) not in run.values:
                continue
            both = model != BASE and BASE in run.models
            difference, better = paired(run, metric, model) if both else (None, None)
            there = run.measured[model][:, last]
            found.append(
                Comparison(
                    metric=metric,
                    model=model,
                    trials=int(there.sum()),
                    score=_three(run.scores(metric, model)),
                    difference=difference,
                    better=better,
                    last_epoch=int(run.epochs[last]),
                    last=_three(run.values[metric, model][there, last]),
                )
            )
    return tuple(found)


def _three(values: Floats) -> Quartiles:
    low, median, high = quartiles(values).tolist()
    return low, median, high
