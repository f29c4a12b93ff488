"""Any folder of images: a subfolder per class, or images with masks, with the paper's networks.

The CNN of section 3.1 classifies images or, with a backbone, the heads of section 3.2 classify a
frozen network's features; the U-Net of section 3.3 predicts masks.

The classes come from the data, so the study is made for it. Its reference has the classes and the
images' mode, such as ``images?mode=L&class=cat&class=dog``: with it, a run's configuration is
enough for another process, a report or a prediction to make the same study again.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, quote

import numpy as np
from pydantic import Field
from torch import Tensor, nn

from .config import RunConfig, read_toml
from .data.decode import UnreadableError, open_image
from .data.images import ImageKind, Mode
from .data.read import class_folders, is_folder, load_npz, read_items
from .data.sources import PHANTOMS
from .errors import StudyError
from .inputs import Frozen
from .networks.backbones import BACKBONES
from .networks.chest_head import chest_head, find_head
from .networks.oct_cnn import HEADS, oct_cnn
from .networks.reductions import projection
from .networks.unet import FORMS, unet
from .study import Study

NAME = "images"
SAMPLED = 64  # images that are checked for colour
# Block init is average pooling at first, which overfits least on a few thousand images.
CLASSIFIERS = {
    "base": HEADS["base"],
    "avg": HEADS["avg"],
    "tpl": projection("TensorProjection", init="block"),
    "tpl-small": projection("TensorProjection, fewer channels", channels=20, init="block"),
}
# The U-Net's forms, with smooth inits.
SEGMENTERS = {"base": "base", "tpl": "tpl-blur", "tpl-small": "tpl-aggressive"}
# Heads on a backbone's features.
HEADS_ON_FEATURES = {"base": "base", "tpl": "tpl", "tpl-small": "tpl-16"}

USUAL: dict[str, Any] = {
    "size": 96,
    "batch": 32,
    "epochs": 10,
    "trials": 6,  # fewer cannot decide anything
    "learning_rate": 1e-3,
}
PRESETS: dict[str, dict[str, Any]] = {
    "small": USUAL,
    "paper": USUAL | {"epochs": 20, "trials": 30},
    "smoke": USUAL | {"size": 32, "batch": 16, "epochs": 2, "trials": 2},
}


class ImagesConfig(RunConfig):
    """The settings of a run of this study."""

    masks: str | None = Field(
        None, description="Folder of masks with the images' names: outlines instead of classes."
    )
    backbone: str | None = Field(
        None, description=f"Frozen network whose features are classified: {', '.join(BACKBONES)}."
    )
    weights: str | None = Field(None, description="File with the backbone's weights.")


@dataclass(frozen=True)
class ImagesStudy(Study[ImagesConfig]):
    """Classes or masks of a user's own images."""

    backbone: str | None = None

    @property
    def reference(self) -> str:
        kind = self.images
        if not kind.class_names:
            return NAME
        names = "".join(f"&class={quote(n, safe='').replace('.', '%2E')}" for n in kind.class_names)
        backbone = f"&backbone={self.backbone}" if self.backbone else ""
        return f"{NAME}?mode={kind.mode}{'&masks' if kind.masks else names}{backbone}"

    def for_data(self, settings: Mapping[str, Any], file: Path | None) -> Study[Any]:
        given = {**read_toml(file), **settings}
        data, masks, backbone = (
            None if given.get(name) == "none" else given.get(name)
            for name in ("data", "masks", "backbone")
        )
        if not isinstance(data, str) or data == PHANTOMS:
            raise StudyError("Expected a folder of images or an .npz file as --data, got none.")
        kind = kind_of(Path(data), None if masks is None else Path(masks))
        if backbone is not None and kind.masks:
            raise StudyError("A backbone classifies images. For masks, leave --backbone out.")
        return images_study(kind, backbone)

    def frozen(self, config: ImagesConfig) -> Frozen | None:
        weights = None if config.weights is None else Path(config.weights)
        return None if self.backbone is None else Frozen(self.backbone, weights)


def kind_of(data: Path, masks: Path | None = None) -> ImageKind:
    """Return what the images of a folder or an .npz file are: their classes or masks, their mode.

    Args:
        data: a folder with a subfolder per class, alone or in train, val and test; a folder with
            the subfolders images and masks; a folder of images, if there are ``masks``; or a file.
        masks: a folder of masks that have the names of their images.
    """
    if not is_folder(data):
        if masks is not None:
            raise StudyError(
                f"Expected masks in {data} itself, as an array masks; leave --masks out."
            )
        given = load_npz(data)
        names = given["class_names"].tolist() if "class_names" in given else []
        colour, segmented = given["images"].ndim == 4, "masks" in given
        if not segmented and len(names) < 2:
            raise StudyError(
                f"Expected in {data} an array class_names of two or more classes, or masks, got "
                f"{names or 'neither'}."
            )
        return _kind(tuple(map(str, names)), "RGB" if colour else "L", segmented)
    names = () if masks is not None else class_folders(data)
    if masks is not None or {name.lower() for name in names} == {"images", "masks"}:
        return _kind((), "RGB", True)
    if len(names) < 2:
        raise StudyError(
            f"Expected in {data} a folder for each of two or more classes, alone or in train, val "
            f"and test, got {', '.join(names) or 'none with images'}."
        )
    return _kind(names, _mode(_kind(names, "RGB", False), data), False)


def _kind(class_names: tuple[str, ...], mode: Mode, masks: bool) -> ImageKind:
    if masks:
        return ImageKind(NAME, ("background", "object"), "RGB", masks=True)
    return ImageKind(NAME, class_names, mode)


def _mode(kind: ImageKind, folder: Path) -> Mode:
    """Return "L" if the images are gray, whatever their files' format says."""
    items, _ = read_items(kind, folder)
    for item in islice(items, 0, None, max(1, len(items) // SAMPLED)):
        try:
            pixels = np.asarray(open_image(item.image).convert("RGB"))
        except (UnreadableError, OSError, ValueError):  # the run itself names the file
            continue
        if (pixels != pixels[..., :1]).any():
            return "RGB"
    return "L"


def images_study(kind: ImageKind, backbone: str | None = None) -> ImagesStudy:
    """Return the study of such images."""
    if backbone not in (None, *BACKBONES):
        raise StudyError(f"Expected a backbone of {', '.join(BACKBONES)}, got {backbone!r}.")
    if backbone is not None:
        titles = {name: find_head(form).title for name, form in HEADS_ON_FEATURES.items()}
    elif kind.masks:
        titles = {name: FORMS[form].title for name, form in SEGMENTERS.items()}
    else:
        titles = {name: head.title for name, head in CLASSIFIERS.items()}
    presets = {n: {**preset, "models": tuple(titles)} for n, preset in PRESETS.items()}
    channels = 3 if kind.mode == "RGB" else 1

    def network(config: ImagesConfig, model: str, first: Tensor) -> nn.Module:
        if backbone is not None:
            wide, side = BACKBONES[backbone].channels, config.size // 32
            return chest_head(HEADS_ON_FEATURES[model], wide, side, len(kind.class_names))
        if kind.masks:
            return unet(SEGMENTERS[model], size=config.size)
        return oct_cnn(CLASSIFIERS[model], len(kind.class_names), channels, config.size)

    return ImagesStudy(
        NAME, "Images", kind, titles, network, presets, ImagesConfig, backbone=backbone
    )


def from_reference(reference: str) -> ImagesStudy | None:
    """Return the study of a reference; None if it is another study's."""
    name, _, query = reference.partition("?")
    if name != NAME:
        return None
    found = parse_qs(query, keep_blank_values=True)
    mode: Mode = "RGB" if found.get("mode") == ["RGB"] else "L"
    kind = _kind(tuple(found.get("class", ())), mode, "masks" in found)
    (backbone,) = found.get("backbone", [None])[:1]
    return images_study(kind, backbone)
