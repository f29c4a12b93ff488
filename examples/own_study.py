"""A study of your own, in one file: stripes that run across or down, by a small network.

    tpl run examples/own_study.py                  # on the images that are generated here
    tpl run examples/own_study.py --data FOLDER    # on yours: a folder per class, across and down

Trials, checkpoints, kills, figures and the report are those of the paper's studies.
"""

import numpy as np
from pydantic import Field
from torch import Tensor, nn

from tensorprojection import TensorProjection
from tensorprojection.studies import ImageKind, ImageSet, RunConfig, Study

CLASSES = ("across", "down")


class Settings(RunConfig):
    """This study's own settings, beside those that all studies share; each is also a flag."""

    width: int = Field(ge=1, le=1024, description="Channels of the convolution.")


def stripes(count: int, *, seed: int, size: int) -> ImageSet:
    """Gray images of stripes with much noise, half of them turned."""
    rng = np.random.default_rng(seed)
    labels = np.arange(count) % 2
    phase = rng.uniform(0, 6, (count, 1, 1)) + np.arange(size)[:, None] * rng.uniform(0.6, 1)
    waves = np.broadcast_to(np.sin(phase), (count, size, size)).copy()
    waves[labels == 1] = waves[labels == 1].transpose(0, 2, 1)
    levels = 128 + 50 * waves + rng.normal(0, 40, waves.shape)
    return ImageSet(levels.clip(0, 255).astype(np.uint8), labels=labels, class_names=CLASSES)


def network(config: Settings, model: str, first: Tensor) -> nn.Module:
    large, small = config.size, config.size // 4
    shapes = (config.width, large, large), (config.width, small, small)
    reduce = TensorProjection(*shapes) if model == "tpl" else nn.MaxPool2d(4)
    convolve = nn.Conv2d(1, config.width, 3, padding="same")
    dense = nn.Linear(config.width * small**2, len(CLASSES))
    return nn.Sequential(convolve, nn.ReLU(), reduce, nn.Flatten(), dense)


USUAL = {"size": 32, "batch": 16, "learning_rate": 5e-3, "width": 8, "models": ("base", "tpl")}
STRIPES = Study(
    name="stripes",
    title="Stripes",
    images=ImageKind("stripes", CLASSES, phantoms=stripes),
    settings=Settings,
    models={"base": "MaxPooling", "tpl": "TensorProjection"},
    network=network,
    presets={"small": USUAL | {"images": 320, "epochs": 6, "trials": 3}},
)
