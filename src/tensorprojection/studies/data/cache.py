"""What costs time is made once, and kept on disk under a key made of what produced it."""

from __future__ import annotations

import hashlib
import json
import logging
import os
import secrets
import shutil
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import platformdirs
from filelock import FileLock

from ..errors import StudyError
from .in_use import hold
from .sums import damage, write_sums

# Part of every key: raised when what is stored changes its meaning, so that old folders are unused.
FORMAT = 2
KEY = "key.json"
ABOUT = "about.json"
DIGEST = "digest.txt"
LOG = logging.getLogger(__name__)


def cache_folder() -> Path:
    """Where caches go: ``$TENSORPROJECTION_CACHE``, or the user's cache folder."""
    given = os.environ.get("TENSORPROJECTION_CACHE")
    return Path(given) if given else platformdirs.user_cache_path("tensorprojection")


def cached(
    kind: str,
    key: Mapping[str, Any],
    make: Callable[[Path], None],
    root: Path | None = None,
    about: Mapping[str, str] | None = None,
) -> Path:
    """The folder of ``kind`` and ``key``. Where there is none yet, ``make`` fills an empty one.

    It is filled under another name and renamed, so a folder that exists is complete; of several
    processes that want it at once, one makes it and the others wait. An existing folder is read
    once, against its checksums; if it is damaged, it is made again, with a warning.
    While this process lives, ``tpl cache clear`` leaves the folder alone.

    Args:
        kind: a word for what is kept; it begins the folder's name.
        key: everything that the content depends on, in values that JSON can hold.
        make: writes the content into the folder that it is given.
        root: where folders go; default :func:`cache_folder`.
        about: for people: which study it is for, and where it came from.
    """
    root = cache_folder() if root is None else root
    text = json.dumps({"format": FORMAT, **key}, sort_keys=True, indent=1)
    place = root / f"{kind}-{hashlib.sha256(text.encode()).hexdigest()[:16]}"
    if hold(place) and damage(place) is None:  # without the lock: the cache may be read-only
        _touch(place)
        return place
    try:
        root.mkdir(parents=True, exist_ok=True)
        with FileLock(f"{place}.lock"):
            if place.is_dir() and (wrong := damage(place)):
                LOG.warning("%s is damaged (%s): it is made again.", place, wrong)
                discard(place)
            if not place.is_dir():
                _fill(place, text, make, about or {})
            hold(place)
        return place
    except OSError as error:
        where = f" ({error.filename})" if error.filename else ""
        raise StudyError(
            f"Could not make the cache {place}: {error.strerror or error}{where}. "
            "Where there is no space, set TENSORPROJECTION_CACHE to a folder that has some."
        ) from error


def about(place: Path) -> dict[str, str]:
    """The ``about`` that :func:`cached` was given for a folder; empty where it cannot be read."""
    try:
        found = json.loads((place / ABOUT).read_text())
        return {str(name): str(value) for name, value in found.items()}
    except (OSError, ValueError, AttributeError):
        return {}


def discard(place: Path) -> None:
    """Remove a folder atomically; a process that has its files open keeps them."""
    away = _beside(place)
    place.rename(away)
    shutil.rmtree(away)


def _beside(place: Path) -> Path:
    """A temporary name beside the folder, which nobody can have guessed and prepared."""
    return place.with_name(f"{place.name}.{secrets.token_hex(8)}.part")


def _fill(place: Path, key: str, make: Callable[[Path], None], told: Mapping[str, str]) -> None:
    for left in place.parent.glob(f"{place.name}.*.part"):  # by a process that was killed
        shutil.rmtree(left, ignore_errors=True)
    beside = _beside(place)
    beside.mkdir()
    try:
        make(beside)
        (beside / KEY).write_text(key + "\n")
        (beside / ABOUT).write_text(json.dumps(told))
        (beside / DIGEST).write_text(_digest(beside))
        write_sums(beside)
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


def _touch(place: Path) -> None:
    """Record when it was last used, as its key's modification time; not in a read-only cache."""
    with suppress(OSError):
        os.utime(place / KEY)


def _sync(path: Path) -> None:
    if path.is_dir() and os.name == "nt":  # where a folder cannot be opened
        return
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
