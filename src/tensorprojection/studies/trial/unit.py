"""What is trained by one process at a time, and what it says meanwhile."""

from __future__ import annotations

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
    """So many more training images are done, and that share of all epochs of the unit."""

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
    """Something that whoever started the run should know of the unit."""

    unit: Unit
    text: str


Say = Callable[[Step | Epoch | Notice], None]
