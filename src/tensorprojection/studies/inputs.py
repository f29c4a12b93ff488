"""What a study trains on: what is made before the first trial, and its samples by row."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from torch import Tensor

from .data.cache import digest_of
from .data.splits import Rows
from .data.threads import Progress

__all__ = ["Data", "Progress", "Rows", "RunInputs"]


class Data(Protocol):
    """A study's samples, by row: images or features, originals and copies alike."""

    def sides(self, trial: int) -> tuple[Rows, Rows]:
        """The rows that train and the rows that validate in that trial."""

    def batch(self, rows: Rows) -> tuple[Tensor, Tensor]:
        """What goes into the network for these rows, and what should come out."""


@dataclass(frozen=True)
class RunInputs:
    """What had to be made before the first trial, and where it is; small enough to be sent."""

    folders: dict[str, Path]
    source: str
    unreadable: tuple[str, ...] = ()
    weights: str | None = None  # of a frozen network: their sha256

    def identity(self) -> dict[str, str]:
        """Digests of what the results depend on; a folder made again elsewhere has the same."""
        found: dict[str, str] = {}
        for name in ("images", "copies"):
            if name in self.folders:
                found[name] = digest_of(self.folders[name])
        return found if self.weights is None else {**found, "weights": self.weights}
