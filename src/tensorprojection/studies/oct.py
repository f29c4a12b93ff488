"""Retinal OCT images in four classes, by a small CNN (the paper's section 3.1)."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor, nn

from tensorprojection import HOPE

from .claims import Claim
from .config import RunConfig
from .data.images import ImageSet
from .data.stored import open_stored
from .errors import StudyError
from .metrics import Classification
from .models.oct_cnn import HEADS, freeze_mpca, oct_cnn
from .sides import sides_of
from .study import Prepared, Progress, Rows, Study, open_asked_for

CLASSES = 4
# D(U) starts near 35 for 32 columns of 128: so it weighs about as much as a quarter of the loss.
HOPE_BETA = 0.01

PAPER = {
    "size": 96,
    "batch": 300,
    "epochs": 20,
    "trials": 30,
    "learning_rate": 1e-3,
    "models": ("base", "tpl1", "tpl2"),
}
PRESETS = {
    "paper": PAPER,
    # Batches of 300 would leave three steps an epoch of so few images.
    "small": PAPER | {"images": 1200, "batch": 16, "epochs": 8, "trials": 3},
    "smoke": PAPER | {"images": 64, "size": 32, "batch": 16, "epochs": 2, "trials": 2},
}

# What the paper says of its figures; "first epochs" and "about" are given numbers here.
CLAIMS = (
    *(
        Claim(
            f"{title} lowers the validation loss faster than MaxPooling in the first epochs.",
            *("loss", model, "base", "lower", "mean"),
            epochs=(1, 5),
        )
        for model, title in (("tpl1", "TensorProjection 1"), ("tpl2", "TensorProjection 2"))
    ),
    *(
        Claim(
            f"{title} then overfits sooner than MaxPooling: from epoch 12 on its validation loss "
            "rises more.",
            *("loss", model, "base", "higher", "rise"),
            epochs=(12, 20),
        )
        for model, title in (("tpl1", "TensorProjection 1"), ("tpl2", "TensorProjection 2"))
    ),
    Claim(
        "TensorProjection 2 overfits less than TensorProjection 1.",
        *("loss", "tpl2", "tpl1", "lower", "rise"),
        epochs=(12, 20),
    ),
    *(
        Claim(
            f"{title} ends with about the same accuracy as MaxPooling (within 0.01).",
            *("accuracy", model, "base", "equal", "last"),
            margin=0.01,
        )
        for model, title in (("tpl1", "TensorProjection 1"), ("tpl2", "TensorProjection 2"))
    ),
)


@dataclass(frozen=True)
class OctData:
    """Gray images as three equal channels in [0, 1], and their classes."""

    config: RunConfig
    images: ImageSet

    def sides(self, trial: int) -> tuple[Rows, Rows]:
        return sides_of(self.config, self.images, trial)

    def batch(self, rows: Rows) -> tuple[Tensor, Tensor]:
        assert self.images.labels is not None
        gray = torch.from_numpy(self.images.images[rows]).float().div_(255)
        x = gray[:, None].expand(-1, 3, -1, -1).contiguous(memory_format=torch.channels_last)
        return x, torch.from_numpy(self.images.labels[rows])


def prepare(config: RunConfig, jobs: int, progress: Progress) -> Prepared:
    if config.size % 16:
        raise StudyError(f"Expected a size divisible by 16, got {config.size}.")
    opened = open_asked_for(config)
    return Prepared({"images": opened.folder}, opened.source, opened.unreadable)


def open_data(config: RunConfig, prepared: Prepared) -> OctData:
    return OctData(config, open_stored(prepared.folders["images"]))


def network(config: RunConfig, model: str, first: Tensor) -> nn.Module:
    made = oct_cnn(model, CLASSES, size=config.size)
    if model == "mpca":
        freeze_mpca(made, first)
    return made


def penalty(network: nn.Module) -> Tensor | None:
    """β D(U) of the HOPE model, which has only this to make its columns orthogonal."""
    layers = [layer for layer in network.modules() if isinstance(layer, HOPE)]
    return HOPE_BETA * layers[0].penalty() if layers else None


OCT = Study(
    name="oct",
    title="Retinal OCT",
    presets=PRESETS,
    models={name: head.title for name, head in HEADS.items()},
    prepare=prepare,
    open=open_data,
    network=network,
    loss=nn.functional.cross_entropy,
    penalty=penalty,
    metrics=partial(Classification, CLASSES),
    claims=CLAIMS,
)
