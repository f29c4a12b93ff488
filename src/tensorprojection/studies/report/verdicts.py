"""Verdicts on the paper's claims, computed from a run's paired differences by one rule.

Note [Numbers for the paper's words]: the paper writes "initially", "the first few epochs" and
"nearly the same", and gives no numbers. Here the first epochs are the first quarter of those
planned: 5 of the paper's 20 (OCT, chest) and 7 of its 25 (Kvasir). A share is used because five
epochs are half of a short run. Nearly the same is within 0.01, one image of a hundred. If the paper
gives a number, such as epoch 12 for overfitting in the OCT study, that number is used, and a run
that ends before it decides nothing.
"""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import dataclass
from typing import Literal

import numpy as np

from ..study import Claim
from .run import Run
from .statistics import FEWEST, Estimate, Floats, estimate, last_column
from .tables import capital, count, difference, interval, number

FIRST_SHARE = 0.25
Word = Literal["supported", "not supported", "undecided at this size"]
UNDECIDED: Word = "undecided at this size"
WORDS: tuple[Word, ...] = ("supported", "not supported", UNDECIDED)

RULE = (
    "The networks of a trial have the same split, so they are compared trial by trial, and the "
    "differences give a 95 % interval of their mean, corrected for trials that share images "
    "(Nadeau & Bengio 2003) with the run's own numbers of training and validation images; if all "
    f"trials have one split of the images, it needs no correction. Fewer than {FEWEST} trials "
    "decide nothing.",
    "A claim is supported if the whole interval has the claimed sign, for “nearly "
    "the same” within the margin; not supported if the whole interval has the other sign, "
    "for “nearly the same” outside of the margin; undecided at this size in all other cases. A "
    "claim about every epoch is supported if it holds at all epochs, and not supported if it is "
    "rejected at any.",
    f"The first epochs are the first {round(100 * FIRST_SHARE)} % of those planned, and their mean "
    "is compared. Overfitting is the rise of a loss from its lowest value to its last. A loss "
    "rises late if its last value is above that at the epoch with the lowest mean in the other "
    "trials: no trial selects its own epoch. How much a network varies is the mean width of its "
    "quartile band, with a bootstrap interval over the trials. If the paper names an epoch, a run "
    "that ends before it decides nothing.",
)


@dataclass(frozen=True)
class Verdict:
    """A claim, the verdict, and the evidence.

    ``tested`` is False if the run does not have what the claim is about.
    """

    claim: Claim
    word: Word
    evidence: str
    tested: bool = True


def verdicts(run: Run) -> list[Verdict]:
    """Return a verdict for each claim of the study."""
    if run.study is None or run.held_out is not None:  # the claims are about validation by epoch
        return []
    return [judge(run, claim) for claim in run.study.claims]


def judge(run: Run, claim: Claim) -> Verdict:
    """Return the verdict on one claim; see Note [Numbers for the paper's words]."""
    end, planned = last_column(run) + 1, run.config.epochs
    epochs, first = run.epochs[:end], math.ceil(FIRST_SHARE * planned)
    if why := _why_untested(run, claim, first, int(epochs[-1])):
        return Verdict(claim, UNDECIDED, why, tested=False)
    own, other = (run.values[claim.metric, name][:, :end] for name in (claim.model, claim.than))
    if claim.measure == "spread":
        return _spread(run, claim, own[:, epochs <= first], other[:, epochs <= first])
    when = f"epoch {epochs[-1]}" + (f" of {planned} planned" if epochs[-1] < planned else "")
    if claim.measure == "each":
        found = Counter(decide(claim, estimate(run, column)) for column in (own - other).T)
        each = ", ".join(f"{word} at {found[word]}" for word in WORDS if found[word])
        word: Word = "not supported" if found["not supported"] else UNDECIDED
        word = "supported" if found["supported"] == end else word
        at_end = _evidence(run, claim, (own - other)[:, -1], f"epoch {epochs[-1]}")
        return Verdict(claim, word, f"Of {end} epochs: {each}. {at_end}")
    if claim.measure == "rise":
        by_trial, when = _rise(own) - _rise(other), f"rise from its lowest to {when}"
    elif claim.measure == "late":
        by_trial = own[:, -1] - _lowest_of_others(own)
        when += " minus the epoch with the lowest mean of the other trials"
    elif claim.measure == "first":
        by_trial = (own - other)[:, epochs <= first].mean(axis=1)
        when = f"mean of epochs 1 to {first}"
    else:
        by_trial = (own - other)[:, -1]
    word = decide(claim, estimate(run, by_trial))
    return Verdict(claim, word, _evidence(run, claim, by_trial, when))


def decide(claim: Claim, found: Estimate | None) -> Word:
    """Return the verdict on model minus the other, by ``RULE``.

    >>> found = Estimate(-0.2, -0.3, -0.1, p=0.01, trials=6, ratio=0)
    >>> decide(Claim("", "loss", "tpl", "base", "lower"), found)
    'supported'
    """
    if found is None or found.trials < FEWEST or math.isnan(found.low):
        return UNDECIDED
    low, high = found.low, found.high
    if claim.direction == "equal":
        if -claim.margin <= low and high <= claim.margin:
            return "supported"
        return "not supported" if low > claim.margin or high < -claim.margin else UNDECIDED
    if not found.sign:
        return UNDECIDED
    return "supported" if (found.sign > 0) == (claim.direction == "higher") else "not supported"


def _why_untested(run: Run, claim: Claim, first: int, last: int) -> str:
    """Return what the claim is about and the run does not have; empty if it has everything."""
    if absent := [name for name in {claim.model: 0, claim.than: 0} if name not in run.models]:
        return f"Not in this run: {', '.join(map(run.model_title, absent))}."
    if claim.metric not in {metric.name for metric in run.metrics}:
        return f"Not in this report: {claim.metric}."
    channels = run.settings.get("channels")
    if claim.channels is not None and channels != claim.channels:
        return f"This run has {channels or 'no such'} channels."
    needed = first if claim.measure in ("first", "spread") else claim.after + 1
    if last >= needed:
        return ""
    about = f"what comes after epoch {claim.after}" if claim.after else f"epochs 1 to {needed}"
    return f"This run ends at epoch {last}; the claim is about {about}."


def _rise(values: Floats) -> Floats:
    """Return each trial's rise from its lowest value to its last; NaN without a last value."""
    found: Floats = values[:, -1] - np.fmin.reduce(values, axis=1)
    return found


def _lowest_of_others(values: Floats) -> Floats:
    """Return each trial's value at the epoch with the lowest mean of all other trials."""
    whole, found = ~np.isnan(values).any(axis=1), np.full(len(values), np.nan)
    if whole.sum() > 1:
        others = values[whole].sum(axis=0) - values[whole]
        found[whole] = values[whole][np.arange(len(others)), others.argmin(axis=1)]
    return found


def _evidence(run: Run, claim: Claim, by_trial: Floats, when: str) -> str:
    found = estimate(run, by_trial)
    if found is None:
        return "No trial has both networks at these epochs."
    what = f"{capital(run.metric_title(claim.metric))}, {when}"
    pair = run.model_title(claim.model)
    if claim.than != claim.model:
        pair += f" minus {run.model_title(claim.than)}"
    ends = interval(found)
    ends = f"95 % interval {ends}" if ends and found.trials >= FEWEST else "too few to decide"
    side = "lower" if claim.direction == "lower" else "higher"
    times = int(((-by_trial if side == "lower" else by_trial) > 0).sum())
    trials = f"{side} in {times} of {count(found.trials, 'trial')}"
    return f"{what}: {pair} {difference(found)} in the mean, {trials}; {ends}."


def _spread(run: Run, claim: Claim, own: Floats, other: Floats) -> Verdict:
    """Compare the widths of two bands: resample the trials, the same for both networks."""
    both = ~np.isnan(own).any(axis=1) & ~np.isnan(other).any(axis=1)
    trials = int(both.sum())
    if trials < FEWEST:
        return Verdict(claim, UNDECIDED, f"{count(trials, 'trial')}: too few to decide.")
    drawn = np.random.default_rng(0).integers(0, trials, (1000, trials))
    redrawn = _width(own[both][drawn]) - _width(other[both][drawn])
    low, high = np.quantile(redrawn, (0.025, 0.975)).tolist()
    widths = [float(_width(values[both][None])[0]) for values in (own, other)]
    found = Estimate(widths[0] - widths[1], low, high, math.nan, trials, 0)
    evidence = (
        f"{capital(run.metric_title(claim.metric))}, mean width of the quartile band over "
        f"epochs 1 to {own.shape[1]}: {run.model_title(claim.model)} {number(widths[0])}, "
        f"{run.model_title(claim.than)} {number(widths[1])}; 95 % interval of the difference "
        f"{interval(found)}, {trials} trials."
    )
    return Verdict(claim, decide(claim, found), evidence)


def _width(values: Floats) -> Floats:
    """Return the band's width, a mean over the epochs, of draws × trials × epochs."""
    low, high = np.quantile(values, (0.25, 0.75), axis=1)
    width: Floats = (high - low).mean(axis=1)
    return width
