"""The paper's claims about a study, as data.

A study declares its claims beside its networks; :mod:`~.report.verdicts` tests them with a run.

Note [Numbers for the paper's words]: the paper writes "initially", "the first few epochs" and
"nearly the same", and gives no numbers. Here the first epochs are the first quarter of those
planned: 5 of the paper's 20 (OCT, chest) and 7 of its 25 (Kvasir). A share is used because five
epochs are half of a short run. Nearly the same is within 0.01, one image of a hundred. If the paper
gives a number, such as epoch 12 for overfitting in the OCT study, that number is used, and a run
that ends before it decides nothing.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

Direction = Literal["lower", "higher", "equal"]
Measure = Literal["first", "each", "last", "rise", "late", "spread"]

FIRST_SHARE = 0.25


def first_epochs(planned: int) -> int:
    """Return the number of first epochs; see Note [Numbers for the paper's words].

    >>> [first_epochs(planned) for planned in (1, 8, 20, 25)]
    [1, 2, 5, 7]
    """
    return math.ceil(FIRST_SHARE * planned)


@dataclass(frozen=True)
class Claim:
    """A network is better, worse or as good as another by some metric at some epochs.

    Args:
        text: the claim as the paper makes it, in one sentence.
        metric: the name of the metric.
        model: the network that the claim is about.
        than: the network that it is compared with; the same one if it is "late".
        direction: of the difference, model minus the other: "lower", "higher", or "equal".
        measure: the mean over the "first" epochs, "each" epoch, the "last" one, the "rise" of a
            loss from its lowest value to its last, a "late" rise of one network's loss (its last
            value minus that at the epoch with the lowest mean in the other trials), or the "spread"
            of the trials, which is the mean width of the quartile band over the first epochs.
        margin: for "equal": the largest difference that still counts as equal.
        after: the claim is about epochs after this one; shorter runs decide nothing.
        channels: if given, the claim is only about networks with this many channels.
    """

    text: str
    metric: str
    model: str
    than: str
    direction: Direction
    measure: Measure = "last"
    margin: float = 0.0
    after: int = 0
    channels: int | None = None
