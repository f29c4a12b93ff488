"""What the paper claims of a study, in a form that a run can be held against.

A study declares its claims beside its networks; what a run says to them is computed by
:mod:`~.report.verdicts`.

Note [Numbers for the paper's words]: the paper says "initially", "the first few epochs" and "nearly
the same", and gives no numbers. Here the first epochs are the first quarter of those planned, which
are 5 of the paper's 20 (OCT, chest) and 7 of its 25 (Kvasir): by the length of a run rather than by
number, since five epochs are half of a short run. Nearly the same is within 0.01, one image of a
hundred. Where the paper does give a number, as epoch 12 for overfitting in the OCT study, it stays,
and a run that ends before it decides nothing.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

Direction = Literal["lower", "higher", "equal"]
Measure = Literal["first", "each", "last", "rise", "spread"]

FIRST_SHARE = 0.25


def first_epochs(planned: int) -> int:
    """How many epochs are the first ones; see Note [Numbers for the paper's words].

    >>> [first_epochs(planned) for planned in (1, 8, 20, 25)]
    [1, 2, 5, 7]
    """
    return math.ceil(FIRST_SHARE * planned)


@dataclass(frozen=True)
class Claim:
    """A network is better, worse or as good as another by some metric at some epochs.

    Args:
        text: the claim as the paper makes it, in one sentence.
        metric: by which the two are compared.
        model: the network that the claim is about.
        than: the network that it is compared with.
        direction: of the difference, model minus the other: "lower", "higher", or "equal".
        measure: what is compared: the mean over the "first" epochs, "each" epoch, the "last" one,
            the "rise" of a loss, which is how far above its lowest it ends, or the "spread" of the
            trials, which is the mean width of the quartile band over the first epochs.
        margin: for "equal": the largest difference that still counts as equal.
        after: the claim is about what comes after this epoch; shorter runs decide nothing.
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
