"""Chest X-rays in four classes, by a head on a frozen network's features (section 3.2).

The frozen network runs once per image, ever: the head is trained and validated on its features of
the originals and of their augmented copies, which are cached.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pydantic import Field
from torch import Tensor, nn

from .config import RunConfig
from .data.augment import Augmentation
from .data.images import ImageKind
from .data.phantoms import CHEST_CLASSES, chest_phantoms
from .inputs import Copies, Frozen
from .networks.backbones import BACKBONES
from .networks.chest_head import HEADS, chest_head, find_head, init_from_mpca
from .networks.layer_rows import not_the_papers
from .study import Claim, Study

IMAGES = ImageKind(
    name="chest",
    class_names=CHEST_CLASSES,
    phantoms=chest_phantoms,
    kaggle="tawsifurrahman/covid19-radiography-database",
    class_aliases={"covid19": "covid"},  # the folder in the data set's first versions
)
# Copies of each original, to even out the classes, and how far they may differ from it.
COPIES = {"Normal": 0, "Lung Opacity": 1, "COVID": 2, "Viral Pneumonia": 7}
CHANGES = Augmentation(rotation=10, shift=0.05, zoom=0.05, shear=0.05)


class ChestConfig(RunConfig):
    """The settings of a run of this study."""

    backbone: str = Field(description="The frozen network: densenet121 or efficientnet-lite0.")
    weights: str | None = Field(None, description="File with the frozen network's weights.")
    dropout: float = Field(ge=0, lt=1, description="Dropout before the last layer; 0 for none.")


PAPER: dict[str, Any] = {
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
        "The validation loss of the 1×1 convolution rises in the later epochs.",
        *("loss", "base", "base", "higher", "late"),
    ),
    Claim(
        "The validation loss of TensorProjection rises in the later epochs.",
        *("loss", "tpl", "tpl", "higher", "late"),
    ),
    Claim(
        "TensorProjection overfits less than the 1×1 convolution: at the end its validation loss "
        "is less far above its lowest.",
        *("loss", "tpl", "base", "lower", "rise"),
    ),
    *(
        Claim(
            f"TensorProjection has a slightly better {score} at every epoch.",
            *(metric, "tpl", "base", "higher", "each"),
        )
        for metric, score in (("accuracy", "accuracy"), ("f1", "F1 score"))
    ),
)


def network(config: ChestConfig, model: str, first: Tensor) -> nn.Module:
    channels, side = BACKBONES[config.backbone].channels, config.size // 32
    made = chest_head(model, channels, side, len(IMAGES.class_names), dropout=config.dropout)
    if model == "tpl-mpca" and not first.is_meta:
        init_from_mpca(made, first)
    return made


class ChestStudy(Study[ChestConfig]):
    """Section 3.2: networks on the cached features of a frozen network."""

    def title_of(self, model: str) -> str:
        return find_head(model).title

    def copies(self, config: ChestConfig) -> Copies:
        return Copies(COPIES, CHANGES)

    def frozen(self, config: ChestConfig) -> Frozen:
        weights = None if config.weights is None else Path(config.weights)
        return Frozen(config.backbone, weights)

    def notes(self, config: ChestConfig, model: str) -> Mapping[str, str]:
        papers = model in PAPER["models"]
        return {
            "dense1": "" if papers else not_the_papers(self.title_of(model)),
            "dropout": "Not in the paper, but in its authors' code.",
            "dense2": "The paper prints 7 outputs and 1,799, but there are 4 classes: "
            "256 · 4 + 4 = 1,028.",
        }


CHEST = ChestStudy(
    name="chest",
    title="Chest X-ray",
    images=IMAGES,
    settings=ChestConfig,
    presets=PRESETS,
    models={name: head.title for name, head in HEADS.items()},
    network=network,
    claims=CLAIMS,
)
