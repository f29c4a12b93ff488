"""Whether a run supports what the paper claims: computed from paired differences by one rule."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

import numpy as np

from ...claims import FIRST_SHARE, Claim, first_epochs
from ..curves import Curves, Floats
from ..intervals import RESAMPLES, bootstrap, corrected
from ..table import FEWEST_FOR_95, last_column
from .numbers import shown

Word = Literal["supported", "not supported", "undecided at this size"]
UNDECIDED: Word = "undecided at this size"
WORDS: tuple[Word, ...] = ("supported", "not supported", UNDECIDED)

RULE = (
    "The two networks of a trial saw the same images, so they are compared trial by trial, and "
    "the differences give a 95 % interval: of their mean, corrected for trials that share images "
    "(Nadeau & Bengio 2003); where all trials have one division of the images, of their median by "
    f"the bootstrap, from {FEWEST_FOR_95} trials on.",
    "A claim is supported where the whole interval lies on the claimed side of zero, for “nearly "
    "the same” within the margin; not supported where the whole interval lies on the other side, "
    "for “nearly the same” outside of the margin; undecided at this size in all other cases. A "
    "claim about every epoch is supported where it is at each, and not supported where it is not "
    "at one.",
    f"The first epochs are the first {round(100 * FIRST_SHARE)} % of those planned, and their mean "
    "is compared. Overfitting is how far above its lowest a loss ends. How much a network varies "
    "is the mean width of its quartile band, with an interval by the bootstrap over trials. Where "
    "the paper names an epoch, a run that does not get beyond it decides nothing.",
)


@dataclass(frozen=True)
class Verdict:
    """What a run says to a claim, and on what grounds."""

    claim: Claim
    word: Word
    evidence: str
    heard: bool = True  # False where the run has not what the claim is about


def verdicts(curves: Curves, claims: tuple[Claim, ...]) -> list[Verdict]:
    """One for each claim; a run without the networks, or the epochs, of a claim leaves it open."""
    return [_verdict(curves, claim) for claim in claims]


def _verdict(curves: Curves, claim: Claim) -> Verdict:
    if absent := [name for name in (claim.model, claim.than) if name not in curves.models]:
        titles = ", ".join(map(curves.model_title, absent))
        return Verdict(claim, UNDECIDED, f"Not in this run: {titles}.", heard=False)
    channels = getattr(curves.config, "channels", None)  # which some studies have
    if claim.channels is not None and channels != claim.channels:
        told = f"This run has {channels or 'no such'} channels."
        return Verdict(claim, UNDECIDED, told, heard=False)
    pair = _pair(curves, claim)
    epochs = curves.epochs[: pair[0].shape[1]]
    planned = curves.config.epochs
    needed = first_epochs(planned) if claim.measure in ("first", "spread") else claim.after + 1
    if epochs[-1] < needed:
        reached = f"This run has got to epoch {epochs[-1]}"
        told = f"{reached}; the claim is about {_about(claim, needed)}."
        return Verdict(claim, UNDECIDED, told, heard=False)
    if claim.measure == "each":
        return _at_each(curves, claim, pair[0] - pair[1], epochs)
    first = epochs <= needed
    if claim.measure == "spread":
        return _spread(curves, claim, [values[:, first] for values in pair])
    if claim.measure == "rise":
        rises = [values[:, -1] - _lowest(values) for values in pair]
        values, when = rises[0] - rises[1], f"above its lowest at epoch {epochs[-1]}"
    elif claim.measure == "first":
        values = (pair[0] - pair[1])[:, first].mean(axis=1)
        when = f"mean of epochs 1 to {needed}"
    else:
        values, when = (pair[0] - pair[1])[:, -1], f"epoch {epochs[-1]}"
    if claim.measure != "first" and epochs[-1] < planned:
        when += f" of {planned} planned"
    values = values[~np.isnan(values)]
    low, high = _interval(curves, values)
    return Verdict(claim, decide(claim, low, high), _told(curves, claim, values, low, high, when))


def _pair(curves: Curves, claim: Claim) -> list[Floats]:
    """The values of both networks, up to the last epoch that every network has reached."""
    end = last_column(curves) + 1
    return [curves.values[claim.metric, name][:, :end] for name in (claim.model, claim.than)]


def _about(claim: Claim, needed: int) -> str:
    return f"what comes after epoch {claim.after}" if claim.after else f"epochs 1 to {needed}"


def _lowest(values: Floats) -> Floats:
    """Of each trial; one without any value has none."""
    lowest: Floats = np.where(np.isnan(values), np.inf, values).min(axis=1)
    return np.where(np.isinf(lowest), np.nan, lowest)


def decide(claim: Claim, low: float, high: float) -> Word:
    """The rule, for one interval of model minus the other.

    >>> decide(Claim("", "loss", "tpl", "base", "lower"), -0.3, -0.1)
    'supported'
    """
    if math.isnan(low) or math.isnan(high):
        return UNDECIDED
    if claim.direction == "equal":
        if -claim.margin <= low and high <= claim.margin:
            return "supported"
        return "not supported" if low > claim.margin or high < -claim.margin else UNDECIDED
    if claim.direction == "higher":
        low, high = -high, -low
    if high < 0:
        return "supported"
    return "not supported" if low > 0 else UNDECIDED


def _interval(curves: Curves, values: Floats) -> tuple[float, float]:
    if curves.config.split != "as-shipped":
        return corrected(values)
    return bootstrap(values) if len(values) >= FEWEST_FOR_95 else (math.nan, math.nan)


def _told(curves: Curves, claim: Claim, values: Floats, low: float, high: float, when: str) -> str:
    if not len(values):
        return "No trial has both networks at these epochs."
    what = f"{_capital(curves.metric_title(claim.metric))}, {when}"
    pair = f"{curves.model_title(claim.model)} minus {curves.model_title(claim.than)}"
    trials = "1 trial" if len(values) == 1 else f"{len(values)} trials"
    if math.isnan(low):
        return f"{what}: {pair} {shown(float(np.median(values)), '+')} in {trials}: too few."
    # The middle is of what the interval is of.
    resplit = curves.config.split != "as-shipped"
    name = "mean" if resplit else "median"
    middle = float(values.mean() if resplit else np.median(values))
    return (
        f"{what}: {pair} {shown(middle, '+')} on {name}, 95 % interval "
        f"{shown(low, '+')} to {shown(high, '+')}, {trials}."
    )


def _at_each(
    curves: Curves,
    claim: Claim,
    difference: Floats,
    epochs: np.ndarray[tuple[int], np.dtype[np.int64]],
) -> Verdict:
    words: list[Word] = []
    for column in difference.T:
        words.append(decide(claim, *_interval(curves, column[~np.isnan(column)])))
    counts = {word: words.count(word) for word in WORDS}
    if counts["supported"] == len(words):
        word: Word = "supported"
    else:
        word = "not supported" if counts["not supported"] else UNDECIDED
    told = ", ".join(f"{word} at {count}" for word, count in counts.items() if count)
    last = difference[:, -1][~np.isnan(difference[:, -1])]
    at_end = _told(curves, claim, last, *_interval(curves, last), f"epoch {epochs[-1]}")
    return Verdict(claim, word, f"Of {len(words)} epochs: {told}. {at_end}")


def _spread(curves: Curves, claim: Claim, pair: list[Floats]) -> Verdict:
    """By the bootstrap over trials, both networks' drawn together: a spread has no paired mean."""
    both = ~np.isnan(pair[0]).any(axis=1) & ~np.isnan(pair[1]).any(axis=1)
    count = int(both.sum())
    if count < FEWEST_FOR_95:
        return Verdict(claim, UNDECIDED, f"{count} trials are too few to speak of a spread.")
    rng = np.random.default_rng(0)
    drawn = rng.integers(0, count, (RESAMPLES // 10, count))
    widths = [_width(values[both][drawn]) for values in pair]
    low, high = (float(v) for v in np.quantile(widths[0] - widths[1], (0.025, 0.975)))
    now = [float(_width(values[both][None])[0]) for values in pair]
    told = (
        f"{_capital(curves.metric_title(claim.metric))}, mean width of the quartile band over "
        f"epochs 1 to {pair[0].shape[1]}: "
        f"{curves.model_title(claim.model)} {shown(now[0])}, {curves.model_title(claim.than)} "
        f"{shown(now[1])}; 95 % interval of the difference {shown(low, '+')} to "
        f"{shown(high, '+')}, {count} trials."
    )
    return Verdict(claim, decide(claim, low, high), told)


def _capital(text: str) -> str:
    return text[:1].upper() + text[1:]


def _width(values: Floats) -> Floats:
    """Of draws × trials × epochs: the band's width, as a mean over the epochs."""
    low, high = np.quantile(values, (0.25, 0.75), axis=1)
    width: Floats = (high - low).mean(axis=1)
    return width
