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

    Any object with these two methods can be one; a study's ``open`` returns it.

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
        """Return the training rows and the validation rows of that trial."""

    def batch(self, rows: Rows) -> tuple[Tensor, Tensor]:
        """Return the network's inputs for these rows, and the targets."""


@dataclass(frozen=True)
class RunInputs:
    """The cached inputs of a run. Picklable: workers open the arrays themselves.

    >>> RunInputs({}, "phantoms", weights="0" * 64).identity()
    {'weights': '00...'}

    Args:
        folders: of the cached images, copies and features, by these names.
        source: of the images, for the record.
        unreadable: files that were left out.
        weights: the sha256 of a frozen network's, None without one.
    """

    folders: dict[str, Path]
    source: str
    unreadable: tuple[str, ...] = ()
    weights: str | None = None

    def identity(self) -> dict[str, str]:
        """Return checksums of the data that the results depend on, the same on every machine."""
        folders = {n: folder for n, folder in self.folders.items() if n in ("images", "copies")}
        found = {name: checksum(folder) for name, folder in folders.items()}
        return found if self.weights is None else {**found, "weights": self.weights}
