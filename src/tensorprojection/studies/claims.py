"""What the paper claims of a study, in a form that a run can be held against.

A study declares its claims beside its networks; what a run says to them is computed by
:mod:`~.report.page.verdicts`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Direction = Literal["lower", "higher", "equal"]
Measure = Literal["mean", "each", "last", "rise", "spread"]


@dataclass(frozen=True)
class Claim:
    """A network is better, worse or as good as another by some metric at some epochs.

    Args:
        text: the claim as the paper makes it, in one sentence.
        metric: by which the two are compared.
        model: the network that the claim is about.
        than: the network that it is compared with.
        direction: of the difference, model minus the other: "lower", "higher", or "equal".
        measure: what is compared: the "mean" over ``epochs``, "each" of all epochs, the "last"
            epoch, the "rise" of the metric from the first of ``epochs`` to the run's last, or the
            "spread" of the trials, which is the mean width of the quartile band.
        epochs: the first and the last that count, for measures that need them.
        margin: for "equal": the largest difference that still counts as equal.
        channels: if given, the claim is only about networks with this many channels.
    """

    text: str
    metric: str
    model: str
    than: str
    direction: Direction
    measure: Measure = "last"
    epochs: tuple[int, int] | None = None
    margin: float = 0.0
    channels: int | None = None
