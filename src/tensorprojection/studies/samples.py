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
OF_A_CLASS = 6
SIDE = 128  # pixels; larger images are reduced


@dataclass(frozen=True)
class Samples:
    """Some images of each class, or with masks; and how many there are of each class in all."""

    images: NDArray[np.uint8]
    labels: NDArray[np.int64]
    masks: NDArray[np.bool_] | None
    names: tuple[str, ...]
    class_names: tuple[str, ...]
    counts: tuple[int, ...]


def choose(images: ImageSet, seed: int = 0) -> Samples:
    """Draw images of each class, or of all; the same ones for the same images."""
    labels = np.zeros(len(images), np.int64) if images.labels is None else images.labels
    class_names = images.class_names or ("images",)
    rng = np.random.default_rng(seed)
    counts = np.bincount(labels, minlength=len(class_names))
    drawn = []
    for label in range(len(counts)):
        own = np.flatnonzero(labels == label)
        drawn += sorted(rng.permutation(own)[:OF_A_CLASS].tolist())
    names = [f"row {k}" for k in drawn] if images.names is None else images.names[drawn].tolist()
    masks = None
    if images.masks is not None:
        masks = np.stack([_small(images.masks[k] * 255) > 127 for k in drawn])
    return Samples(
        np.stack([_small(images.images[k]) for k in drawn]),
        labels[drawn],
        masks,
        tuple(names),
        tuple(class_names),
        tuple(int(count) for count in counts),
    )


def _small(image: NDArray[np.uint8]) -> NDArray[np.uint8]:
    shown = Image.fromarray(np.asarray(image))
    shown.thumbnail((SIDE, SIDE))
    return np.asarray(shown)


def write_samples(run: Path, images: ImageSet) -> None:
    """Write samples into the run's folder, unless it has some."""
    path = run / SAMPLES
    if path.exists():
        return
    chosen = choose(images)
    arrays: dict[str, Any] = {
        "images": chosen.images,
        "labels": chosen.labels,
        "names": np.array(chosen.names, np.str_),
        "class_names": np.array(chosen.class_names, np.str_),
        "counts": np.array(chosen.counts),
    }
    if chosen.masks is not None:
        arrays["masks"] = chosen.masks
    buffer = io.BytesIO()
    np.savez_compressed(buffer, **arrays)
    write_whole(path, buffer.getvalue())


def read_samples(run: Path) -> Samples | None:
    """Return the samples of a run; None if there are none that can be read."""
    try:
        content = io.BytesIO((run / SAMPLES).read_bytes())
        with np.load(content, allow_pickle=False) as file:
            return Samples(
                file["images"],
                file["labels"],
                file["masks"] if "masks" in file.files else None,
                tuple(map(str, file["names"])),
                tuple(map(str, file["class_names"])),
                tuple(map(int, file["counts"])),
            )
    except (OSError, ValueError, KeyError, EOFError, zipfile.BadZipFile):
        return None
