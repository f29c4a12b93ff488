"""The samples of a study: images, their copies or features; and the cached inputs of a run."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Protocol

import numpy as np
import torch
from torch import Tensor

from .config import RunConfig
from .data.augment import Copies, rows_for
from .data.cache import checksum
from .data.decode import Progress
from .data.images import ImageKind, ImageSet
from .data.sources import CachedImages, Patients, open_images
from .data.splits import Rows, Split
from .data.stored import Stack, open_stored
from .training.seeds import trial_split

__all__ = ["CachedData", "Data", "Progress", "Rows", "RunInputs", "Split"]


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

    def split(self, trial: int) -> tuple[Rows, Rows] | tuple[Rows, Rows, Rows]:
        """Return the training and validation rows of that trial and, if there are any, test rows.

        Test rows neither train nor choose the epoch; see ``test_share``.
        """

    def batch(self, rows: Rows) -> tuple[Tensor, Tensor]:
        """Return the network's inputs for these rows, and the targets."""


@dataclass(frozen=True)
class CachedData:
    """Cached inputs and targets, of the originals and after them of their augmented copies."""

    config: RunConfig
    originals: ImageSet
    inputs: Stack
    targets: Stack
    copies: Copies | None = None

    def split(self, trial: int) -> Split:
        """Return originals and their copies to train on, and originals to measure on."""
        rows = trial_split(self.config, self.originals, trial)
        return rows._replace(train=np.concatenate([rows.train, self.copies_of(rows.train)]))

    def copies_of(self, originals: Rows) -> Rows:
        """Return the rows of the copies of these originals."""
        if self.copies is None:
            return originals[:0]
        return len(self.originals) + rows_for(self.copies, originals)

    def count_originals(self, rows: Rows) -> int:
        """Return how many originals these rows are, or are copies of."""
        of = np.arange(len(self.originals))
        if self.copies is not None:
            of = np.concatenate([of, self.copies.of])
        return len(np.unique(of[rows]))

    def batch(self, rows: Rows) -> tuple[Tensor, Tensor]:
        inputs, targets = self.inputs.take(rows), self.targets.take(rows)
        return torch.from_numpy(inputs), torch.from_numpy(targets)


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


# Images


def load_images(
    kind: ImageKind, config: RunConfig, progress: Progress | None = None
) -> CachedImages:
    """Return the images that a run's settings ask for."""
    file = None if config.patients is None else Path(config.patients)
    if (masks := getattr(config, "masks", None)) is not None:  # a setting of some studies
        kind = replace(kind, mask_folder=masks)
    return open_images(
        kind,
        config.data,
        size=config.size,
        count=config.images,
        seed=config.seed,
        skip_unreadable=config.skip_unreadable,
        patients=Patients(file, config.patient_pattern),
        progress=progress,
    )


@dataclass(frozen=True)
class ImageData:
    """Images ``(N, 1, H, W)`` gray or ``(N, 3, H, W)`` RGB in [0, 1], and labels or masks."""

    config: RunConfig
    images: ImageSet

    def split(self, trial: int) -> Split:
        return trial_split(self.config, self.images, trial)

    def batch(self, rows: Rows) -> tuple[Tensor, Tensor]:
        pixels = torch.from_numpy(self.images.images[rows])
        x = pixels[:, None] if pixels.ndim == 3 else pixels.permute(0, 3, 1, 2)
        return x.float().div_(255), self._targets(rows)

    def _targets(self, rows: Rows) -> Tensor:
        if self.images.labels is not None:
            return torch.from_numpy(self.images.labels[rows])
        assert self.images.masks is not None
        return torch.from_numpy(self.images.masks[rows][:, None]).float()


def prepare_images(kind: ImageKind, config: RunConfig, jobs: int, progress: Progress) -> RunInputs:
    """Load the images; nothing else is prepared."""
    cached = load_images(kind, config, progress)
    return RunInputs({"images": cached.folder}, cached.source, cached.unreadable)


def open_image_data(config: RunConfig, inputs: RunInputs) -> ImageData:
    """Return the images as samples, in a process that trains."""
    return ImageData(config, open_stored(inputs.folders["images"]))
