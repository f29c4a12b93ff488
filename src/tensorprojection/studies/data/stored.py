"""An ImageSet on disk, as plain NumPy files; opened again it is memory-mapped."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np

from .images import ImageSet

ARRAYS = ("images", "labels", "masks", "groups", "names", "parts")


def store(images: ImageSet, folder: Path) -> None:
    """Write every array as ``name.npy``, and the names of the classes as JSON."""
    for name in ARRAYS:
        array = getattr(images, name)
        if array is not None:
            np.save(folder / f"{name}.npy", array, allow_pickle=False)
    store_class_names(images.class_names, folder)


def store_class_names(class_names: tuple[str, ...], folder: Path) -> None:
    (folder / "class_names.json").write_text(json.dumps(class_names))


def open_stored(folder: Path) -> ImageSet:
    """The set as it was stored. Its arrays are mapped, not read, and their values not checked."""
    arrays: dict[str, Any] = {
        name: np.load(folder / f"{name}.npy", mmap_mode="r", allow_pickle=False)
        for name in ARRAYS
        if (folder / f"{name}.npy").exists()
    }
    class_names = tuple(json.loads((folder / "class_names.json").read_text()))
    return ImageSet(**arrays, class_names=class_names, checked=True)
