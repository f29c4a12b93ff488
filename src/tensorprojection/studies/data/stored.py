"""An ImageSet on disk, as plain NumPy files; opened again it is memory-mapped."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..errors import StudyError
from .images import ARRAYS, KNOWN, ImageSet
from .sent import received


def store(images: ImageSet, folder: Path) -> None:
    """Write every array as ``name.npy``, and the names of the classes as JSON."""
    for name in ("images", "masks"):
        save_array(getattr(images, name), folder / f"{name}.npy")
    store_known(images.known(), images.class_names, folder)


def store_known(
    known: Mapping[str, NDArray[Any] | None], class_names: tuple[str, ...], folder: Path
) -> None:
    """Write what is known of each image, and the names of the classes; not the images."""
    for name in KNOWN:
        save_array(known.get(name), folder / f"{name}.npy")
    (folder / "class_names.json").write_text(json.dumps(class_names))


def save_array(array: NDArray[Any] | None, path: Path) -> None:
    """Write a whole array, where there is one; what comes in parts goes through rows.py."""
    if array is not None:
        np.save(path, array, allow_pickle=False)


def open_stored(folder: Path) -> ImageSet:
    """The set as it was stored. Its arrays are mapped, not read, and their values not checked.

    Whether they are undamaged is checked once per start, by :func:`~.cache.cached`.
    """
    arrays: dict[str, Any] = {
        name: open_array(folder / f"{name}.npy")
        for name in ARRAYS
        if name == "images" or _is_there(folder / f"{name}.npy")
    }
    listed = folder / "class_names.json"
    try:
        class_names = tuple(json.loads(str(received(listed) or listed.read_text())))
        return ImageSet(**arrays, class_names=class_names, checked=True)
    except (OSError, ValueError, TypeError) as error:
        reason = getattr(error, "strerror", None) or error
        raise StudyError(f"Could not open {folder}: {reason}. {AGAIN}") from error


def _is_there(path: Path) -> bool:
    return received(path) is not None or path.exists()


def open_array(path: Path) -> NDArray[Any]:
    """An array of the cache, mapped."""
    sent = received(path)
    if isinstance(sent, np.ndarray):
        return sent
    try:
        mapped: NDArray[Any] = np.load(path, mmap_mode="r", allow_pickle=False)
        return mapped
    except (OSError, ValueError, EOFError) as error:
        reason = getattr(error, "strerror", None) or f"{error}\n".splitlines()[0].rstrip(".")
        raise StudyError(f"Could not open {path}: {reason}. {AGAIN}") from error


AGAIN = "Start the same command once more: what is damaged in the cache is found and made again."
