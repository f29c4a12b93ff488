"""What costs time is made once, and kept on disk under a key made of what produced it."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import platformdirs
from filelock import FileLock

from ..errors import StudyError

# Part of every key: raised when what is stored changes its meaning, so that old folders are unused.
FORMAT = 1
DIGEST = "digest.txt"


def cache_folder() -> Path:
    """Where caches go: ``$TENSORPROJECTION_CACHE``, or the user's cache folder."""
    given = os.environ.get("TENSORPROJECTION_CACHE")
    return Path(given) if given else platformdirs.user_cache_path("tensorprojection")


def cached(
    kind: str,
    key: Mapping[str, Any],
    make: Callable[[Path], None],
    root: Path | None = None,
) -> Path:
    """The folder of ``kind`` and ``key``. Where there is none yet, ``make`` fills an empty one.

    It is filled beside and renamed into place, so a folder that is there is complete; of several
    processes that want it at once, one makes it and the others wait.

    Args:
        kind: a word for what is kept; it begins the folder's name.
        key: everything that the content depends on, as JSON can write it.
        make: writes the content into the folder that it is given.
        root: where folders go; default :func:`cache_folder`.
    """
    root = cache_folder() if root is None else root
    text = json.dumps({"format": FORMAT, **key}, sort_keys=True, indent=1)
    place = root / f"{kind}-{hashlib.sha256(text.encode()).hexdigest()[:16]}"
    if place.is_dir():
        return place
    try:
        root.mkdir(parents=True, exist_ok=True)
        with FileLock(f"{place}.lock"):
            if not place.is_dir():
                _fill(place, text, make)
        return place
    except OSError as error:
        where = f" ({error.filename})" if error.filename else ""
        raise StudyError(
            f"Could not make the cache {place}: {error.strerror or error}{where}. "
            "Where there is no space, set TENSORPROJECTION_CACHE to a folder that has some."
        ) from error


def _fill(place: Path, key: str, make: Callable[[Path], None]) -> None:
    for left in place.parent.glob(f"{place.name}.*.part"):  # by a process that was killed
        shutil.rmtree(left, ignore_errors=True)
    beside = place.with_name(f"{place.name}.{os.getpid()}.part")
    beside.mkdir()
    try:
        make(beside)
        (beside / "key.json").write_text(key + "\n")
        (beside / DIGEST).write_text(_digest(beside))
        for path in (*beside.iterdir(), beside):
            _sync(path)  # or a power cut could leave a folder that is there and empty
        beside.rename(place)
        _sync(place.parent)
    finally:
        shutil.rmtree(beside, ignore_errors=True)


def digest_of(folder: Path) -> str:
    """Of all arrays in a folder of the cache: the same content, wherever it came from."""
    path = folder / DIGEST
    return path.read_text() if path.exists() else _digest(folder)


def _digest(folder: Path) -> str:
    whole = hashlib.sha256()
    for path in sorted(folder.glob("*.npy")):
        with open(path, "rb") as file:
            whole.update(f"{path.name} {hashlib.file_digest(file, 'sha256').hexdigest()}".encode())
    return whole.hexdigest()


def _sync(path: Path) -> None:
    if path.is_dir() and os.name == "nt":  # where a folder cannot be opened
        return
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
