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
    """A study's samples, by row: images or features, originals and copies alike.

    What has these two methods is one; a study's ``open`` returns it.

    >>> import numpy as np, torch
    >>> class Noise:
    ...     def sides(self, trial):
    ...         rows = np.random.default_rng(trial).permutation(10)
    ...         return rows[:7], rows[7:]
    ...
    ...     def batch(self, rows):
    ...         return torch.zeros(len(rows), 1, 16, 16), torch.from_numpy(rows % 2)
    >>> data: Data = Noise()
    >>> data.batch(data.sides(trial=0)[1])[0].shape
    torch.Size([3, 1, 16, 16])
    """

    def sides(self, trial: int) -> tuple[Rows, Rows]:
        """The rows that train and the rows that validate in that trial."""

    def batch(self, rows: Rows) -> tuple[Tensor, Tensor]:
        """What goes into the network for these rows, and what should come out."""


@dataclass(frozen=True)
class RunInputs:
    """What had to be made before the first trial, and where it is; small enough to be sent.

    >>> RunInputs({}, "phantoms", weights="0" * 64).identity()
    {'weights': '00...'}

    Args:
        folders: where images, copies and features are cached, by those names.
        source: of the images, for the record.
        unreadable: files that were left out.
        weights: the sha256 of a frozen network's, None without one.
    """

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
