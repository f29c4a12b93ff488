"""A study that trains in milliseconds, for tests of everything around the training."""

import numpy as np
from torch import Tensor, nn

from tensorprojection.studies import ImageKind, ImageSet, RunConfig, Study


def squares(count: int, *, seed: int, size: int) -> ImageSet:
    images = np.random.default_rng(seed).integers(0, 256, (count, size, size), dtype=np.uint8)
    labels = np.arange(count) % 2
    images[labels == 1] //= 2
    return ImageSet(images, labels=labels, class_names=("light", "dark"))


def network(config: RunConfig, model: str, first: Tensor) -> nn.Module:
    width = {"base": 2, "wide": 3, "wider": 4}[model]
    first_layer = nn.Linear(config.size**2, width)
    return nn.Sequential(nn.Flatten(), first_layer, nn.Dropout(0.2), nn.Linear(width, 2))


TINY = Study(
    name="tiny",
    title="Tiny",
    images=ImageKind("tiny", ("light", "dark"), phantoms=squares),
    models={"base": "two", "wide": "three", "wider": "four"},
    network=network,
    presets={
        "small": {
            "size": 16,
            "images": 16,
            "batch": 8,
            "epochs": 2,
            "trials": 1,
            "learning_rate": 1e-3,
            "models": ("base",),
        }
    },
)
