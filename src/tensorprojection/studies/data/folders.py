"""The files of a data set, in folders as Kaggle ships them."""

from __future__ import annotations

import os
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..errors import StudyError
from .images import ImageKind

DEEPEST = 2  # how many folders down a layout is looked for
SHOWN = 6  # names in an error
IMAGES = {".jpg", ".jpeg", ".png", ".bmp", ".tif", ".tiff"}
PARTS = {
    **dict.fromkeys(("train", "training"), "train"),
    **dict.fromkeys(("val", "valid", "validation"), "val"),
    "test": "test",
}


@dataclass(frozen=True)
class File:
    """An image or a mask: its name in the data set, and its path, or its pixels from an .npz."""

    name: str  # relative to the folder that was given, with "/"
    path: str = ""
    pixels: NDArray[np.uint8] | None = None


@dataclass(frozen=True)
class Item:
    """An image, its mask, and what is known about it."""

    image: File
    label: int | None = None
    patient: str | None = None
    part: str | None = None
    mask: File | None = None


@dataclass(frozen=True)
class Dataset:
    """A data set's images; those of a folder are in the order of class, part and name."""

    kind: ImageKind
    class_names: tuple[str, ...]  # in the order of the labels
    items: Sequence[Item]
    ignored: str = ""  # what else is in the folder, as a clause
    named: bool = True  # False for an .npz without file_names

    def column(self, name: str) -> list[Any] | None:
        """Return the items' labels, patients or parts; None if an item has none."""
        values = [getattr(item, name) for item in self.items]
        return None if None in values else values

    def take(self, rows: Sequence[int]) -> Dataset:
        """Return the images of these rows."""
        return replace(self, items=[self.items[row] for row in rows])

    def missing_classes(self) -> tuple[str, ...]:
        """Return the classes of which there is no image."""
        there = {item.label for item in self.items}
        names = () if self.kind.masks else self.class_names
        return tuple(name for label, name in enumerate(names) if label not in there)


def find(kind: ImageKind, folder: Path) -> Dataset:
    """Return the study's images in ``folder``, or up to two folders below it.

    The layout nearest to the top counts: Kaggle's OCT data set holds a second copy of itself one
    folder further down.
    """
    search, root = _with_masks if kind.masks else _classes, str(folder)
    level = [root]
    for _ in range(DEEPEST + 1):
        found = [(place, hit) for place in level if (hit := search(kind, place, root))]
        if len(found) > 1:
            places = " and ".join(_relative(place, root) for place, _ in found[:2])
            raise StudyError(
                f"Expected the {kind.name} images once in {folder}, found them in {places}. "
                "Give the path of one."
            )
        if found:
            return replace(found[0][1], ignored=_ignored(found[0][1], root))
        level = [entry.path for place in level for entry in _folders(place)]
    raise StudyError(
        f"Expected in {folder}, or up to two folders below it, the {kind.name} layout: "
        f"{kind.layout}. Found {_contents(folder)}."
    )


def class_folders(folder: Path) -> tuple[str, ...]:
    """Return the names of the subfolders with images, which may lie in train, val and test.

    A folder that holds one folder and nothing else stands for that folder, as after unpacking.
    """
    place = str(folder)
    for _ in range(DEEPEST + 1):
        inside = _folders(place)
        parts = [entry.path for entry in inside if _plain(entry.name) in PARTS]
        found: dict[str, str] = {}
        for part in parts or [place]:
            for entry in _folders(part):
                if any(True for _ in _files(_images_in(entry.path), place)):
                    found.setdefault(_plain(entry.name), entry.name)
        if found or len(inside) != 1:
            return tuple(sorted(found.values()))
        place = inside[0].path
    return ()


def _classes(kind: ImageKind, place: str, root: str) -> Dataset | None:
    """Return labelled images: one folder per class, alone or in train, val and test."""
    parts = [(e.path, PARTS[key]) for e in _folders(place) if (key := _plain(e.name)) in PARTS]
    items = [item for path, part in parts for item in _one_part(kind, path, root, part)]
    items = items or list(_one_part(kind, place, root, None))
    # One class alone does not identify a study: two of the data sets have a Normal.
    if len({item.label for item in items}) < 2:
        return None
    return Dataset(kind, kind.class_names, sorted(items, key=_order))


def _one_part(kind: ImageKind, place: str, root: str, part: str | None) -> Iterator[Item]:
    labels = {_plain(name): i for i, name in enumerate(kind.class_names)}
    for entry in _folders(place):
        key = _plain(entry.name)
        label = labels.get(kind.class_aliases.get(key, key))
        for file in () if label is None else _files(_images_in(entry.path), root):
            match = kind.patient and kind.patient.match(file.name.rpartition("/")[2])
            yield Item(file, label, match[1] if match else None, part)


def _images_in(place: str) -> str:
    """Return the folder images in a class's folder if there is one, else the class's folder."""
    below = (entry.path for entry in _folders(place) if _plain(entry.name) == "images")
    return next(below, place)


def _with_masks(kind: ImageKind, place: str, root: str) -> Dataset | None:
    inside = {_plain(entry.name): entry.path for entry in _folders(place)}
    if kind.mask_folder is not None:
        inside = {"images": place, **inside, "masks": kind.mask_folder}
    if "images" not in inside or "masks" not in inside:
        return None
    above = os.path.dirname(kind.mask_folder) if kind.mask_folder else root
    masks = _by_stem(_files(inside["masks"], above))
    images = _by_stem(_files(inside["images"], root))
    if not images:
        return None
    items = (Item(file, mask=masks.get(stem)) for stem, file in images.items())
    return Dataset(kind, kind.class_names, sorted(items, key=_order))


def _by_stem(files: Iterable[File]) -> dict[str, File]:
    """Return the files by name without ending, which pairs an image with its mask."""
    found: dict[str, File] = {}
    for file in files:
        stem = Path(file.name).stem
        if stem in found:
            raise StudyError(
                f"Expected one file named {stem}, as the name pairs an image with its mask, got "
                f"{found[stem].name} and {file.name}. Remove one."
            )
        found[stem] = file
    return found


def _order(item: Item) -> tuple[int, str]:
    return (-1 if item.label is None else item.label, item.image.name)


def _plain(name: str) -> str:
    """Return a name without case, blanks, dashes: "Lung_Opacity", "OCT2017 " (so on Kaggle)."""
    return re.sub(r"[\s_-]+", "", name).lower()


def _folders(place: str) -> list[os.DirEntry[str]]:
    return _scan(place, lambda entry: entry.is_dir())


def _files(place: str, root: str) -> Iterator[File]:
    """Yield all files named like an image, even a pipe: reading it raises the right error."""
    for entry in _scan(place, lambda entry: os.path.splitext(entry.name)[1].lower() in IMAGES):
        if not entry.is_dir():
            yield File(_relative(entry.path, root), entry.path)


def _scan(place: str, wanted: Callable[[os.DirEntry[str]], bool]) -> list[os.DirEntry[str]]:
    """Return a folder's entries by name, without hidden files (macOS adds ``._x.jpeg``)."""
    try:
        with os.scandir(place) as entries:
            seen = [e for e in entries if not _hidden(e.name) and wanted(e)]
    except OSError as error:
        raise StudyError(f"Could not read the folder {place}: {error.strerror}.") from error
    for entry in seen:
        if any("\ud800" <= c < "\ue000" for c in entry.name):  # how Python reads other bytes
            raise StudyError(
                f"Expected names in UTF-8 in {place}, got {os.fsencode(entry.name)!r}. Rename it."
            )
    return sorted(seen, key=lambda entry: entry.name)


def _hidden(name: str) -> bool:
    return name.startswith((".", "__MACOSX"))


def _ignored(found: Dataset, root: str) -> str:
    """Count the files below ``root`` that are not used, by folder and ending."""
    used = {f.path for item in found.items for f in (item.image, item.mask) if f is not None}
    counts: Counter[str] = Counter()
    for place, folders, names in os.walk(root):
        folders[:] = sorted(name for name in folders if not _hidden(name))
        for name in names:
            if not _hidden(name) and (path := os.path.join(place, name)) not in used:
                ending = os.path.splitext(name)[1].lower()
                counts[f"{_relative(os.path.dirname(path), root)}/*{ending}"] += 1
    if not counts:
        return ""
    shown = [f"{count} {what}" for what, count in counts.most_common(SHOWN)]
    shown += ["…"] if len(counts) > SHOWN else []
    text = f"{counts.total()} files ignored ({', '.join(shown)})"
    return os.fsencode(text).decode(errors="replace")  # ignored names need not be UTF-8


def _relative(path: str, root: str) -> str:
    """Return a path that begins with ``root`` relative to it; fast, for a hundred thousand."""
    return path[len(root) :].lstrip(os.sep).replace(os.sep, "/") or "."


def _contents(folder: Path) -> str:
    entries = _scan(str(folder), lambda entry: True)
    if not entries:
        return "an empty folder"
    shown = [f"{e.name}/" if e.is_dir() else e.name for e in entries[:SHOWN]]
    more = f" and {len(entries) - SHOWN} more" if len(entries) > SHOWN else ""
    return ", ".join(shown) + more
