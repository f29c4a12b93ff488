"""A study's images from wherever they are, brought to one size once and cached."""

from __future__ import annotations

import csv
import hashlib
import io
import json
import math
import re
import stat
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from ..errors import StudyError
from .cache import cached
from .decode import Progress, decode_into, fit, fit_mask, in_threads, open_regular, read_regular
from .folders import File, Item, find
from .images import ImageKind, ImageSet, missing, require_all, rows_of
from .npz import memory_bytes, read_npz
from .splits import subset
from .stored import create_array, open_stored, require_disk, store, store_known

PHANTOMS = "phantoms"
LARGEST = 4096  # pixels per side; the paper's largest images have 192
ARCHIVES = (".zip", ".tar", ".tar.gz", ".tgz", ".tar.bz2", ".tar.xz")


@dataclass(frozen=True)
class Patients:
    """A rule that gives each image's patient by its file's name; without any, the data's own.

    Args:
        file: a CSV file with the columns ``file`` and ``patient``. A file is named as in the data
            set's folder (``train/CNV/a.png``), or by its last part where that is unique.
        pattern: a regular expression that is found in every file's name; its first group, or all of
            it, is the patient.
    """

    file: Path | None = None
    pattern: str | None = None

    def __post_init__(self) -> None:
        if self.file is not None and self.pattern is not None:
            raise StudyError("Expected `patients` or `patient_pattern`, got both.")
        try:
            re.compile(self.pattern or "")
        except re.error as error:
            raise StudyError(
                f"`patient_pattern` is no regular expression: {self.pattern!r} ({error})."
            ) from None

    def __bool__(self) -> bool:
        return self.file is not None or self.pattern is not None

    def key(self) -> list[str | None]:
        return [None if self.file is None else file_digest(self.file), self.pattern]

    def of(self, names: Sequence[str]) -> list[str]:
        """Return the patient of each of these files."""
        return self._by_file(names) if self.file is not None else self._by_pattern(names)

    def _by_pattern(self, names: Sequence[str]) -> list[str]:
        found = []
        for name in names:
            match = re.search(self.pattern or "", name.rpartition("/")[2])
            patient = match[1 if match.re.groups else 0] if match else None
            if not patient:
                raise StudyError(
                    f"Expected {self.pattern!r} in the name of every image, but {name} has no "
                    "match. Change `patient_pattern`, or list the patients in a file (`patients`)."
                )
            found.append(patient)
        return found

    def _by_file(self, names: Sequence[str]) -> list[str]:
        assert self.file is not None
        try:
            text = read_regular(self.file).decode("utf-8-sig")
        except (OSError, UnicodeDecodeError) as error:
            reason = getattr(error, "strerror", None) or "it is not UTF-8"
            raise StudyError(f"Could not read {self.file}: {reason}.") from error
        rows = csv.DictReader(io.StringIO(text))
        if not {"file", "patient"} <= set(rows.fieldnames or ()):
            raise StudyError(
                f"Expected the columns file and patient in {self.file}, got "
                f"{', '.join(rows.fieldnames or ()) or 'none'}."
            )
        known = {row["file"]: row["patient"] for row in rows if row["file"] and row["patient"]}
        last = Counter(name.rpartition("/")[2] for name in names)
        found = []
        for name in names:
            short = name.rpartition("/")[2]
            patient = known.get(name) or (known.get(short) if last[short] == 1 else None)
            if patient is None:
                raise StudyError(
                    f"Expected a line for every image in {self.file}, but there is none for {name}."
                )
            found.append(patient)
        return found


def numbered(patients: Sequence[str]) -> NDArray[np.int64]:
    """Return patients that are numbers as they are, others by the order of their texts."""
    if all(re.fullmatch(r"[0-9]{1,18}", patient) for patient in patients):
        return np.array([int(patient) for patient in patients], np.int64)
    return np.unique(np.array(patients, np.str_), return_inverse=True)[1].astype(np.int64)


@dataclass(frozen=True)
class CachedImages:
    """Images at one size, mapped from the cache.

    Args:
        images: the set.
        folder: the cache's folder; another process opens it with ``open_stored(folder)``.
        source: one line for a run's record.
        unreadable: the files that were left out.
    """

    images: ImageSet
    folder: Path
    source: str
    unreadable: tuple[str, ...] = ()


@dataclass(frozen=True)
class _Request:
    """The arguments of :func:`open_images`."""

    kind: ImageKind
    size: int
    count: int | None
    seed: int
    skip_unreadable: bool
    patients: Patients
    workers: int | None
    cache: Path | None
    progress: Progress | None

    def key(self) -> dict[str, Any]:
        drawn = {} if self.count is None else {"count": self.count, "seed": self.seed}
        kind, patients = self.kind.key(), self.patients.key()
        return {"kind": kind, "size": self.size, "drawn": drawn, "patients": patients}

    def described(self, path: Path) -> str:
        drawn = "" if self.count is None else f", drawn with seed {self.seed}"
        return f"{self.kind.name} images of {path}{drawn}"


def open_images(
    kind: ImageKind,
    data: str | Path | None,
    *,
    size: int,
    count: int | None = None,
    seed: int = 0,
    skip_unreadable: bool = False,
    patients: Patients | None = None,
    workers: int | None = None,
    cache: Path | None = None,
    progress: Progress | None = None,
) -> CachedImages:
    """Return the study's images at ``size × size``; they are decoded once, and mapped after that.

    The cache's key has the content of the source, read whole: a file may be renamed, and another
    file in its place is another one.

    Args:
        kind: what they are, and where phantoms of them come from.
        data: None or "phantoms" for generated images, a folder, or an ``.npz`` file.
        size: side of the square images.
        count: how many phantoms; or how many real images, drawn at random with the classes in
            proportion, instead of all of them.
        seed: for the phantoms, or for that draw.
        skip_unreadable: leave out files that cannot be decoded, instead of an error.
        patients: each image's patient by its file's name.
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
    rule = patients or Patients()
    wanted = _Request(kind, size, count, seed, skip_unreadable, rule, workers, cache, progress)
    if data is None or str(data) == PHANTOMS:
        opened = _phantoms(wanted)
    else:
        path = Path(data)
        opened = (_folder if path_kind(path) == "folder" else _npz)(wanted, path)
    if (labels := opened.images.labels) is not None:  # of what was drawn, and could be read
        there = set(np.unique(labels).tolist())
        require_all(kind, missing(opened.images.class_names, there), opened.source)
    return opened


def path_kind(path: Path) -> Literal["folder", "npz"]:
    """Return what a path leads to; anything but a folder or an .npz file is an error."""
    try:
        str(path).encode()
        mode = path.stat().st_mode
    except UnicodeEncodeError:
        raise StudyError(
            f"Expected a path in UTF-8, got {str(path)!r}. Rename the file or folder."
        ) from None
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or error
        raise StudyError(f"Expected a folder or an .npz file at {path}: {reason}.") from None
    if stat.S_ISDIR(mode):
        return "folder"
    if stat.S_ISREG(mode) and path.suffix.lower() == ".npz":
        return "npz"
    if path.name.lower().endswith(ARCHIVES):
        raise StudyError(f"{path} is an archive. Unpack it, and give the folder instead.")
    raise StudyError(f"Expected a folder or an .npz file, got {path}, which is neither.")


def file_digest(path: str | Path) -> str:
    """Return the sha256 of a file's content."""
    try:
        with open_regular(path) as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
    except OSError as error:
        raise StudyError(f"Could not read {path}: {error.strerror}.") from error


def _phantoms(wanted: _Request) -> CachedImages:
    kind, seed, size = wanted.kind, wanted.seed, wanted.size
    generate = kind.phantoms
    if generate is None:
        raise StudyError(
            f"The {kind.name} study has no phantoms. Give images, a folder or an .npz file, as "
            "`data`."
        )
    if wanted.patients:
        raise StudyError("Phantoms have no patients. Leave `patients` and `patient_pattern` out.")
    count = kind.phantom_count if wanted.count is None else wanted.count

    def make(to: Path) -> None:
        whole = math.prod(kind.shape(count, size))
        if 2 * whole > memory_bytes():
            raise StudyError(
                f"{count:,} phantoms of {size} × {size} do not fit into memory. Ask for fewer "
                "`images` or a smaller `size`."
            )
        require_disk(whole, to)
        try:
            store(generate(count, seed=seed, size=size), to)
        except ValueError as error:  # a size too small for what the phantoms show
            raise StudyError(str(error)) from error

    key = {"version": kind.made_by(), "kind": kind.key(), "count": count}
    key |= {"seed": seed, "size": size}
    return _made(wanted, key, make, f"{kind.name} phantoms, seed {seed}")


def _npz(wanted: _Request, path: Path) -> CachedImages:
    def make(to: Path) -> None:
        kind, size = wanted.kind, wanted.size
        _, whole, _ = read_npz(path, [kind])
        rows = subset(whole.labels, len(whole), wanted.count, wanted.seed)
        known = rows_of(whole.known(), rows)
        if wanted.patients:
            if known["names"] is None:
                raise StudyError(f"Expected an array file_names in {path} to find patients by.")
            known["groups"] = numbered(wanted.patients.of([str(name) for name in known["names"]]))
        images = create_array(to / "images.npy", kind.shape(len(rows), size), np.uint8)
        masks = None
        if whole.masks is not None:
            masks = create_array(to / "masks.npy", (len(rows), size, size), np.uint8)

        def one(row: int) -> None:
            images[row] = fit(Image.fromarray(whole.images[rows[row]]), size, kind.mode)
            if masks is not None and whole.masks is not None:
                masks[row] = fit_mask(Image.fromarray(whole.masks[rows[row]]), size)

        in_threads(one, len(rows), wanted.workers, "images", wanted.progress)
        store_known(known, whole.class_names, to)

    key = {"npz": file_digest(path), **wanted.key()}
    return _made(wanted, key, make, wanted.described(path))


def _folder(wanted: _Request, path: Path) -> CachedImages:
    kind = wanted.kind
    found = find(kind, path)
    require_all(kind, found.missing_classes(), str(path))
    labels = _column(found.items, "label")
    rows = subset(labels, len(found.items), wanted.count, wanted.seed)
    items = [found.items[row] for row in rows]
    files = [file for item in items for file in (item.image, item.mask) if file is not None]

    def make(to: Path) -> None:
        readable, unreadable = decode_into(
            to,
            items,
            kind,
            wanted.size,
            skip_unreadable=wanted.skip_unreadable,
            workers=wanted.workers,
            progress=wanted.progress,
        )
        taken = [items[row] for row in readable]
        names = [item.image.name for item in taken]
        known = {f"{name}s": _column(taken, name) for name in ("label", "group", "part")}
        known["names"] = np.array(names, np.str_)
        if wanted.patients:
            known["groups"] = numbered(wanted.patients.of(names))
        store_known(known, kind.class_names, to)
        (to / "unreadable.json").write_text(json.dumps(unreadable))

    key = {"files": _files_digest(files, wanted.workers), **wanted.key()}
    key["skip_unreadable"] = wanted.skip_unreadable
    # Files beside the images may change without them, so they are no part of the cache.
    return _made(wanted, key, make, wanted.described(path), found.ignored)


def _files_digest(files: Sequence[File], workers: int | None) -> str:
    """Return the sha256 of the names and contents of many files, read side by side."""
    found = [""] * len(files)

    def one(row: int) -> None:
        try:
            found[row] = file_digest(files[row].path)
        except StudyError as error:  # decoding names the file, or leaves it out
            found[row] = str(error)

    in_threads(one, len(files), workers)
    pairs = sorted((file.name, digest) for file, digest in zip(files, found, strict=True))
    return hashlib.sha256(json.dumps(pairs).encode()).hexdigest()


def _column(items: Sequence[Item], name: str) -> NDArray[Any] | None:
    """Return one thing that is known about all items, or None if it is not."""
    values = [getattr(item, name) for item in items]
    return None if None in values else np.array(values, np.str_ if name == "part" else np.int64)


def _made(
    wanted: _Request,
    key: dict[str, Any],
    make: Callable[[Path], None],
    source: str,
    ignored: str = "",
) -> CachedImages:
    folder = cached(
        "images", key, make, wanted.cache, {"study": wanted.kind.name, "source": source}
    )
    images = open_stored(folder)
    listed = folder / "unreadable.json"
    unreadable = tuple(json.loads(listed.read_text())) if listed.exists() else ()
    height, width = images.images.shape[1:3]
    left = f", {len(unreadable)} unreadable files left out" if unreadable else ""
    beside = f", {ignored}" if ignored else ""
    line = f"{source}: {len(images)} of {height} × {width}{left}{beside} ({folder.name})"
    return CachedImages(images, folder, line, unreadable)
