"""A study's images from wherever they are, brought to one size once and kept."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..errors import StudyError
from . import phantoms
from .cache import cached
from .decode import decode_into
from .folders import Found, Item, find
from .images import ImageSet
from .kinds import kind_of
from .npz import store_npz
from .splits import subset
from .stored import open_stored, store, store_class_names
from .unpack import is_archive, unpack

# Raised when the phantoms change, so that none of an older kind are used.
PHANTOMS_VERSION = 1
GENERATORS = {
    "oct": phantoms.oct.make,
    "chest": phantoms.chest.make,
    "kvasir": phantoms.polyp.make,
}
PHANTOMS_COUNT = {"oct": 1600, "chest": 1600, "kvasir": 1000}


@dataclass(frozen=True)
class Opened:
    """Images at one size, mapped from the cache.

    Args:
        images: the set.
        folder: where the cache has it; another process opens it with ``open_stored(folder)``.
        source: one line for a run's record.
        unreadable: the files that were left out.
    """

    images: ImageSet
    folder: Path
    source: str
    unreadable: tuple[str, ...] = ()


def open_images(
    study: str,
    data: str | Path | None,
    *,
    size: int,
    count: int | None = None,
    seed: int = 0,
    skip_unreadable: bool = False,
    workers: int | None = None,
    cache: Path | None = None,
) -> Opened:
    """The study's images at ``size × size``. They are decoded once; a second start maps them.

    Args:
        study: oct, chest or kvasir. The first two are gray with labels, the last RGB with masks.
        data: None or "phantoms" for generated images; a folder as Kaggle ships it; a zip or tar
            file of one, which is unpacked into the cache; or an ``.npz`` file.
        size: side of the square images.
        count: of phantoms, how many. Of real images, that many drawn at random with the classes
            in proportion, instead of all; all where there are fewer.
        seed: of the phantoms, or of that draw.
        skip_unreadable: leave out files that cannot be decoded, instead of an error.
        workers: threads that decode; default one a core.
        cache: where to keep what is made; default :func:`~.cache.cache_folder`.
    """
    kind_of(study)
    if size < 1:
        raise StudyError(f"Expected a size of at least 1 pixel, got {size}.")
    if count is not None and count < 1:
        raise StudyError(f"Expected a count of at least 1 image, got {count}.")
    if seed < 0:
        raise StudyError(f"Expected a seed of 0 or more, got {seed}.")
    wanted = _Wanted(study, size, count, seed, skip_unreadable, workers, cache)
    opened = _open(wanted, data)
    expected, got = kind_of(study).class_names, opened.images.class_names
    if set(expected) != set(got):
        raise StudyError(
            f"Expected images of the classes {', '.join(expected)} in {data}, got "
            f"{', '.join(got) or 'none'}."
        )
    return opened


def _open(wanted: _Wanted, data: str | Path | None) -> Opened:
    if data is None or str(data) == "phantoms":
        return _phantoms(wanted)
    path = Path(data)
    if path.is_dir():
        return _folder(wanted, path, str(path))
    if path.is_file() and path.suffix.lower() == ".npz":
        return _npz(wanted, path)
    if path.is_file() and is_archive(path):
        return _folder(wanted, unpacked(path, wanted.cache), str(path))
    what = "which is none of these" if path.exists() else "which does not exist"
    raise StudyError(
        f"Expected phantoms, a folder, an .npz, a zip or a tar file, got {path}, {what}."
    )


def unpacked(archive: Path, cache: Path | None = None) -> Path:
    """The archive's files, in a folder of the cache."""

    def make(to: Path) -> None:
        unpack(archive, to / "files")

    return cached("unpacked", _identity(archive), make, cache) / "files"


@dataclass(frozen=True)
class _Wanted:
    """What :func:`open_images` was asked for."""

    study: str
    size: int
    count: int | None
    seed: int
    skip_unreadable: bool
    workers: int | None
    cache: Path | None

    @property
    def drawn(self) -> dict[str, int]:
        """The part of a key that says which of the real images are taken; empty for all."""
        return {} if self.count is None else {"count": self.count, "seed": self.seed}

    def described(self, given: str) -> str:
        how = f", drawn with seed {self.seed}" if self.drawn else ""
        return f"{self.study} images of {given}{how}"


def _phantoms(wanted: _Wanted) -> Opened:
    study, seed, size = wanted.study, wanted.seed, wanted.size
    count = PHANTOMS_COUNT[study] if wanted.count is None else wanted.count
    key = {
        "phantoms": study,
        "version": PHANTOMS_VERSION,
        "count": count,
        "seed": seed,
        "size": size,
    }

    def make(to: Path) -> None:
        try:
            images = GENERATORS[study](count, seed=seed, size=size)
        except ValueError as error:  # a size too small for what the phantoms show
            raise StudyError(str(error)) from error
        store(images, to)

    return _opened(cached("images", key, make, wanted.cache), f"{study} phantoms, seed {seed}")


def _npz(wanted: _Wanted, path: Path) -> Opened:
    key = {"npz": wanted.study, "size": wanted.size, **_identity(path), "drawn": wanted.drawn}

    def make(to: Path) -> None:
        store_npz(path, to, wanted.study, wanted.size, workers=wanted.workers, **wanted.drawn)

    return _opened(cached("images", key, make, wanted.cache), wanted.described(str(path)))


def _folder(wanted: _Wanted, folder: Path, given: str) -> Opened:
    kind = kind_of(wanted.study)
    found = find(wanted.study, folder)
    if missing := found.missing_classes():
        raise StudyError(
            f"Expected images of {', '.join(kind.class_names)} in {given}, got none of "
            f"{', '.join(missing)}."
        )
    key = {
        "folder": wanted.study,
        "path": str(folder.resolve()),
        "files": found.digest(),
        "size": wanted.size,
        "mode": kind.mode,
        "skip_unreadable": wanted.skip_unreadable,
        "drawn": wanted.drawn,
    }

    def make(to: Path) -> None:
        _store_folder(found, wanted, to)

    return _opened(cached("images", key, make, wanted.cache), wanted.described(given))


def _store_folder(found: Found, wanted: _Wanted, to: Path) -> None:
    kind = kind_of(wanted.study)
    rows = subset(_column(found.items, "label"), len(found.items), wanted.count, wanted.seed)
    chosen = [found.items[row] for row in rows]
    kept, unreadable = decode_into(
        to,
        chosen,
        kind,
        wanted.size,
        skip_unreadable=wanted.skip_unreadable,
        workers=wanted.workers,
    )
    items = [chosen[row] for row in kept]
    known = {f"{name}s": _column(items, name) for name in ("label", "group", "part")}
    known["names"] = np.array([item.image.name for item in items], np.str_)
    for name, array in known.items():
        if array is not None:
            np.save(to / f"{name}.npy", array, allow_pickle=False)
    store_class_names(kind.class_names, to)
    (to / "unreadable.json").write_text(json.dumps(unreadable))


def _column(items: Sequence[Item], name: str) -> NDArray[Any] | None:
    """One thing known about all items, or None where it is not."""
    values = [getattr(item, name) for item in items]
    return None if None in values else np.array(values, np.str_ if name == "part" else np.int64)


def _identity(path: Path) -> dict[str, Any]:
    """Changes when the file does."""
    seen = path.stat()
    return {"path": str(path.resolve()), "bytes": seen.st_size, "mtime_ns": seen.st_mtime_ns}


def _opened(folder: Path, source: str) -> Opened:
    images = open_stored(folder)
    listed = folder / "unreadable.json"
    unreadable = tuple(json.loads(listed.read_text())) if listed.exists() else ()
    height, width = images.images.shape[1:3]
    left = f", {len(unreadable)} unreadable files left out" if unreadable else ""
    line = f"{source}: {len(images)} of {height} × {width}{left} ({folder.name})"
    return Opened(images, folder, line, unreadable)
