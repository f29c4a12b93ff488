"""Images as they are, and their labels or masks: what most studies train on."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from .config import RunConfig
from .data.images import ImageSet
from .data.kinds import ImageKind
from .data.sources import CachedImages, open_images
from .data.stored import open_stored
from .inputs import Progress, Rows, RunInputs
from .trial.sides import sides_of


def load_images(
    kind: ImageKind, config: RunConfig, progress: Progress | None = None
) -> CachedImages:
    """The images that a run asks for."""
    return open_images(
        kind,
        config.data,
        size=config.size,
        count=config.images,
        seed=config.seed,
        skip_unreadable=config.skip_unreadable,
        progress=progress,
    )


@dataclass(frozen=True)
class ImageData:
    """Images ``(N, 1, H, W)`` gray or ``(N, 3, H, W)`` RGB in [0, 1], and labels or masks."""

    config: RunConfig
    images: ImageSet

    def sides(self, trial: int) -> tuple[Rows, Rows]:
        return sides_of(self.config, self.images, trial)

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
    """The images alone; nothing is made of them."""
    cached = load_images(kind, config, progress)
    return RunInputs({"images": cached.folder}, cached.source, cached.unreadable)


def open_image_data(config: RunConfig, inputs: RunInputs) -> ImageData:
    """The images, in a process that trains."""
    return ImageData(config, open_stored(inputs.folders["images"]))
