"""A study's images from a folder, an .npz file or a generator, resized once and cached."""

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

from ..errors import StudyError
from .cache import cached, open_stored, save, store
from .decode import Progress, decode_into, in_threads, open_regular, read_regular
from .folders import Dataset, File, find
from .images import ImageKind, ImageSet
from .npz import memory_bytes, read_npz
from .splits import subset

PHANTOMS = "phantoms"
ARCHIVES = (".zip", ".tar", ".tar.gz", ".tgz", ".tar.bz2", ".tar.xz")


@dataclass(frozen=True)
class Patients:
    """A rule that gives each image's patient by its file's name; without any, the data's own.

    Args:
        file: a CSV file with the columns ``file`` and ``patient``. A file is named as in the data
            set's folder (``train/CNV/a.png``), or by its last part if that is unique.
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
                f"`patient_pattern` is not a regular expression: {self.pattern!r} ({error})."
            ) from None

    def __bool__(self) -> bool:
        return self.file is not None or self.pattern is not None

    def key(self) -> list[str | None]:
        return [None if self.file is None else file_digest(self.file), self.pattern]

    def of(self, names: Sequence[str]) -> list[str]:
        """Return the patient of each of these files."""
        known = {} if self.file is None else _read_csv(self.file)
        last = Counter(_last(name) for name in names)
        found = []
        for name in names:
            short = _last(name)
            if self.file is not None:
                patient = known.get(name) or (known.get(short) if last[short] == 1 else None)
                rule = f"a line for every image in {self.file}, but there is none for {name}."
            else:
                match = re.search(self.pattern or "", short)
                patient = match[1 if match.re.groups else 0] if match else None
                rule = (
                    f"{self.pattern!r} in the name of every image, but {name} has no match. Change "
                    "`patient_pattern`, or list the patients in a file (`patients`)."
                )
            if not patient:
                raise StudyError(f"Expected {rule}")
            found.append(patient)
        return found


def _last(name: str) -> str:
    return name.rpartition("/")[2]


def _read_csv(path: Path) -> dict[str, str]:
    try:
        text = read_regular(path).decode("utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or "it is not UTF-8"
        raise StudyError(f"Could not read {path}: {reason}.") from error
    rows = csv.DictReader(io.StringIO(text))
    if not {"file", "patient"} <= set(rows.fieldnames or ()):
        raise StudyError(
            f"Expected the columns file and patient in {path}, got "
            f"{', '.join(rows.fieldnames or ()) or 'none'}."
        )
    return {row["file"]: row["patient"] for row in rows if row["file"] and row["patient"]}


def numbered(patients: Sequence[str]) -> NDArray[np.int64]:
    """Return patients that are numbers as they are, others by the order of their texts."""
    if all(re.fullmatch(r"-?[0-9]{1,18}", patient) for patient in patients):
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


def open_images(
    kind: ImageKind,
    data: str | Path | None,
    *,
    size: int,
    count: int | None = None,
    seed: int = 0,
    skip_unreadable: bool = False,
    patients: Patients | None = None,
    cache: Path | None = None,
    progress: Progress | None = None,
) -> CachedImages:
    """Return the study's images at ``size × size``; they are decoded once, and mapped after that.

    The cache's key has the content of the source, read whole: a file may be renamed, and another
    file in its place is another one.

    Args:
        kind: classes, mode and layout of the images, and their phantoms.
        data: None or "phantoms" for generated images, a folder, or an ``.npz`` file.
        size: height and width of the images.
        count: how many phantoms; or how many real images, drawn at random with the classes in
            proportion, instead of all of them.
        seed: for the phantoms, or for that draw.
        skip_unreadable: leave out files that cannot be decoded, instead of an error.
        patients: each image's patient by its file's name.
        cache: the folder of the cache; default :func:`~.cache.cache_folder`.
        progress: called while images are decoded.
    """
    rule, ignored = patients or Patients(), ""
    key: dict[str, Any] = {"kind": kind.key(), "size": size, "count": count, "seed": seed}
    make: Callable[[Path], None]

    if data is None or str(data) == PHANTOMS:
        if rule:
            raise StudyError(
                "Phantoms have no patients. Leave `patients` and `patient_pattern` out."
            )
        key["count"] = number = kind.phantom_count if count is None else count
        key["version"], make = _phantoms(kind, number, seed, size)
        source = f"{kind.name} phantoms, seed {seed}"
    else:
        path = Path(data)
        if count is None:
            key["seed"] = None
        key |= {"patients": rule.key(), "skip_unreadable": skip_unreadable}
        drawn = "" if count is None else f", drawn with seed {seed}"
        source = f"{kind.name} images of {path}{drawn}"
        found = None
        if path_kind(path) == "folder":
            found = _drawn(read_dataset(path, kind), count, seed, source)
            key["files"], ignored = _files_digest(found), found.ignored
        else:
            key["npz"] = file_digest(path)

        def make(to: Path) -> None:
            # An .npz is read only here: its checksum was enough for the key.
            chosen = found or _drawn(read_dataset(path, kind), count, seed, source)
            readable, unreadable = decode_into(
                to,
                chosen.items,
                kind,
                size,
                skip_unreadable=skip_unreadable,
                progress=progress,
            )
            save(to, chosen.class_names, _known(chosen, readable, rule))
            (to / "unreadable.json").write_text(json.dumps(unreadable))

    folder = cached("images", key, make, cache, {"study": kind.name, "source": source})
    images, listed = open_stored(folder), folder / "unreadable.json"
    unreadable = tuple(json.loads(listed.read_text())) if listed.exists() else ()
    if images.labels is not None:  # of what was drawn, and could be read
        _require_all(images.class_names, set(images.labels.tolist()), source)
    height, width = images.images.shape[1:3]
    left = f", {len(unreadable)} unreadable files left out" if unreadable else ""
    beside = f", {ignored}" if ignored else ""
    line = f"{source}: {len(images)} of {height} × {width}{left}{beside} ({folder.name})"
    return CachedImages(images, folder, line, unreadable)


def _phantoms(
    kind: ImageKind, count: int, seed: int, size: int
) -> tuple[int | str, Callable[[Path], None]]:
    """Return the version of the phantoms' code, and a function that stores phantoms."""
    generate = kind.phantoms
    if generate is None:
        raise StudyError(
            f"The {kind.name} study has no phantoms. Give images, a folder or an .npz file, as "
            "`data`."
        )

    def make(to: Path) -> None:
        if 2 * math.prod(kind.shape(count, size)) > memory_bytes():
            raise StudyError(
                f"{count:,} phantoms of {size} × {size} do not fit into memory. Ask for fewer "
                "`images` or a smaller `size`."
            )
        try:
            store(generate(count, seed=seed, size=size), to)
        except ValueError as error:  # a size too small for what the phantoms show
            raise StudyError(str(error)) from error

    return kind.made_by(), make


def read_dataset(path: Path, kind: ImageKind) -> Dataset:
    """Return the images of a folder or an .npz file."""
    return find(kind, path) if path_kind(path) == "folder" else read_npz(path, kind)


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
    if path.name.lower().endswith(ARCHIVES):
        raise StudyError(f"{path} is an archive. Unpack it, and give the folder instead.")
    if not (stat.S_ISREG(mode) and path.suffix.lower() == ".npz"):
        raise StudyError(f"Expected a folder or an .npz file, got {path}, which is neither.")
    return "npz"


def _drawn(found: Dataset, count: int | None, seed: int, source: str) -> Dataset:
    """Return the images that are drawn of a data set, which must have all classes."""
    labels = found.column("label")
    if labels is not None:
        _require_all(found.class_names, set(labels), source)
    array = None if labels is None else np.array(labels, np.int64)
    return found.take(subset(array, len(found.items), count, seed).tolist())


def _require_all(class_names: Sequence[str], labels: set[int], where: str) -> None:
    """Raise an error for a missing class: without it, a network would score too well."""
    absent = [name for label, name in enumerate(class_names) if label not in labels]
    if absent:
        raise StudyError(
            f"Expected images of {', '.join(class_names)} in {where}, got none of "
            f"{', '.join(absent)}."
        )


def _known(found: Dataset, rows: Sequence[int], rule: Patients) -> dict[str, NDArray[Any] | None]:
    """Return the arrays of labels, groups, names and parts of these rows."""
    taken = found.take(rows)
    names = [item.image.name for item in taken.items]
    patients = taken.column("patient")
    if rule:
        if not found.named:
            raise StudyError("Expected an array file_names in the .npz file to find patients by.")
        patients = rule.of(names)
    labels, parts = taken.column("label"), taken.column("part")
    return {
        "labels": None if labels is None else np.array(labels, np.int64),
        "groups": None if patients is None else numbered(patients),
        "names": np.array(names, np.str_) if found.named else None,
        "parts": None if parts is None else np.array(parts, np.str_),
    }


def file_digest(path: str | Path) -> str:
    """Return the sha256 of a file's content."""
    try:
        with open_regular(path) as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
    except OSError as error:
        raise StudyError(f"Could not read {path}: {error.strerror}.") from error


def _files_digest(found: Dataset) -> str:
    """Return the sha256 of the names and contents of a folder's images and masks."""
    files = [file for item in found.items for file in (item.image, item.mask) if file is not None]

    def one(row: int) -> tuple[str, str]:
        file: File = files[row]
        try:
            return file.name, file_digest(file.path)
        except StudyError as error:  # decoding names the file, or leaves it out
            return file.name, str(error)

    pairs = sorted(in_threads(one, len(files)))
    return hashlib.sha256(json.dumps(pairs).encode()).hexdigest()
