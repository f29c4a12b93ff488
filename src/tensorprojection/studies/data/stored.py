"""Arrays and image sets in folders of the cache: written once, opened again as memory maps."""

from __future__ import annotations

import errno
import math
import os
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import DTypeLike, NDArray

from ..errors import StudyError
from .images import ARRAYS, ImageSet

Array = NDArray[Any]
# Folders whose content came from another machine; opening looks here before it looks on the disk.
_received: dict[Path, Mapping[str, Array]] = {}


def create_array(path: Path, shape: tuple[int, ...], dtype: DTypeLike) -> Array:
    """Create an .npy file of zeros with its disk space reserved; return it as a writable map.

    Writing to a map of a sparse file would kill the process with a signal if the disk fills up.
    Here a full disk is an OSError before the first row is written.
    """
    kind = np.dtype(dtype)
    with open(path, "wb") as file:
        header = {"descr": kind.str, "fortran_order": False, "shape": shape}
        np.lib.format.write_array_header_1_0(file, header)
        file.flush()
        size = file.tell() + kind.itemsize * math.prod(shape)
        if hasattr(os, "posix_fallocate"):
            os.posix_fallocate(file.fileno(), 0, size)
        elif shutil.disk_usage(path.parent).free < size:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(path))
        else:
            os.truncate(file.fileno(), size)
    array: Array = np.load(path, mmap_mode="r+", allow_pickle=False)
    return array


def store(images: ImageSet, folder: Path) -> None:
    """Write every array of a set as ``name.npy``; the values of its masks are checked here."""
    if images.masks is not None and images.masks.max(initial=0) > 1:
        raise ValueError(f"Expected masks of 0 and 1 only, got a {images.masks.max()}.")
    save(folder, images.class_names, {name: getattr(images, name) for name in ARRAYS})


def save(folder: Path, class_names: Sequence[str], arrays: Mapping[str, Array | None]) -> None:
    """Write these arrays and the names of the classes."""
    for name, array in {**arrays, "class_names": np.array(class_names, np.str_)}.items():
        if array is not None:
            np.save(folder / f"{name}.npy", array, allow_pickle=False)


def open_stored(folder: Path) -> ImageSet:
    """Open a set that :func:`store` wrote. Its arrays are mapped, its pixels are not read."""
    required = ("images", "class_names")
    arrays: dict[str, Any] = {
        name: open_array(folder / f"{name}.npy")
        for name in (*ARRAYS, "class_names")
        if name in required or f"{name}.npy" in _files(folder)
    }
    class_names = tuple(arrays.pop("class_names").tolist())
    try:
        return ImageSet(**arrays, class_names=class_names)
    except (ValueError, TypeError) as error:
        raise _unusable(folder, error) from error


def open_array(path: Path) -> Array:
    """Open an array of the cache as a read-only map."""
    if path.parent in _received:
        return _received[path.parent][path.name]
    try:
        array: Array = np.load(path, mmap_mode="r", allow_pickle=False)
        return array
    except (OSError, ValueError, EOFError) as error:
        raise _unusable(path, error) from error


def _unusable(path: Path, error: Exception | str) -> StudyError:
    reason = getattr(error, "strerror", None) or f"{error}\n".splitlines()[0].rstrip(".")
    return StudyError(
        f"Could not open {path}: {reason}. Run the same command again: corrupted folders of the "
        "cache are found and computed again."
    )


# Folders sent to another machine


def content_of(folder: Path) -> Mapping[str, Array]:
    """Return all arrays of a folder by file name, mapped and not read."""
    # Plain arrays: a memmap object would be sent together with its file.
    return {name: np.asarray(open_array(folder / name)) for name in _files(folder)}


def _files(folder: Path) -> list[str]:
    return list(_received.get(folder, ())) or sorted(path.name for path in folder.glob("*.npy"))


def receive(folder: Path, content: Mapping[str, Array]) -> None:
    """Let the folder have this content in this process, whatever is on the disk."""
    _received[folder] = dict(content)


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

    def __init__(self, arrays: Sequence[Array]) -> None:
        self.arrays = list(arrays)
        self.begins = np.cumsum([0, *(len(array) for array in arrays)])

    def __len__(self) -> int:
        return int(self.begins[-1])

    def take(self, rows: NDArray[np.int64]) -> Array:
        """Return these rows, in this order, as an array in memory."""
        result = np.empty((len(rows), *self.arrays[0].shape[1:]), self.arrays[0].dtype)
        which = np.searchsorted(self.begins, rows, side="right") - 1
        # Row by row: fancy indexing would copy every row twice.
        for place, (k, row) in enumerate(zip(which, rows - self.begins[which], strict=True)):
            result[place] = self.arrays[k][row]
        return result
