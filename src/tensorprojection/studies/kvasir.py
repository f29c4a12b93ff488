"""Polyps in colonoscopy images, outlined by a U-Net (the paper's section 3.3)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from pydantic import Field
from torch import Tensor, nn

from .config import RunConfig
from .data.augment import Augmentation
from .data.images import ImageKind
from .data.phantoms import POLYP_CLASSES, polyp_phantoms
from .inputs import Copies, RunInputs, Samples, open_samples
from .networks.layer_rows import not_the_papers
from .networks.unet import FORMS, unet
from .study import Claim, Study

IMAGES = ImageKind(
    name="kvasir",
    class_names=POLYP_CLASSES,
    mode="RGB",
    masks=True,
    phantoms=polyp_phantoms,
    kaggle="debeshjha1/kvasirseg",
)
# How far the copies may differ from their original.
CHANGES = Augmentation(
    rotation=30,
    shift=0.1,
    zoom=0.05,
    shear=0.05,
    flip_horizontal=True,
    flip_vertical=True,
    brightness=(0.8, 1.2),
    colour=20,
)
PAPERS_FORMS = ("base", "tpl", "tpl-aggressive")


class KvasirConfig(RunConfig):
    """The settings of a run of this study."""

    channels: int = Field(
        ge=1, le=4096, description="Channels of the first convolution; the paper's: 16 and 64."
    )
    copies: int = Field(ge=1, le=1000, description="Augmented copies of each training image.")
    leaky: bool = Field(description="Put a LeakyReLU(0.1) after the projection.")


PAPER: dict[str, Any] = {
    "size": 128,
    "channels": 16,
    "copies": 20,
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

# What the paper says of its figures; see Note [Numbers for the paper's words], verdicts.py. It
# compares the stronger compression with the baseline, as this does.
SCORES = (("dice", "Dice coefficient"), ("iou", "IoU"))


def claims() -> Iterator[Claim]:
    for metric, score in SCORES:
        text = f"TensorProjection has a higher {score} than the baseline in the first epochs."
        yield Claim(text, metric, "tpl", "base", "higher", "first")
    for metric, score in SCORES:
        text = f"Later the two are nearly equal ({score} within 0.01 at the end)."
        yield Claim(text, metric, "tpl", "base", "equal", "last", margin=0.01)
    for metric, score in SCORES:
        text = f"With 64 channels, TensorProjection's {score} varies less between trials than the "
        text += "baseline's in the first epochs."
        yield Claim(text, metric, "tpl", "base", "lower", "spread", channels=64)
    for metric, score in SCORES:
        text = "Compressing by 4 instead of 2 keeps the performance: it ends nearly equal to the "
        text += f"baseline ({score} within 0.01)."
        yield Claim(text, metric, "tpl-aggressive", "base", "equal", "last", margin=0.01)
    for metric, score in SCORES:
        text = f"Compressing by 4, it has a higher {score} than the baseline in the first epochs."
        yield Claim(text, metric, "tpl-aggressive", "base", "higher", "first")
    for metric, score in SCORES:
        # "Particularly notable": a run has one width, so this tests the gain at 64 channels alone.
        text = f"With 64 channels, compressing by 4 has a notably higher {score} than the baseline "
        text += "in the first epochs."
        yield Claim(text, metric, "tpl-aggressive", "base", "higher", "first", channels=64)


def network(config: KvasirConfig, model: str, first: Tensor) -> nn.Module:
    return unet(model, config.channels, config.size, leaky=config.leaky)


class KvasirStudy(Study[KvasirConfig]):
    """Section 3.3: masks, trained on augmented copies alone."""

    def copies(self, config: KvasirConfig) -> Copies:
        return Copies(config.copies, CHANGES)

    def open(self, config: KvasirConfig, inputs: RunInputs) -> Samples:
        return open_samples(config, inputs, self.preprocess(config), originals_train=False)

    def notes(self, config: KvasirConfig, model: str) -> Mapping[str, str]:
        return {
            "down4": "" if model in PAPERS_FORMS else not_the_papers(FORMS[model].title),
            "output": "The paper draws this network and prints no parameters.",
        }

    def describe(self, config: KvasirConfig) -> tuple[str, ...]:
        return f"{config.size} × {config.size}", f"{config.channels} channels"


KVASIR = KvasirStudy(
    name="kvasir",
    title="Kvasir-SEG",
    images=IMAGES,
    settings=KvasirConfig,
    presets=PRESETS,
    models={name: form.title for name, form in FORMS.items()},
    network=network,
    claims=tuple(claims()),
)
