"""A study's images from a folder, an .npz file or a generator, resized once and cached."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from ..errors import StudyError
from .cache import cached, open_stored, save, store
from .decode import Progress, decode_into, in_threads
from .images import ImageKind, ImageSet
from .read import Item, Picture, is_folder, known_of, memory_bytes, open_regular, read_items
from .splits import subset

PHANTOMS = "phantoms"
USUAL_COUNT = 1000  # phantoms


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
    masks: Path | None = None,
    patients: Path | None = None,
    patient_pattern: str | None = None,
    progress: Progress | None = None,
) -> CachedImages:
    """Return the study's images at ``size × size``; they are decoded once, and mapped after that.

    The cache's key has the content of the source, read whole: a file may be renamed, and another
    file in its place is another one.

    Args:
        kind: classes and mode of the images, and their phantoms.
        data: None or "phantoms" for generated images, a folder, or an ``.npz`` file.
        size: height and width of the images.
        count: how many phantoms; or how many real images, drawn at random with the classes in
            proportion, instead of all of them.
        seed: for the phantoms, or for that draw.
        skip_unreadable: leave out files that cannot be decoded, instead of an error.
        masks: as :func:`~.read.read_items` takes them, like the patients.
        patients: a CSV file with the patient of each file.
        patient_pattern: a regular expression for the patient in a file's name.
        progress: called while images are decoded.
    """
    if data is None or str(data) == PHANTOMS:
        if patients is not None or patient_pattern is not None:
            raise StudyError(
                "Phantoms have no patients. Leave `patients` and `patient_pattern` out."
            )
        return _phantoms(kind, USUAL_COUNT if count is None else count, seed, size)
    path, ignored = Path(data), ""
    drawn = "" if count is None else f", drawn with seed {seed}"
    source = f"{kind.name} images of {path}{drawn}"

    def read() -> tuple[list[Item], str]:
        items, ignored = read_items(kind, path, masks, patients, patient_pattern)
        labels = known_of(items)["labels"]
        if labels is not None:
            _require_all(kind.class_names, labels.tolist(), source)
        return [items[row] for row in subset(labels, len(items), count, seed)], ignored

    # Of an .npz, the checksum is enough for the key: it is read only to fill the cache.
    found = None
    if is_folder(path):
        found, ignored = read()
    key = {
        "kind": kind.key(),
        "source": file_digest(path) if found is None else _digest(found),
        "size": size,
        "draw": None if count is None else [count, seed],
        "skip_unreadable": skip_unreadable,
        "patients": [None if patients is None else file_digest(patients), patient_pattern],
    }

    def make(to: Path) -> None:
        items, unreadable = decode_into(
            to, found or read()[0], kind, size, skip_unreadable, progress
        )
        save(to, kind.class_names, known_of(items))
        (to / "unreadable.json").write_text(json.dumps(unreadable))

    folder = cached("images", key, make)
    images = open_stored(folder)
    unreadable = tuple(json.loads((folder / "unreadable.json").read_text()))
    if images.labels is not None:  # of what was drawn, and could be read
        _require_all(images.class_names, images.labels.tolist(), source)
    left = f", {len(unreadable)} unreadable files left out" if unreadable else ""
    beside = f", {ignored}" if ignored else ""
    line = f"{source}: {len(images)} of {size} × {size}{left}{beside} ({folder.name})"
    return CachedImages(images, folder, line, unreadable)


def _phantoms(kind: ImageKind, count: int, seed: int, size: int) -> CachedImages:
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

    made_by = kind.phantoms_digest()
    key = {"kind": kind.key(), "phantoms": made_by, "count": count, "seed": seed, "size": size}
    folder = cached("images", key, make)
    line = f"{kind.name} phantoms, seed {seed}: {count} of {size} × {size} ({folder.name})"
    return CachedImages(open_stored(folder), folder, line)


def _require_all(class_names: Sequence[str], labels: Sequence[int], where: str) -> None:
    """Raise an error for a missing class: without it, a network would score too well."""
    there = set(labels)
    absent = [name for label, name in enumerate(class_names) if label not in there]
    if absent:
        raise StudyError(
            f"Expected images of {', '.join(class_names)} in {where}, got none of "
            f"{', '.join(absent)}."
        )


def file_digest(path: str | Path) -> str:
    """Return the sha256 of a file's content."""
    try:
        with open_regular(path) as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
    except OSError as error:
        raise StudyError(f"Could not read {path}: {error.strerror}.") from error


def _digest(items: Sequence[Item]) -> str:
    """Return the sha256 of the names and contents of a folder's images and masks."""

    def content(picture: Picture | None) -> str:
        try:
            return file_digest(str(picture))
        except StudyError as error:  # decoding names the file, or leaves it out
            return str(error)

    def one(row: int) -> tuple[str, str, str]:
        item = items[row]
        return item.name, content(item.image), "" if item.mask is None else content(item.mask)

    return hashlib.sha256(json.dumps(in_threads(one, len(items))).encode()).hexdigest()
