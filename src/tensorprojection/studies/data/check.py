"""Checking images before they are used: counts, sizes, unreadable files, duplicates, leaks."""

from __future__ import annotations

import hashlib
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from ..errors import StudyError
from .decode import Progress, UnreadableError, binary, in_threads, picture, to_mode
from .folders import Dataset, Item
from .images import ImageKind, ImageSet, Mode
from .sources import Patients, path_kind, read_dataset
from .splits import SplitRule, split

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
    split: SplitRule
    sets: dict[str, dict[str, int]]  # class → training, validation → number of images
    version: str  # of the data set, by the number of images
    sizes: dict[str, int]  # "width × height" → number of images, most common first
    patients: int | None
    problems: Found
    notes: Found

    @property
    def ok(self) -> bool:
        return not self.problems

    def as_dict(self) -> dict[str, Any]:
        """Return all of it as JSON can write it."""
        return {**asdict(self), "ok": self.ok}

    def lines(self) -> list[str]:
        """Return the version, sizes, notes and problems, one to a line."""
        found = [f"version: {self.version}"] if self.version else []
        found.append(f"sizes: {_some([f'{size} ({n})' for size, n in self.sizes.items()])}")
        for before, findings in (("", self.notes), ("Problem: ", self.problems)):
            found += [f"{before}{len(n)} {what}: {_some(n)}" for what, n in findings.items()]
        return found + (["No problem found."] if self.ok else [])


def check(
    path: str | Path,
    kinds: Sequence[ImageKind],
    *,
    patients: Patients | None = None,
    how: SplitRule = "image",
    seed: int | Sequence[int] = 0,
    progress: Progress | None = None,
) -> Report:
    """Read every image of a folder or an ``.npz`` file.

    The rules are those of a run: what a run refuses is an error here, or one of the problems.

    Args:
        path: as :func:`~.sources.open_images` takes it.
        kinds: what the images may be; the first kind that fits is taken.
        patients: each image's patient by its file's name.
        how: the split whose training and validation images are counted.
        seed: of that split.
        progress: called while images are read.
    """
    data = _read(Path(path), kinds)
    items, kind = data.items, data.kind
    seen = in_threads(lambda row: _look(items[row], kind.mode), len(items), "files", progress)
    names = [item.image.name for item in items]
    of_patients = patients.of(names) if patients else data.column("patient")
    parts = [item.part or UNDIVIDED for item in items]
    label_names = ["images" if i.label is None else data.class_names[i.label] for i in items]
    classes = ("images",) if kind.masks else data.class_names
    sets, refused = _splits(data, of_patients, how, seed)

    def counted(where: Iterable[str]) -> dict[str, dict[str, int]]:
        pairs = Counter(zip(label_names, where, strict=True))
        return {c: {at: n for (name, at), n in pairs.items() if name == c} for c in classes}

    def named(rows: Iterable[bool]) -> list[str]:
        return [name for name, wanted in zip(names, rows, strict=True) if wanted]

    across, contradicting, plain = _duplicates(names, parts, label_names, [s.digest for s in seen])
    problems = {
        "classes without an image": list(data.missing_classes()),
        "unreadable files": [line for s in seen for line in s.unreadable],
        "images without a mask": named(kind.masks and item.mask is None for item in items),
        "masks of another size than their image": named(s.other_size for s in seen),
        "images in more than one part": across,
        "images under more than one label": contradicting,
        "patients both in train and outside of it": _leaks(of_patients or (), parts),
        "splits that a run would refuse": refused,
    }
    notes = {
        "images stored more than once": plain,
        "empty masks": named(s.empty for s in seen),
        "other things beside the images": [data.ignored] if data.ignored else [],
    }
    return Report(
        str(path),
        kind.name,
        len(items),
        counted(parts),
        how,
        {} if sets is None else counted(sets),
        _version(kind.versions, len(items)),
        dict(Counter(s.size for s in seen if s.size).most_common()),
        None if of_patients is None else len(set(of_patients)),
        {what: names for what, names in problems.items() if names},
        {what: names for what, names in notes.items() if names},
    )


def _read(path: Path, kinds: Sequence[ImageKind]) -> Dataset:
    path_kind(path)  # an error about the path itself comes first
    errors = []
    # Masks last: each class of a data set may have folders images and masks as well.
    for kind in sorted(kinds, key=lambda kind: kind.masks):
        try:
            return read_dataset(path, kind)
        except StudyError as error:
            if len(kinds) == 1:
                raise
            errors.append(f"{kind.name}: {error}")
    raise StudyError(f"{path} fits none of the studies. {' '.join(errors)}")


@dataclass
class _Seen:
    """The findings about one image and its mask."""

    digest: bytes | None = None
    size: str | None = None
    unreadable: list[str] = field(default_factory=list)
    other_size: bool = False
    empty: bool = False


def _look(item: Item, mode: Mode) -> _Seen:
    """Decode an image and its mask step by step, as a run does."""
    seen, image = _Seen(), None
    try:
        image = picture(item.image)
        pixels = to_mode(image, mode)
        seen.digest = hashlib.blake2b(
            repr(pixels.size).encode() + pixels.tobytes(), digest_size=16
        ).digest()
        seen.size = f"{image.width} × {image.height}"
    except UnreadableError as error:
        seen.unreadable.append(f"{item.image.name} {error}")
    try:
        if item.mask is not None:
            mask = picture(item.mask)
            seen.other_size = image is not None and mask.size != image.size
            seen.empty = binary(mask).getbbox() is None
    except UnreadableError as error:
        assert item.mask is not None
        seen.unreadable.append(f"{item.mask.name} {error}")
    return seen


def _duplicates(
    names: Sequence[str],
    parts: Sequence[str],
    classes: Sequence[str],
    digests: Sequence[bytes | None],
) -> tuple[list[str], list[str], list[str]]:
    """Return images of equal pixels: across parts, across classes, and within both."""
    same: dict[bytes, list[int]] = defaultdict(list)
    for row, digest in enumerate(digests):
        if digest is not None:
            same[digest].append(row)
    across, contradicting, plain = [], [], []
    for rows in same.values():
        line = " = ".join(names[row] for row in rows)
        several_parts = len({parts[row] for row in rows}) > 1
        several_classes = len({classes[row] for row in rows}) > 1
        if several_parts:
            across.append(line)
        if several_classes:
            contradicting.append(line)
        if len(rows) > 1 and not several_parts and not several_classes:
            plain.append(line)
    return across, contradicting, plain


def _leaks(patients: Sequence[str], parts: Sequence[str]) -> list[str]:
    """Return patients both in train and in val or test, which count as one part."""
    pairs = set(zip(patients, parts, strict=False))
    inside = {patient for patient, part in pairs if part == "train"}
    outside = {patient for patient, part in pairs if part in ("val", "test")}
    return sorted(inside & outside, key=lambda patient: (len(patient), patient))


def _splits(
    data: Dataset, patients: Sequence[str] | None, asked: SplitRule, seed: int | Sequence[int]
) -> tuple[list[str] | None, list[str]]:
    """Return each image's set in the split that is asked for, and the splits a run would refuse."""
    labels, parts = data.column("label"), data.column("part")
    known = ImageSet(
        np.broadcast_to(np.uint8(0), (len(data.items), 1, 1)),
        labels=None if labels is None else np.array(labels, np.int64),
        class_names=data.class_names,
        groups=None if patients is None else np.unique(patients, return_inverse=True)[1],
        parts=None if parts is None else np.array(parts, np.str_),
    )
    hows: list[SplitRule] = ["fixed" if asked == "fixed" else "image"]
    if labels is not None and patients is not None and len(set(patients)) > 1:
        hows.append("patient")
    if labels is not None and parts is not None and {"train"} < set(parts):
        hows.append("as-shipped")
    if asked not in hows:
        split(known, asked, seed)  # raises what these images lack
        hows.append(asked)
    sets, refused = None, []
    for how in hows:
        try:
            training, _ = split(known, how, seed)
        except StudyError as error:
            refused.append(str(error).partition(". ")[0])
            continue
        if how == asked:
            trains = np.isin(np.arange(len(known)), training)
            sets = np.where(trains, "training", "validation").tolist()
    return sets, refused


def _version(versions: Mapping[int, str], images: int) -> str:
    """Return the data set's version; if the number of images tells none, those that there are."""
    if not versions or images in versions:
        return versions.get(images, "")
    counts: dict[str, int] = {}
    for count, text in versions.items():
        counts.setdefault(text, count)
    known = "; ".join(f"{count:,} images are {text}" for text, count in counts.items())
    return f"not known from {images:,} images: {known}"


def _some(names: Sequence[str]) -> str:
    more = f" and {len(names) - SHOWN} more" if len(names) > SHOWN else ""
    return ", ".join(names[:SHOWN]) + more
