"""One network of one trial, and the events of its training."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

from ..results import EpochRow, Saved


@dataclass(frozen=True, order=True)
class Job:
    """A model in a trial, whose number counts from 0."""

    trial: int
    model: str

    def __str__(self) -> str:
        return f"trial {self.trial + 1} {self.model}"


@dataclass(frozen=True)
class Step:
    """More training images are done: their number, and their share of all epochs of the job."""

    job: Job
    epoch: int
    images: int
    share: float

    def after(self, other: Step) -> Step:
        """Return both steps as one."""
        both = self.images + other.images, self.share + other.share
        return Step(self.job, self.epoch, *both)


@dataclass(frozen=True)
class Epoch:
    """An epoch is done. ``saved`` is what is to be saved of it, None once it is."""

    job: Job
    row: EpochRow
    saved: Saved | None = None


@dataclass(frozen=True)
class Notice:
    """Something about the job that the user should know."""

    job: Job
    text: str


@dataclass(frozen=True)
class Done:
    """The job has finished."""

    job: Job


@dataclass(frozen=True)
class Restarted:
    """The job's process was killed; another continues from its checkpoint."""

    job: Job
    how: str


@dataclass(frozen=True)
class Failed:
    """The job cannot continue; with ``stop`` none of the others could either."""

    job: Job
    why: str
    stop: bool = False


Event = Step | Epoch | Notice | Done | Restarted | Failed
Emit = Callable[[Step | Epoch | Notice], None]


class MergedSteps:
    """Passes on events; steps are merged, as there can be hundreds per second.

    Args:
        emit: called with each event.
        seconds: the least time between two steps.
    """

    def __init__(self, emit: Emit, seconds: float = 0.1) -> None:
        self.emit, self.seconds = emit, seconds
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
            self.emit(self.steps)
        self.emit(event)
        self.steps, self.last = None, now
