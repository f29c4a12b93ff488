"""A few images in the run's folder, so that its page can show them anywhere."""

from __future__ import annotations

import io
import zipfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from .data.images import ImageSet
from .files import write_whole

SAMPLES = "samples.npz"
PER_CLASS = 6
LARGEST = 128  # pixels; larger images are reduced


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
    try:
        content = io.BytesIO((run / SAMPLES).read_bytes())
        with np.load(content, allow_pickle=False) as file:
            arrays: dict[str, Any] = {name: file[name] for name in file.files}
        counts = tuple(arrays.pop("counts").tolist())
        arrays["class_names"] = tuple(arrays["class_names"].tolist())
        images = ImageSet(**arrays)
        return None if images.labels is None or images.names is None else Samples(images, counts)
    except (OSError, ValueError, KeyError, TypeError, EOFError, zipfile.BadZipFile):
        return None
