"""What is trained by one process at a time, and the events of its training."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

from ..results import EpochRow


@dataclass(frozen=True, order=True)
class Unit:
    """A model in a trial."""

    trial: int
    model: str

    def __str__(self) -> str:
        return f"trial {self.trial + 1} {self.model}"


@dataclass(frozen=True)
class Step:
    """How many more training images are done, and what share of all epochs of the unit that is."""

    unit: Unit
    epoch: int
    images: int
    share: float

    def after(self, other: Step) -> Step:
        """Both steps as one."""
        both = self.images + other.images, self.share + other.share
        return Step(self.unit, self.epoch, *both)


@dataclass(frozen=True)
class Epoch:
    """An epoch is done and kept."""

    unit: Unit
    row: EpochRow


@dataclass(frozen=True)
class Notice:
    """Something about the unit that the user should know."""

    unit: Unit
    text: str


Say = Callable[[Step | Epoch | Notice], None]


class GatheredSteps:
    """Passes on events; steps are merged, as there can be hundreds per second.

    Args:
        say: called with each event.
        seconds: at least this long between two steps.
    """

    def __init__(self, say: Say, seconds: float = 0.1) -> None:
        self.say, self.seconds = say, seconds
        self.steps: Step | None = None
        self.last = time.monotonic()

    def __call__(self, event: Step | Epoch | Notice) -> None:
        now = time.monotonic()
        if isinstance(event, Step):
            if self.steps is not None:
                event = event.after(self.steps)
            if now - self.last < self.seconds:
                self.steps = event
                return
        elif self.steps is not None:
            self.say(self.steps)
        self.say(event)
        self.steps, self.last = None, now
