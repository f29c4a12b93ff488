"""Images as samples, with their labels or masks."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

import torch
from torch import Tensor

from .config import RunConfig
from .data.images import ImageKind, ImageSet
from .data.sources import CachedImages, Patients, open_images
from .data.stored import open_stored
from .inputs import Progress, Rows, RunInputs, Split
from .training.seeds import trial_split


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
