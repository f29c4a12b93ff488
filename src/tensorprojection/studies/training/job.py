"""One network of one trial, and the events of its training."""

from __future__ import annotations

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
