"""A study's images from wherever they are, brought to one size once and kept."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..errors import StudyError
from .cache import cached
from .content import file_digest, files_digest
from .decode import decode_into
from .folders import DatasetFiles, Item, find
from .images import ImageSet
from .kinds import ImageKind, missing, require_all
from .npz import store_npz
from .regular import what_is
from .space import need_disk, need_memory
from .splits import subset
from .stored import open_stored, store, store_known
from .threads import Progress
from .unpack import Limits, is_archive, unpack

PHANTOMS = "phantoms"
LARGEST = 4096  # pixels per side; the paper's largest images have 192


@dataclass(frozen=True)
class CachedImages:
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
    kind: ImageKind,
    data: str | Path | None,
    *,
    size: int,
    count: int | None = None,
    seed: int = 0,
    skip_unreadable: bool = False,
    workers: int | None = None,
    cache: Path | None = None,
    progress: Progress | None = None,
) -> CachedImages:
    """The study's images at ``size × size``. They are decoded once; a second start maps them.

    What was decoded is found again by the content of its source, read whole: names, sizes and times
    do not count, so a file may be renamed, and another file in its place is another one.

    Args:
        kind: what they are, and where phantoms of them come from.
        data: None or "phantoms" for generated images; a folder as Kaggle ships it; a zip or tar
            file of one, which is unpacked into the cache; or an ``.npz`` file.
        size: side of the square images.
        count: how many phantoms; or how many real images, drawn at random with the classes in
            proportion, instead of all of them.
        seed: for the phantoms, or for that draw.
        skip_unreadable: leave out files that cannot be decoded, instead of an error.
        workers: threads that decode; default one per core.
        cache: where to keep what is made; default :func:`~.cache.cache_folder`.
        progress: called while images are decoded.
    """
    if not 1 <= size <= LARGEST:
        raise StudyError(f"Expected a size from 1 to {LARGEST} pixels, got {size}.")
    if count is not None and count < 1:
        raise StudyError(f"Expected a count of at least 1 image, got {count}.")
    if seed < 0:
        raise StudyError(f"Expected a seed of 0 or more, got {seed}.")
    wanted = _Request(kind, size, count, seed, skip_unreadable, workers, cache, progress)
    opened = _open(wanted, data)
    if (labels := opened.images.labels) is not None:  # of what was drawn, and could be read
        there = set(np.unique(labels).tolist())
        require_all(kind, missing(opened.images.class_names, there), opened.source)
    return opened


def _open(wanted: _Request, data: str | Path | None) -> CachedImages:
    if data is None or str(data) == PHANTOMS:
        return _phantoms(wanted)
    path = Path(data)
    kind = what_is(path)
    if kind == "folder":
        return _folder(wanted, path)
    if kind == "file" and path.suffix.lower() == ".npz":
        return _npz(wanted, path)
    if kind == "file" and is_archive(path):
        return _archive(wanted, path)
    what = "which does not exist" if kind is None else "which is none of these"
    raise StudyError(
        f"Expected phantoms, a folder, an .npz, a zip or a tar file, got {path}, {what}."
    )


def unpacked(archive: Path, cache: Path | None = None, limits: Limits | None = None) -> Path:
    """The archive's files, in a folder of the cache."""

    def make(to: Path) -> None:
        unpack(archive, to / "files", limits)

    key = {"archive": file_digest(archive)}
    return cached("unpacked", key, make, cache, {"source": str(archive)}) / "files"


def allow_archive(data: str | Path, factor: float, cache: Path | None = None) -> None:
    """Unpack an archive, its limits multiplied by ``factor``; other data is left alone.

    Where it is unpacked already, :func:`open_images` asks for no limits.
    """
    limits = Limits().times(factor)
    path = Path(data)
    if str(data) != PHANTOMS and is_archive(path) and what_is(path) == "file":
        unpacked(path, cache, limits)


@dataclass(frozen=True)
class _Request:
    """What :func:`open_images` was asked for."""

    kind: ImageKind
    size: int
    count: int | None
    seed: int
    skip_unreadable: bool
    workers: int | None
    cache: Path | None
    progress: Progress | None

    @property
    def study(self) -> str:
        return self.kind.name

    @property
    def drawn(self) -> dict[str, int]:
        """The part of a key that says which of the real images are taken; empty for all."""
        return {} if self.count is None else {"count": self.count, "seed": self.seed}

    def described(self, given: str) -> str:
        how = f", drawn with seed {self.seed}" if self.drawn else ""
        return f"{self.study} images of {given}{how}"


def _phantoms(wanted: _Request) -> CachedImages:
    kind, seed, size = wanted.kind, wanted.seed, wanted.size
    generate = kind.phantoms
    if generate is None:
        raise StudyError(f"Expected images for the {kind.name} study, which has no phantoms.")
    count = kind.phantom_count if wanted.count is None else wanted.count
    key = {
        "phantoms": kind.name,
        "version": kind.made_by(),
        "count": count,
        "seed": seed,
        "size": size,
    }

    def make(to: Path) -> None:
        # They are made in memory, in blocks of 32 that take up to 90 bytes per pixel meanwhile.
        whole = math.prod(kind.shape(count, size))
        need_memory(2 * whole + 100 * 32 * size**2, f"{count} phantoms of {size} × {size}")
        need_disk(whole, to)
        try:
            images = generate(count, seed=seed, size=size)
        except ValueError as error:  # a size too small for what the phantoms show
            raise StudyError(str(error)) from error
        store(images, to)

    return _made(wanted, key, make, f"{kind.name} phantoms, seed {seed}")


def _npz(wanted: _Request, path: Path) -> CachedImages:
    key = {
        "npz": wanted.study,
        "content": file_digest(path),
        "size": wanted.size,
        "drawn": wanted.drawn,
    }

    def make(to: Path) -> None:
        store_npz(
            path,
            to,
            wanted.kind,
            wanted.size,
            workers=wanted.workers,
            progress=wanted.progress,
            **wanted.drawn,
        )

    return _made(wanted, key, make, wanted.described(str(path)))


def _archive(wanted: _Request, path: Path) -> CachedImages:
    """Keyed by the archive's own content: unpacked only where its images are not cached yet."""
    key = {**_folder_key(wanted), "archive": file_digest(path)}

    def make(to: Path) -> None:
        found = find(wanted.kind, unpacked(path, wanted.cache))
        _store_folder(found, _chosen(found, wanted, str(path)), wanted, to)

    return _made(wanted, key, make, wanted.described(str(path)))


def _folder(wanted: _Request, folder: Path) -> CachedImages:
    found = find(wanted.kind, folder)
    chosen = _chosen(found, wanted, str(folder))
    files = [file for item in chosen for file in (item.image, item.mask) if file is not None]
    # Which files are used depends on all that are there, what they hold on these alone.
    key = {**_folder_key(wanted), "content": files_digest(files, wanted.workers)}

    def make(to: Path) -> None:
        _store_folder(found, chosen, wanted, to)

    # What is beside the images may change without them, so it is not the cache's to say.
    return _made(wanted, key, make, wanted.described(str(folder)), str(found.ignored))


def _folder_key(wanted: _Request) -> dict[str, Any]:
    return {
        "folder": wanted.study,
        "size": wanted.size,
        "mode": wanted.kind.mode,
        "skip_unreadable": wanted.skip_unreadable,
        "drawn": wanted.drawn,
    }


def _chosen(found: DatasetFiles, wanted: _Request, given: str) -> list[Item]:
    require_all(wanted.kind, found.missing_classes(), given)
    rows = subset(_column(found.items, "label"), len(found.items), wanted.count, wanted.seed)
    return [found.items[row] for row in rows]


def _store_folder(found: DatasetFiles, chosen: Sequence[Item], wanted: _Request, to: Path) -> None:
    kind = wanted.kind
    kept, unreadable = decode_into(
        to,
        chosen,
        kind,
        wanted.size,
        skip_unreadable=wanted.skip_unreadable,
        workers=wanted.workers,
        progress=wanted.progress,
    )
    items = [chosen[row] for row in kept]
    known = {f"{name}s": _column(items, name) for name in ("label", "group", "part")}
    known["names"] = np.array([item.image.name for item in items], np.str_)
    store_known(known, kind.class_names, to)
    (to / "unreadable.json").write_text(json.dumps(unreadable))
    (to / "ignored.json").write_text(json.dumps(str(found.ignored)))


def _column(items: Sequence[Item], name: str) -> NDArray[Any] | None:
    """One thing known about all items, or None where it is not."""
    values = [getattr(item, name) for item in items]
    return None if None in values else np.array(values, np.str_ if name == "part" else np.int64)


def _made(
    wanted: _Request,
    key: dict[str, Any],
    make: Callable[[Path], None],
    source: str,
    ignored: str | None = None,
) -> CachedImages:
    told = {"study": wanted.study, "source": source}
    folder = cached("images", key, make, wanted.cache, told)
    images = open_stored(folder)
    unreadable = tuple(_listed(folder / "unreadable.json", []))
    if ignored is None:
        ignored = _listed(folder / "ignored.json", "")
    height, width = images.images.shape[1:3]
    left = f", {len(unreadable)} unreadable files left out" if unreadable else ""
    beside = f", {ignored}" if ignored else ""
    line = f"{source}: {len(images)} of {height} × {width}{left}{beside} ({folder.name})"
    return CachedImages(images, folder, line, unreadable)


def _listed(path: Path, otherwise: Any) -> Any:
    return json.loads(path.read_text()) if path.exists() else otherwise
