"""The samples of a study, and the cached inputs of a run."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from torch import Tensor

from .data.cache import checksum
from .data.decode import Progress
from .data.splits import Rows

__all__ = ["Data", "Progress", "Rows", "RunInputs"]


class Data(Protocol):
    """A study's samples, by row: images or features, originals and copies alike.

    Any object with these two methods is one; a study's ``open`` returns it.

    >>> import numpy as np, torch
    >>> class Noise:
    ...     def split(self, trial):
    ...         rows = np.random.default_rng(trial).permutation(10)
    ...         return rows[:7], rows[7:]
    ...
    ...     def batch(self, rows):
    ...         return torch.zeros(len(rows), 1, 16, 16), torch.from_numpy(rows % 2)
    >>> data: Data = Noise()
    >>> data.batch(data.split(trial=0)[1])[0].shape
    torch.Size([3, 1, 16, 16])
    """

    def split(self, trial: int) -> tuple[Rows, Rows]:
        """Return the rows that train and the rows that validate in that trial."""

    def batch(self, rows: Rows) -> tuple[Tensor, Tensor]:
        """Return the network's inputs for these rows, and the targets."""


@dataclass(frozen=True)
class RunInputs:
    """The cached inputs of a run. Picklable: workers open the arrays themselves.

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
        """Return checksums of what the results depend on, the same wherever it was made."""
        found: dict[str, str] = {}
        for name in ("images", "copies"):
            if name in self.folders:
                found[name] = checksum(self.folders[name])
        return found if self.weights is None else {**found, "weights": self.weights}
