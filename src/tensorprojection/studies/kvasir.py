"""Polyps in colonoscopy images, outlined by a U-Net (the paper's section 3.3)."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor, nn

from .claims import Claim
from .config import RunConfig
from .data.augment import KVASIR as CHANGES
from .data.copies import KVASIR_COPIES, Copies, make_copies, open_copies, rows_for
from .data.images import ImageSet
from .data.stack import Stack
from .data.stored import open_stored
from .errors import StudyError
from .losses import dice_loss
from .metrics import Segmentation
from .models.unet import FORMS, unet
from .sides import sides_of
from .study import Prepared, Progress, Rows, Study, open_asked_for

SPLIT = (700, 300)

PAPER = {
    "size": 128,
    "channels": 16,
    "copies": KVASIR_COPIES,
    "batch": 50,
    "epochs": 25,
    "trials": 30,
    "learning_rate": 1e-3,
    "models": ("base", "tpl"),
    "leaky": False,
}
PRESETS = {
    "paper": PAPER,
    "small": PAPER
    | {"images": 120, "size": 64, "copies": 4, "batch": 10, "epochs": 8, "trials": 3},
    "smoke": PAPER
    | {
        "images": 12,
        "size": 32,
        "channels": 4,
        "copies": 2,
        "batch": 4,
        "epochs": 2,
        "trials": 2,
    },
}

# "First epochs", "equal" and "keeps" are given numbers here.
CLAIMS = (
    Claim(
        "TensorProjection is ahead of the baseline in the first epochs.",
        *("iou", "tpl", "base", "higher", "mean"),
        epochs=(1, 5),
    ),
    Claim(
        "Later the two are equal (IoU within 0.01 at the end).",
        *("iou", "tpl", "base", "equal", "last"),
        margin=0.01,
    ),
    Claim(
        "With 64 channels, TensorProjection varies less between trials than the baseline.",
        *("iou", "tpl", "base", "lower", "spread"),
        channels=64,
    ),
    Claim(
        "Compressing by 4 instead of 2 keeps the score (IoU within 0.01 at the end).",
        *("iou", "tpl-aggressive", "tpl", "equal", "last"),
        margin=0.01,
    ),
)


@dataclass(frozen=True)
class KvasirData:
    """RGB images in [0, 1], the originals, then the copies, and their masks."""

    config: RunConfig
    originals: ImageSet
    copies: Copies
    images: Stack
    masks: Stack

    def sides(self, trial: int) -> tuple[Rows, Rows]:
        """Only copies train, only originals validate."""
        training, validation = sides_of(self.config, self.originals, trial, counts=SPLIT)
        return len(self.originals) + rows_for(self.copies, training), validation

    def batch(self, rows: Rows) -> tuple[Tensor, Tensor]:
        x = torch.from_numpy(self.images.take(rows)).permute(0, 3, 1, 2)  # channels last as it is
        return x.float().div_(255), torch.from_numpy(self.masks.take(rows)[:, None]).float()


def prepare(config: RunConfig, jobs: int, progress: Progress) -> Prepared:
    for model in config.models:
        step = 8 * FORMS[model].factor
        if config.size % step:
            raise StudyError(f"Expected a size divisible by {step} for {model}, got {config.size}.")
    opened = open_asked_for(config)
    assert config.copies is not None
    copies = make_copies(
        opened.folder,
        opened.images,
        config.copies,
        CHANGES,
        config.seed,
        progress=partial(progress, "copies"),
    )
    folders = {"images": opened.folder, "copies": copies.folder}
    return Prepared(folders, opened.source, opened.unreadable)


def open_data(config: RunConfig, prepared: Prepared) -> KvasirData:
    originals = open_stored(prepared.folders["images"])
    copies = open_copies(prepared.folders["copies"])
    assert originals.masks is not None
    assert copies.images.masks is not None
    images = Stack([originals.images, copies.images.images])
    masks = Stack([originals.masks, copies.images.masks])
    return KvasirData(config, originals, copies, images, masks)


def network(config: RunConfig, model: str, first: Tensor) -> nn.Module:
    assert config.channels is not None
    leaky = bool(config.leaky) and FORMS[model].projects
    return unet(model, config.channels, config.size, leaky=leaky)


KVASIR = Study(
    name="kvasir",
    title="Kvasir-SEG",
    presets=PRESETS,
    models={name: form.title for name, form in FORMS.items()},
    prepare=prepare,
    open=open_data,
    network=network,
    loss=dice_loss,
    metrics=Segmentation,
    claims=CLAIMS,
)
