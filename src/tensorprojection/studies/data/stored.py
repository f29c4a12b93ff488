"""Arrays and image sets in folders of the cache: written once, opened again as memory maps."""

from __future__ import annotations

import json
import math
import os
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import DTypeLike, NDArray

from ..errors import StudyError
from .images import ARRAYS, KNOWN, ImageSet

CLASS_NAMES = "class_names.json"
LARGE = 4096  # bytes of a row, from which copying takes longer than an iteration of a loop
AGAIN = "Start the same command once more: corrupted folders of the cache are found and remade."

Content = NDArray[Any] | str
# Folders whose content came from another machine; opening looks here before it looks on the disk.
_received: dict[Path, dict[str, Content]] = {}


# Writing


def create_array(path: Path, shape: tuple[int, ...], dtype: DTypeLike) -> NDArray[Any]:
    """Create an .npy file of zeros with its disk space reserved; return it as a writable map.

    Writing to a map of a sparse file would kill the process with a signal if the disk fills up.
    Here a full disk is an error before the first row is written.
    """
    kind = np.dtype(dtype)
    needed = kind.itemsize * math.prod(shape)
    require_disk(needed, path.parent)
    with open(path, "wb") as file:
        header = {"descr": kind.str, "fortran_order": False, "shape": shape}
        np.lib.format.write_array_header_1_0(file, header)
        file.flush()
        size = file.tell() + needed
        if hasattr(os, "posix_fallocate"):
            os.posix_fallocate(file.fileno(), 0, size)
        else:
            os.truncate(file.fileno(), size)
    return _mapped(path, "r+") if needed else np.zeros(shape, kind)


def require_disk(needed: int, folder: Path) -> None:
    """Raise an error if the disk of a folder has fewer than ``needed`` bytes free."""
    free = shutil.disk_usage(folder).free
    if needed > free:
        raise StudyError(
            f"Expected {needed / 1e9:.1f} GB free for the cache {folder}, got {free / 1e9:.1f} GB. "
            "Ask for fewer, smaller images or fewer copies, free some space (tpl cache clear), or "
            "set TENSORPROJECTION_CACHE to a folder that has some."
        )


def store(images: ImageSet, folder: Path) -> None:
    """Write every array as ``name.npy``, and the names of the classes as JSON."""
    for name in ("images", "masks"):
        _save(getattr(images, name), folder / f"{name}.npy")
    store_known(images.known(), images.class_names, folder)


def store_known(
    known: Mapping[str, NDArray[Any] | None], class_names: Sequence[str], folder: Path
) -> None:
    """Write what is known of each image and the names of the classes, but not the images."""
    for name in KNOWN:
        _save(known.get(name), folder / f"{name}.npy")
    (folder / CLASS_NAMES).write_text(json.dumps(class_names))


def _save(array: NDArray[Any] | None, path: Path) -> None:
    if array is not None:
        np.save(path, array, allow_pickle=False)


# Opening


def open_stored(folder: Path) -> ImageSet:
    """Open a set that :func:`store` wrote. Its arrays are mapped, their values are not checked."""
    arrays: dict[str, Any] = {
        name: open_array(folder / f"{name}.npy")
        for name in ARRAYS
        if name == "images" or _content(folder / f"{name}.npy") is not None
    }
    try:
        class_names = json.loads(str(_content(folder / CLASS_NAMES)))
        return ImageSet(**arrays, class_names=tuple(class_names), checked=True)
    except (OSError, ValueError, TypeError) as error:
        raise StudyError(f"Could not open {folder}: {_reason(error)}. {AGAIN}") from error


def open_array(path: Path) -> NDArray[Any]:
    """Open an array of the cache as a read-only map."""
    content = _received.get(path.parent, {}).get(path.name)
    if isinstance(content, np.ndarray):
        return content
    try:
        return _mapped(path, "r")
    except (OSError, ValueError, EOFError) as error:
        raise StudyError(f"Could not open {path}: {_reason(error)}. {AGAIN}") from error


def _mapped(path: Path, mode: Any) -> NDArray[Any]:
    array: NDArray[Any] = np.load(path, mmap_mode=mode, allow_pickle=False)
    return array


def _content(path: Path) -> Content | None:
    """Return a received file's content, or a text from the disk; None if there is no such file."""
    if path.parent in _received:
        return _received[path.parent].get(path.name)
    if not path.exists():
        return None
    return path.read_text() if path.suffix == ".json" else open_array(path)


def _reason(error: Exception) -> str:
    return getattr(error, "strerror", None) or f"{error}\n".splitlines()[0].rstrip(".")


# Folders sent to another machine


def content_of(folder: Path) -> dict[str, Content]:
    """Return all arrays of a folder, mapped and not read, and the names of its classes."""
    found: dict[str, Content] = {}
    for path in sorted(folder.iterdir()):
        if path.suffix == ".npy":
            # A plain array: a memmap object would be sent together with its file.
            found[path.name] = np.asarray(open_array(path))
        elif path.name == CLASS_NAMES:
            found[path.name] = path.read_text()
    return found


def receive(folder: Path, content: Mapping[str, Content]) -> None:
    """Let the folder have this content in this process, whatever is on the disk."""
    _received[folder] = dict(content)


def is_received(folder: Path) -> bool:
    """Return True if the folder's content is in this process's memory."""
    return folder in _received


# Several arrays as one


class Stack:
    """Arrays with rows of one shape and type, one below the other; nothing is copied.

    >>> stack = Stack([np.zeros((2, 3)), np.ones((4, 3))])
    >>> len(stack)
    6
    >>> stack.take(np.array([5, 0]))
    array([[1., 1., 1.],
           [0., 0., 0.]])
    """

    def __init__(self, arrays: Sequence[NDArray[Any]]) -> None:
        self.arrays = list(arrays)
        self.starts = np.cumsum([0, *(len(array) for array in arrays)])

    def __len__(self) -> int:
        return int(self.starts[-1])

    def take(self, rows: NDArray[np.int64]) -> NDArray[Any]:
        """Return these rows, in this order, as an array in memory."""
        which = np.searchsorted(self.starts, rows, side="right") - 1
        first = self.arrays[0]
        result = np.empty((len(rows), *first.shape[1:]), first.dtype)
        for k, array in enumerate(self.arrays):
            places = np.flatnonzero(which == k)
            found = rows[places] - self.starts[k]
            if result[:1].nbytes < LARGE:
                result[places] = array[found]
            else:  # copies each row once, fancy indexing twice
                for place, row in zip(places.tolist(), found.tolist(), strict=True):
                    result[place] = array[row]
        return result
