"""The inputs of a run: cached images, their copies, features of a frozen network; and samples.

The way of the data is ``images → copies → features``, each cached, then ``split`` and ``batch``.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from .config import RunConfig
from .data.augment import Augmentation, make_copies
from .data.cache import Stack, checksum, open_array, open_stored
from .data.decode import Progress
from .data.images import ImageKind, ImageSet
from .data.sources import CachedImages, open_images
from .data.splits import Rows, Split
from .networks.backbones import features_folder, find_weights, sha256
from .training.seeds import trial_split

__all__ = ["Data", "Progress", "Rows", "RunInputs", "Samples", "Split"]


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
class Samples:
    """Images or features of originals and, after them, of copies; and their labels or masks.

    Args:
        config: the run's settings.
        originals: the images that are split.
        inputs: of the originals, then of the copies: uint8 images, or features.
        targets: labels or masks in the same order.
        preprocess: the layers before the network, for images.
        of: the original of each copy.
        originals_train: False if their copies alone train.
    """

    config: RunConfig
    originals: ImageSet
    inputs: Stack
    targets: Stack
    preprocess: nn.Module
    of: Rows
    originals_train: bool = True

    def split(self, trial: int) -> Split:
        """Return originals and their copies to train on, and originals to measure on."""
        rows = trial_split(self.config, self.originals, trial)
        copies = len(self.originals) + np.flatnonzero(np.isin(self.of, rows.train))
        train = [rows.train, copies] if self.originals_train else [copies]
        return rows._replace(train=np.concatenate(train))

    def batch(self, rows: Rows) -> tuple[Tensor, Tensor]:
        """Return inputs, ``(N, 1, H, W)`` or ``(N, 3, H, W)`` of images, and labels or masks."""
        inputs, targets = self.inputs.take(rows), torch.from_numpy(self.targets.take(rows))
        y = targets if targets.ndim == 1 else targets[:, None].float()
        if inputs.dtype != np.uint8:
            return torch.from_numpy(inputs), y
        with torch.no_grad():
            return self.preprocess(pixels(inputs)), y

    def count_originals(self, rows: Rows) -> int:
        """Return how many originals these rows are, or are copies of."""
        return len(np.unique(np.concatenate([np.arange(len(self.originals)), self.of])[rows]))


def pixels(images: NDArray[np.uint8]) -> Tensor:
    """Return ``(N, 1, H, W)`` of gray images, ``(N, 3, H, W)`` of others, in [0, 1]."""
    x = torch.from_numpy(images)
    return (x[:, None] if x.ndim == 3 else x.permute(0, 3, 1, 2)).float().div_(255)


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


@dataclass(frozen=True)
class Copies:
    """Augmented copies: how many of each image, or of each of a class, and how they differ.

    >>> Copies(2, Augmentation(rotation=10)).numbers
    2
    """

    numbers: Mapping[str, int] | int
    changes: Augmentation


@dataclass(frozen=True)
class Frozen:
    """A frozen network, whose features are trained on: its name in ``BACKBONES``, its weights.

    >>> Frozen("efficientnet-lite0").weights is None  # those that the package brings
    True
    """

    name: str
    weights: Path | None = None


def load_images(
    kind: ImageKind, config: RunConfig, progress: Progress | None = None
) -> CachedImages:
    """Return the images that a run's settings ask for."""
    masks = getattr(config, "masks", None)  # a setting of some studies
    return open_images(
        kind,
        config.data,
        size=config.size,
        count=config.images,
        seed=config.seed,
        skip_unreadable=config.skip_unreadable,
        masks=None if masks is None else Path(masks),
        patients=None if config.patients is None else Path(config.patients),
        patient_pattern=config.patient_pattern,
        progress=progress,
    )


def prepare(
    kind: ImageKind,
    config: RunConfig,
    jobs: int,
    progress: Progress,
    copies: Copies | None = None,
    frozen: Frozen | None = None,
) -> RunInputs:
    """Compute what is not cached yet: images, then copies, then features of both."""
    digest = None  # missing weights are an error before anything is computed
    if frozen is not None:
        digest = sha256(find_weights(frozen.name, frozen.weights))
    cached = load_images(kind, config, progress)
    folders, sets = {"images": cached.folder}, {"images": cached.images}
    if copies is not None:
        folders["copies"] = make_copies(
            cached.folder,
            copies.numbers,
            copies.changes,
            config.seed,
            progress=partial(progress, "copies"),
        )
        sets["copies"] = open_stored(folders["copies"])
    if frozen is not None:
        for name, images in sets.items():
            if not len(images):  # zero copies
                continue
            what = f"features of {name}"
            folders[what] = features_folder(
                images,
                folders[name],
                frozen.name,
                frozen.weights,
                workers=jobs,
                progress=partial(progress, what),
            )
    return RunInputs(folders, cached.source, cached.unreadable, digest)


def open_samples(
    config: RunConfig,
    inputs: RunInputs,
    preprocess: nn.Module,
    originals_train: bool = True,
) -> Samples:
    """Open what :func:`prepare` has made, in a process that trains."""
    sets = {n: open_stored(inputs.folders[n]) for n in ("images", "copies") if n in inputs.folders}
    of = open_array(inputs.folders["copies"] / "of.npy") if "copies" in sets else np.arange(0)
    features = [folder for name, folder in inputs.folders.items() if name.startswith("features")]
    rows: list[NDArray[Any]] = [open_array(folder / "features.npy") for folder in features]
    rows = rows or [s.images for s in sets.values()]
    targets = Stack([_targets(images) for images in sets.values()])
    return Samples(config, sets["images"], Stack(rows), targets, preprocess, of, originals_train)


def samples_of(config: RunConfig, images: ImageSet) -> Samples:
    """Return these images as they are."""
    inputs, targets = Stack([images.images]), Stack([_targets(images)])
    return Samples(config, images, inputs, targets, nn.Identity(), np.arange(0))


def _targets(images: ImageSet) -> NDArray[Any]:
    targets = images.masks if images.labels is None else images.labels
    assert targets is not None
    return targets
