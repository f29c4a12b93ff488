"""Checking images before they are used: counts, sizes, unreadable files, duplicates, leaks."""

from __future__ import annotations

import hashlib
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from ..errors import StudyError
from .decode import Progress, UnreadableError, binary, in_threads, open_image, read, to_mode
from .folders import DatasetFiles, Item, find, guess
from .images import ImageKind, ImageSet, Mode, missing
from .npz import read_npz
from .sources import Patients, path_kind
from .splits import Split, split

UNDIVIDED = "all"
PART_ORDER = ("train", "val", "test", UNDIVIDED)
SHOWN = 10  # names on a line

Found = dict[str, list[str]]  # a finding, and the files, classes or patients that it is about


@dataclass
class Report:
    """The findings: ``problems`` are wrong, ``notes`` are worth knowing."""

    path: str
    study: str
    images: int
    classes: dict[str, dict[str, int]]  # class → part → number of images
    sizes: dict[str, int]  # "width × height" → number of images, most common first
    patients: int | None
    problems: Found = field(default_factory=dict)
    notes: Found = field(default_factory=dict)

    @property
    def ok(self) -> bool:
        return not self.problems

    def as_dict(self) -> dict[str, Any]:
        """Return all of it as JSON can write it."""
        return {**asdict(self), "ok": self.ok}

    def lines(self) -> list[str]:
        """Return the sizes, notes and problems, one to a line."""
        found = [f"sizes: {_some([f'{size} ({n})' for size, n in self.sizes.items()])}"]
        found += [f"{len(names)} {what}: {_some(names)}" for what, names in self.notes.items()]
        found += [
            f"Problem: {len(names)} {what}: {_some(names)}" for what, names in self.problems.items()
        ]
        return found + (["No problem found."] if self.ok else [])


def check(
    path: str | Path,
    kinds: Sequence[ImageKind],
    *,
    patients: Patients | None = None,
    workers: int | None = None,
    progress: Progress | None = None,
) -> Report:
    """Read every image of a folder or an ``.npz``; of several kinds, guess which they are.

    The rules are those of a run: what a run refuses is an error here, or one of the problems.

    Args:
        path: as :func:`~.sources.open_images` takes it.
        kinds: what they may be.
        patients: each image's patient by its file's name.
        workers: threads that decode; default one per core.
        progress: called while files of a folder are read.
    """
    path = Path(path)
    if path_kind(path) == "folder":
        found = find(kinds[0], path) if len(kinds) == 1 else guess(path, kinds)
        table = _read_folder(found, workers, progress)
    else:
        table = _read_npz(path, kinds)
    if patients:
        table.patients = list(patients.of(table.names))
    return table.report(str(path))


@dataclass
class _Table:
    """One value per image in each list; None where it is not known."""

    kind: ImageKind
    class_names: tuple[str, ...]  # empty for images with masks
    names: list[str]
    labels: list[int | None]
    parts: list[str | None]
    patients: list[str | None]
    digests: list[bytes | None]
    sizes: list[str | None]
    problems: Found = field(default_factory=dict)
    notes: Found = field(default_factory=dict)

    def report(self, path: str) -> Report:
        counts: dict[str, Counter[str]] = {c: Counter() for c in self.class_names or ("images",)}
        for row, part in enumerate(self.parts):
            counts[self.class_of(row) or "images"][part or UNDIVIDED] += 1
        known = None not in self.patients
        problems: Found = {}
        if self.class_names:
            problems["classes without an image"] = list(missing(self.class_names, self.labels))
        problems |= self.problems
        across, contradicting, plain = self.duplicates()
        problems["images in more than one part"] = across
        problems["images under more than one label"] = contradicting
        if known:
            problems["patients both in train and outside of it"] = self.leaks()
        problems["splits that a run would refuse"] = self.impossible_splits()
        notes = {"images stored more than once": plain, **self.notes}
        return Report(
            path,
            self.kind.name,
            len(self.names),
            {name: dict(counter) for name, counter in counts.items()},
            dict(Counter(size for size in self.sizes if size).most_common()),
            len(set(self.patients)) if known else None,
            {what: names for what, names in problems.items() if names},
            {what: names for what, names in notes.items() if names},
        )

    def class_of(self, row: int) -> str:
        label = self.labels[row]
        return "" if label is None else self.class_names[label]

    def duplicates(self) -> tuple[list[str], list[str], list[str]]:
        """Return images of equal content: across parts, across classes, and within both."""
        same: dict[bytes, list[int]] = defaultdict(list)
        for row, digest in enumerate(self.digests):
            if digest is not None:
                same[digest].append(row)
        across, contradicting, plain = [], [], []
        for rows in same.values():
            if len(rows) < 2:
                continue
            line = " = ".join(self.names[row] for row in rows)
            parts, classes = (
                {f(row) for row in rows} for f in (self.parts.__getitem__, self.class_of)
            )
            if len(parts) > 1:
                across.append(line)
            if len(classes) > 1:
                contradicting.append(line)
            if len(parts) == len(classes) == 1:
                plain.append(line)
        return across, contradicting, plain

    def leaks(self) -> list[str]:
        """Return patients both in train and in val or test, which count as one part."""
        pairs = list(zip(self.patients, self.parts, strict=True))
        inside = {str(patient) for patient, part in pairs if part == "train"}
        outside = {str(patient) for patient, part in pairs if part not in (None, "train")}
        return sorted(inside & outside, key=lambda patient: (len(patient), patient))

    def impossible_splits(self) -> list[str]:
        """Return what a run would say of a split by patient, and of the data set's own parts."""
        if not self.class_names:
            return []
        hows: list[Split] = []
        if None not in self.patients and len(set(self.patients)) > 1:
            hows.append("patient")
        if {"train"} < set(self.parts):
            hows.append("as-shipped")
        known = ImageSet(
            np.broadcast_to(np.uint8(0), (len(self.names), 1, 1)),
            labels=np.array(self.labels, np.int64),
            class_names=self.class_names,
            groups=np.unique([str(p) for p in self.patients], return_inverse=True)[1],
            parts=np.array([str(part) for part in self.parts], np.str_),
        )
        found = []
        for how in hows:
            try:
                split(known, how, seed=0)
            except StudyError as error:
                found.append(str(error).partition(". ")[0])
        return found


def _read_folder(found: DatasetFiles, workers: int | None, progress: Progress | None) -> _Table:
    kind, items = found.kind, found.items
    seen = [_Seen() for _ in items]

    def one(row: int) -> None:
        seen[row].look(items[row], kind.mode)

    in_threads(one, len(items), workers, "files", progress)

    def named(rows: Iterable[bool]) -> list[str]:
        return [item.image.name for item, wanted in zip(items, rows, strict=True) if wanted]

    return _Table(
        kind,
        () if kind.masks else kind.class_names,
        [item.image.name for item in items],
        [item.label for item in items],
        [item.part for item in items],
        [None if item.group is None else str(item.group) for item in items],
        [s.digest for s in seen],
        [s.size for s in seen],
        {
            "unreadable files": [line for s in seen for line in s.unreadable],
            "images without a mask": named(kind.masks and item.mask is None for item in items),
            "masks of another size than their image": named(s.other_size for s in seen),
        },
        {
            "empty masks": named(s.empty for s in seen),
            "masks without an image": list(found.stray_masks),
            "other things beside the images": [found.ignored] if found.ignored else [],
        },
    )


class _Seen:
    """The findings about one image and its mask; decoding goes step by step, as in a run."""

    def __init__(self) -> None:
        self.digest: bytes | None = None
        self.size: str | None = None
        self.unreadable: list[str] = []
        self.other_size = False
        self.empty = False

    def look(self, item: Item, mode: Mode) -> None:
        image = None
        try:
            content = read(item.image)
            if content:
                self.digest = hashlib.blake2b(content, digest_size=16).digest()
            image = open_image(content)
            to_mode(image, mode)
            self.size = f"{image.width} × {image.height}"
        except UnreadableError as error:
            self.unreadable.append(f"{item.image.name} {error}")
        if item.mask is None:
            return
        try:
            mask = open_image(read(item.mask))
            self.other_size = image is not None and mask.size != image.size
            self.empty = binary(mask).getbbox() is None
        except UnreadableError as error:
            self.unreadable.append(f"{item.mask.name} {error}")


def _read_npz(path: Path, kinds: Sequence[ImageKind]) -> _Table:
    kind, images, patients = read_npz(path, kinds)
    count = len(images)
    names = [f"row {i}" for i in range(count)] if images.names is None else images.names.tolist()
    height, width = images.images.shape[1:3]
    empty = []
    if images.masks is not None:
        empty = [names[row] for row in np.flatnonzero(~images.masks.any(axis=(1, 2)))]
    return _Table(
        kind,
        () if images.labels is None else images.class_names,
        names,
        [None] * count if images.labels is None else images.labels.tolist(),
        [None] * count if images.parts is None else images.parts.tolist(),
        list(patients) if patients else [None] * count,
        [hashlib.blake2b(row.tobytes(), digest_size=16).digest() for row in images.images],
        [f"{width} × {height}"] * count,
        notes={"empty masks": empty},
    )


def _some(names: Sequence[str]) -> str:
    more = f" and {len(names) - SHOWN} more" if len(names) > SHOWN else ""
    return ", ".join(names[:SHOWN]) + more
