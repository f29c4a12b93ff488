"""What a run's page shows beside the curves; torch is not needed to read it.

Observations of a network's training are beside its rows, as ``trials/001/tpl1.observed.npz``; a few
of the images are in ``samples.npz``. The zip format has a checksum of each array.
"""

from __future__ import annotations

import io
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from .data.images import ImageSet
from .files import write_whole

Array = NDArray[Any]

# The validation images that are saved with their predictions, by the Dice score of each.
CHOSEN = ("best", "median", "worst")

SAMPLES = "samples.npz"
PER_CLASS = 6
LARGEST = 128  # pixels; larger images are reduced


@dataclass(frozen=True)
class Observed:
    """The arrays by name. Those of all epochs have a row for each of ``epochs``.

    ==========================  =============================================================
    epochs                      the numbers of the epochs
    confusion                   (epochs, classes, classes): true class by row, predicted by column
    orthogonality/LAYER         largest ‖UᵀU − I‖ of the layer
    energy/LAYER                share of its input's energy that the projection passes
    start/LAYER/K, U/LAYER/K    U of mode K before the first epoch, and after the last
    by_epoch/LAYER/K            (epochs, p, q): U of mode K after each epoch, if it is small
    images, masks, predictions  the images of ``CHOSEN``, at the last epoch
    dice                        their Dice scores
    ==========================  =============================================================
    """

    arrays: Mapping[str, Array]

    @property
    def epochs(self) -> list[int]:
        return [int(epoch) for epoch in self.arrays["epochs"]]

    def get(self, name: str) -> Array | None:
        return self.arrays.get(name)

    def named(self, kind: str) -> dict[str, Array]:
        """Return the arrays of a kind, by what follows it.

        >>> Observed({"epochs": np.arange(1), "U/pool/2": np.eye(2)}).named("U")
        {'pool/2': array([[1., 0.],
               [0., 1.]])}
        """
        begin = f"{kind}/"
        return {k.removeprefix(begin): v for k, v in self.arrays.items() if k.startswith(begin)}


def read_observed(path: Path) -> Observed | None:
    """Return the observations of that file; None if it is missing or corrupted."""
    return parse_observed(path.read_bytes()) if path.is_file() else None


def parse_observed(content: bytes) -> Observed | None:
    """Return the observations of a file's content; None if it is corrupted."""
    arrays = _parse(content)
    return None if arrays is None or "epochs" not in arrays else Observed(arrays)


# Samples


@dataclass(frozen=True)
class Samples:
    """Some images of each class, or with masks; and the number of all images of each class."""

    images: ImageSet
    counts: tuple[int, ...]


def write_samples(run: Path, images: ImageSet) -> None:
    """Write samples into the run's folder, unless it has some; the same for the same images."""
    if (run / SAMPLES).exists():
        return
    class_names = images.class_names or ("images",)
    labels = np.zeros(len(images), np.int64) if images.labels is None else images.labels
    counts = np.bincount(labels, minlength=len(class_names))
    rng = np.random.default_rng(0)
    rows: list[int] = []
    for label in range(len(counts)):
        rows += sorted(rng.permutation(np.flatnonzero(labels == label))[:PER_CLASS].tolist())
    names = [f"row {row}" for row in rows] if images.names is None else images.names[rows]
    arrays: dict[str, Any] = {
        "images": np.stack([_thumbnail(images.images[row]) for row in rows]),
        "labels": labels[rows],
        "names": np.array(names, np.str_),
        "class_names": np.array(class_names, np.str_),
        "counts": counts,
    }
    if images.masks is not None:
        masks = [_thumbnail(images.masks[row] * 255) > 127 for row in rows]
        arrays["masks"] = np.stack(masks).astype(np.uint8)
    buffer = io.BytesIO()
    np.savez_compressed(buffer, **arrays)
    write_whole(run / SAMPLES, buffer.getvalue())


def _thumbnail(image: NDArray[np.uint8]) -> NDArray[np.uint8]:
    shown = Image.fromarray(np.asarray(image))
    shown.thumbnail((LARGEST, LARGEST))
    return np.asarray(shown)


def read_samples(run: Path) -> Samples | None:
    """Return the samples of a run; None if there are none that can be read."""
    file = run / SAMPLES
    arrays = _parse(file.read_bytes()) if file.is_file() else None
    if arrays is None:
        return None
    try:
        counts = tuple(arrays.pop("counts").tolist())
        arrays["class_names"] = tuple(arrays["class_names"].tolist())
        return Samples(ImageSet(**arrays), counts)
    except (KeyError, TypeError, ValueError):  # another program's
        return None


def _parse(content: bytes) -> dict[str, Any] | None:
    try:
        with np.load(io.BytesIO(content), allow_pickle=False) as file:
            return {name: file[name] for name in file.files}
    except Exception:  # zipfile, zlib and NumPy raise many kinds
        return None
