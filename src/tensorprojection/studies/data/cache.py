"""The cache: folders of arrays that take long to compute, each under a key of all that went in.

A folder is filled under a temporary name and then renamed, so a folder that exists is complete.
Its ``entry.json`` has the key and one checksum of all other files, which is compared whenever a run
opens the folder. Arrays are opened as memory maps.
"""

from __future__ import annotations

import errno
import hashlib
import json
import logging
import math
import os
import re
import secrets
import shutil
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import platformdirs
from filelock import FileLock, Timeout
from numpy.typing import DTypeLike, NDArray

from ..errors import StudyError
from .images import ARRAYS, ImageSet

FORMAT = 6  # part of every key: raised when stored arrays change their meaning
ENTRY = "entry.json"
# Only folders with these names belong to the cache, which may share its place with other files.
NAME = re.compile(r"((images|copies|features)-[0-9a-f]{16})(\.[0-9a-f]+\.part|\.work)?")
LOG = logging.getLogger(__name__)
Array = NDArray[Any]


def cache_folder() -> Path:
    """Return ``$TENSORPROJECTION_CACHE``, or the user's cache folder."""
    given = os.environ.get("TENSORPROJECTION_CACHE")
    if not given:
        return platformdirs.user_cache_path("tensorprojection")
    try:
        return Path(given).expanduser()
    except RuntimeError:
        raise StudyError(
            f"TENSORPROJECTION_CACHE is {given}, but that user has no home folder. Give a path."
        ) from None


def cached(kind: str, key: Mapping[str, Any], make: Callable[[Path], None]) -> Path:
    """Return the folder of ``kind`` and ``key``; ``make`` fills it if there is none yet.

    If several processes need a folder at once, one fills it and the others wait. A corrupted folder
    is computed again, with a warning.

    Args:
        kind: "images", "copies" or "features"; it begins the folder's name.
        key: everything that the content depends on, in values that JSON can hold.
        make: writes the content into the folder that it is given.
    """
    root = cache_folder()
    text = json.dumps({"format": FORMAT, **key}, sort_keys=True)
    place = root / f"{kind}-{hashlib.sha256(text.encode()).hexdigest()[:16]}"
    if place.is_dir() and _is_intact(place):  # without the lock: it may be read-only
        return place
    try:
        root.mkdir(parents=True, exist_ok=True)
        with FileLock(f"{place}.lock"):
            if place.is_dir() and not _is_intact(place):
                LOG.warning("%s is corrupted: it is computed again.", place)
                shutil.rmtree(place)
            if not place.is_dir():
                _fill(place, json.loads(text), make)
        return place
    except OSError as error:
        where = f" ({error.filename})" if error.filename else ""
        raise StudyError(
            f"Could not make the cache {place}: {error.strerror or error}{where}. If the disk is "
            "full, ask for fewer or smaller images or fewer copies, free some space (tpl cache "
            "--clear), or set TENSORPROJECTION_CACHE to a folder on another disk."
        ) from error


def _fill(place: Path, key: Any, make: Callable[[Path], None]) -> None:
    for left in place.parent.glob(f"{place.name}.*.part"):  # by a process that was killed
        shutil.rmtree(left, ignore_errors=True)
    part = place.with_name(f"{place.name}.{secrets.token_hex(8)}.part")
    part.mkdir()
    try:
        make(part)
        (part / ENTRY).write_text(json.dumps({"key": key, "sha256": _digest(part)}, indent=1))
        part.rename(place)
    finally:
        shutil.rmtree(part, ignore_errors=True)


def checksum(folder: Path) -> str:
    """Return the checksum that a folder was written with; it depends on the files alone."""
    try:
        return str(json.loads((folder / ENTRY).read_text())["sha256"])
    except (OSError, ValueError, LookupError, TypeError):
        raise StudyError(f"Could not read {folder / ENTRY}. Run the same command again.") from None


def _is_intact(folder: Path) -> bool:
    try:
        return checksum(folder) == _digest(folder)
    except (StudyError, OSError):
        return False


def _digest(folder: Path) -> str:
    files = sorted(path for path in folder.iterdir() if path.name != ENTRY)

    def sha256(path: Path) -> str:
        with open(path, "rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()

    with ThreadPoolExecutor(os.cpu_count() or 1) as pool:
        found = dict(zip((path.name for path in files), pool.map(sha256, files), strict=True))
    return hashlib.sha256(json.dumps(found, sort_keys=True).encode()).hexdigest()


def entries() -> dict[Path, int]:
    """Return all folders of the cache, unfinished ones too, with their sizes in bytes."""
    try:
        names = sorted(os.listdir(cache_folder()))
    except FileNotFoundError:
        return {}
    found = [cache_folder() / name for name in names if NAME.fullmatch(name)]
    places = [path for path in found if path.is_dir() and not path.is_symlink()]
    return {path: sum(file.lstat().st_size for file in path.rglob("*")) for path in places}


def clear() -> list[Path]:
    """Remove all folders of the cache; return those that are being made, which stay."""
    left = []
    for path in entries():
        try:
            place = path.name.partition(".")[0]  # of the complete folder
            with FileLock(path.with_name(f"{place}.lock"), timeout=0):
                shutil.rmtree(path)
        except Timeout:
            left.append(path)
    return left


# Arrays and image sets in a folder

# Folders whose content came from another machine; opening looks here before it looks on the disk.
_received: dict[Path, Mapping[str, Array]] = {}


def create_array(path: Path, shape: tuple[int, ...], dtype: DTypeLike) -> Array:
    """Create an .npy file of zeros with its disk space reserved; return it as a writable map.

    Writing to a map of a sparse file would kill the process with a signal if the disk fills up.
    Here a full disk is an OSError before the first row is written, and before an attempt to reserve
    the space takes what is left of it from all other processes.
    """
    if shutil.disk_usage(path.parent).free < math.prod(shape) * np.dtype(dtype).itemsize:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(path))
    array: Array = np.lib.format.open_memmap(path, "w+", dtype, shape)
    if hasattr(os, "posix_fallocate"):
        with open(path, "r+b") as file:
            os.posix_fallocate(file.fileno(), 0, path.stat().st_size)
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
    arrays: dict[str, Any] = {
        name: open_array(folder / f"{name}.npy")
        for name in (*ARRAYS, "class_names")
        if name in ("images", "class_names") or f"{name}.npy" in _files(folder)
    }
    return ImageSet(**arrays | {"class_names": tuple(arrays["class_names"].tolist())})


def open_array(path: Path) -> Array:
    """Open an array of the cache as a read-only map."""
    if path.parent in _received:
        return _received[path.parent][path.name]
    try:
        array: Array = np.load(path, mmap_mode="r", allow_pickle=False)
        return array
    except (OSError, ValueError, EOFError) as error:
        reason = getattr(error, "strerror", None) or f"{error}\n".splitlines()[0].rstrip(".")
        raise StudyError(
            f"Could not open {path}: {reason}. Run the same command again: corrupted folders of "
            "the cache are found and computed again."
        ) from error


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
    >>> stack.take(np.array([5, 0]))
    array([[1., 1., 1.],
           [0., 0., 0.]])
    """

    def __init__(self, arrays: Sequence[Array]) -> None:
        self.arrays = list(arrays)
        self.begins = np.cumsum([0, *(len(array) for array in arrays)])

    def take(self, rows: NDArray[np.int64]) -> Array:
        """Return these rows, in this order, as an array in memory."""
        result = np.empty((len(rows), *self.arrays[0].shape[1:]), self.arrays[0].dtype)
        which = np.searchsorted(self.begins, rows, side="right") - 1
        # Row by row: fancy indexing would copy every row twice.
        for place, (k, row) in enumerate(zip(which, rows - self.begins[which], strict=True)):
            result[place] = self.arrays[k][row]
        return result
