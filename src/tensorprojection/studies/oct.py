"""Retinal OCT images in four classes, by a small CNN (the paper's section 3.1)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from torch import Tensor, nn

from tensorprojection.nn.hope import HOPE

from .config import RunConfig
from .data.images import ImageKind
from .data.phantoms import OCT_CLASSES, oct_phantoms
from .networks.layer_rows import not_the_papers
from .networks.layers import Repeated
from .networks.oct_cnn import HEADS, find_head, freeze_mpca, oct_cnn
from .study import Claim, Study

KAGGLES = "Kaggle's kermany2018, with fewer NORMAL images than the paper's data set"
IMAGES = ImageKind(
    name="oct",
    class_names=OCT_CLASSES,
    phantoms=oct_phantoms,
    kaggle="paultimothymooney/kermany2018",
    versions={
        109_309: "the paper's data set, version 3 of Mendeley Data rscbjbr9sj (108,309 + 1,000)",
        84_484: KAGGLES,
        84_495: KAGGLES,  # as its page says
    },
    medmnist=("CNV", "DME", "DRUSEN", "NORMAL"),  # OCTMNIST's own order
    # CLASS-PATIENT-NUMBER; the patients' numbers are the data set's: one may have several classes.
    patient_pattern=r"^[A-Za-z]+-(\d{1,18})-\d+",
)
# D(U) starts near 35 for 32 columns of 128: so it weighs about as much as a quarter of the loss.
HOPE_BETA = 0.01

PAPER: dict[str, Any] = {
    "size": 96,
    "batch": 300,
    "epochs": 20,
    "trials": 30,
    "learning_rate": 1e-3,
    "models": ("base", "tpl1", "tpl2"),
}
PRESETS = {
    # The paper has one division for all trials. A redrawn one says more about new images.
    "paper": PAPER | {"split": "fixed"},
    # Batches of 300 would leave three steps per epoch of so few images.
    "small": PAPER | {"images": 1200, "batch": 16, "epochs": 8, "trials": 3},
    "smoke": PAPER | {"images": 64, "size": 32, "batch": 16, "epochs": 2, "trials": 2},
}

# What the paper says of its figures; see Note [Numbers for the paper's words], verdicts.py.
OVERFITS_AFTER = 12
PROJECTIONS = (("tpl1", "TensorProjection 1"), ("tpl2", "TensorProjection 2"))
SCORES = (("accuracy", "accuracy"), ("f1", "F1 score"))


def claims() -> Iterator[Claim]:
    for model, title in PROJECTIONS:
        text = f"{title} lowers the validation loss faster than MaxPooling in the first epochs."
        yield Claim(text, "loss", model, "base", "lower", "first")
    for metric, score in SCORES:
        for model, title in PROJECTIONS:
            text = f"{title} reaches a higher {score} than MaxPooling in the first epochs."
            yield Claim(text, metric, model, "base", "higher", "first")
    late = f"After epoch {OVERFITS_AFTER}, "
    for model, title in PROJECTIONS:
        text = f"{late}{title} overfits more than MaxPooling: at the end its validation loss is "
        text += "further above its lowest."
        yield Claim(text, "loss", model, "base", "higher", "rise", after=OVERFITS_AFTER)
    for model, title in PROJECTIONS:
        text = f"{late}{title} eventually has a higher validation loss than MaxPooling."
        yield Claim(text, "loss", model, "base", "higher", "last", after=OVERFITS_AFTER)
    text = "TensorProjection 2 overfits less than TensorProjection 1."
    yield Claim(text, "loss", "tpl2", "tpl1", "lower", "rise", after=OVERFITS_AFTER)
    for metric, score in SCORES:
        for model, title in PROJECTIONS:
            text = f"{title} ends with nearly the same {score} as MaxPooling (within 0.01)."
            yield Claim(text, metric, model, "base", "equal", "last", margin=0.01)


def network(config: RunConfig, model: str, first: Tensor) -> nn.Module:
    made = oct_cnn(model, len(IMAGES.class_names), size=config.size)
    if model == "mpca" and not first.is_meta:
        freeze_mpca(made, first)
    return made


class OctStudy(Study[RunConfig]):
    """Section 3.1, with the HOPE model's penalty."""

    def title_of(self, model: str) -> str:
        return find_head(model).title

    def preprocess(self, config: RunConfig) -> nn.Module:
        """Gray pixels as three equal channels."""
        return Repeated()

    def penalty(self, network: nn.Module) -> Tensor | None:
        """β D(U) of the HOPE model, which has only this to make its columns orthogonal."""
        layers = [layer for layer in network.modules() if isinstance(layer, HOPE)]
        return HOPE_BETA * layers[0].penalty() if layers else None

    def notes(self, config: RunConfig, model: str) -> Mapping[str, str]:
        if (model, config.size) == ("tpl2", 96):
            return {
                "flatten": "The paper prints 1152, but 6 · 6 · 20 = 720.",
                "dense1": "The paper prints 295,168, but 720 · 256 + 256 = 184,576.",
            }
        papers = model in PAPER["models"]
        return {} if papers else {"dense1": not_the_papers(self.title_of(model))}


OCT = OctStudy(
    name="oct",
    title="Retinal OCT",
    images=IMAGES,
    presets=PRESETS,
    models={name: head.title for name, head in HEADS.items()},
    network=network,
    claims=tuple(claims()),
)
