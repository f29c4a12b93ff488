"""Chest X-rays in four classes, by a head on a frozen network's features (section 3.2).

The frozen network runs once per image, ever: what trains and validates are its features, of the
originals and of their augmented copies, which lie in the cache.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn

from .claims import Claim
from .config import RunConfig
from .data.augment import CHEST as CHANGES
from .data.copies import CHEST_COPIES, Copies, make_copies, open_copies, rows_for
from .data.images import ImageSet
from .data.stack import Stack
from .data.stored import open_stored
from .errors import StudyError
from .features import features_folder, open_features
from .metrics import Classification
from .models.backbones import BACKBONES, backbone, identity
from .models.chest_head import HEADS, chest_head, start_from_mpca
from .models.normalise import Normalise
from .sides import sides_of
from .study import Prepared, Progress, Rows, Study, open_asked_for

CLASSES = 4

PAPER = {
    "size": 160,
    "batch": 64,
    "epochs": 20,  # the paper does not say
    "trials": 30,
    "learning_rate": 1e-4,
    "models": ("base", "tpl"),
    "backbone": "densenet121",
    "dropout": 0.5,
}
PRESETS = {
    "paper": PAPER,
    "small": PAPER | {"images": 400, "trials": 5, "backbone": "efficientnet-lite0"},
    "smoke": PAPER
    | {
        "images": 32,
        "size": 64,
        "batch": 16,
        "epochs": 2,
        "trials": 2,
        "backbone": "efficientnet-lite0",
    },
}

CLAIMS = (
    Claim(
        "TensorProjection has a lower validation loss than the 1×1 convolution at every epoch.",
        *("loss", "tpl", "base", "lower", "each"),
    ),
    Claim(
        "TensorProjection has a slightly better accuracy at the end.",
        *("accuracy", "tpl", "base", "higher", "last"),
    ),
    Claim(
        "TensorProjection has a slightly better F1 score at the end.",
        *("f1", "tpl", "base", "higher", "last"),
    ),
)


@dataclass(frozen=True)
class ChestData:
    """Features of the originals, then of the copies, and their classes."""

    config: RunConfig
    images: ImageSet
    copies: Copies
    features: Stack
    labels: Stack

    def sides(self, trial: int) -> tuple[Rows, Rows]:
        """Originals and their copies train; only originals validate."""
        training, validation = sides_of(self.config, self.images, trial)
        copies = len(self.images) + rows_for(self.copies, training)
        return np.concatenate([training, copies]), validation

    def batch(self, rows: Rows) -> tuple[Tensor, Tensor]:
        features, labels = self.features.take(rows), self.labels.take(rows)
        return torch.from_numpy(features), torch.from_numpy(labels)


def prepare(config: RunConfig, jobs: int, progress: Progress) -> Prepared:
    if config.size % 32:
        raise StudyError(f"Expected a size divisible by 32, got {config.size}.")
    assert config.backbone is not None
    weights = None if config.weights is None else Path(config.weights)
    known = identity(config.backbone, weights)  # a mistake in these is told before copies are made
    opened = open_asked_for(config)
    copies = make_copies(
        opened.folder,
        opened.images,
        CHEST_COPIES,
        CHANGES,
        config.seed,
        progress=partial(progress, "copies"),
    )
    folders = {"images": opened.folder, "copies": copies.folder}
    for what, images in (("images", opened.images), ("copies", copies.images)):
        folders[f"features of {what}"] = features_folder(
            images,
            folders[what],
            config.backbone,
            weights,
            workers=jobs,
            progress=partial(progress, f"features of {what}"),
        )
    return Prepared(folders, opened.source, opened.unreadable, known["weights"])


def open_data(config: RunConfig, prepared: Prepared) -> ChestData:
    folders = prepared.folders
    images, copies = open_stored(folders["images"]), open_copies(folders["copies"])
    assert images.labels is not None
    assert copies.images.labels is not None
    features = [open_features(folders[f"features of {what}"]) for what in ("images", "copies")]
    labels = [images.labels, copies.images.labels]
    return ChestData(config, images, copies, Stack(features), Stack(labels))


def network(config: RunConfig, model: str, first: Tensor) -> nn.Module:
    assert config.backbone is not None
    assert config.dropout is not None
    channels, side = BACKBONES[config.backbone].channels, config.size // 32
    made = chest_head(model, channels, side, CLASSES, dropout=config.dropout)
    if model == "tpl-mpca":
        start_from_mpca(made, first)
    return made


def front(config: RunConfig) -> nn.Module:
    """The frozen network, for images whose features are not in the cache."""
    assert config.backbone is not None
    known = BACKBONES[config.backbone]
    weights = None if config.weights is None else Path(config.weights)
    return nn.Sequential(Normalise(known.mean, known.std), backbone(config.backbone, weights))


CHEST = Study(
    name="chest",
    title="Chest X-ray",
    presets=PRESETS,
    models={name: head.title for name, head in HEADS.items()},
    prepare=prepare,
    open=open_data,
    network=network,
    loss=nn.functional.cross_entropy,
    metrics=partial(Classification, CLASSES),
    channels_last=False,
    claims=CLAIMS,
    front=front,
)
