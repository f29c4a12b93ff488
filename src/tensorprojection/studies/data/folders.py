"""The files of a data set, in folders as Kaggle ships them."""

from __future__ import annotations

import os
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from ..errors import StudyError
from .images import ImageKind, missing

DEEPEST = 2  # how many folders down a layout is looked for
IMAGES = {".jpg", ".jpeg", ".png", ".bmp", ".tif", ".tiff"}
PARTS = {
    "train": "train",
    "training": "train",
    "val": "val",
    "valid": "val",
    "validation": "val",
    "test": "test",
}


class NoLayoutError(StudyError):
    """A folder without any of the layouts that were looked for."""


@dataclass(frozen=True)
class File:
    """A file: where it is, and its name in the data set."""

    path: str
    name: str  # relative to the folder that was given, with "/"


@dataclass(frozen=True)
class Item:
    """An image's file, and what its place and name say about it."""

    image: File
    label: int | None = None
    group: int | None = None
    part: str | None = None
    mask: File | None = None


@dataclass(frozen=True)
class DatasetFiles:
    """A data set's images in the order of class, part and name."""

    kind: ImageKind
    items: tuple[Item, ...]
    stray_masks: tuple[str, ...] = ()  # without an image
    ignored: str = ""  # what else is in the folders, as a clause

    def missing_classes(self) -> tuple[str, ...]:
        """The classes of which there is no image."""
        kind = self.kind
        return () if kind.masks else missing(kind.class_names, {item.label for item in self.items})


def find(kind: ImageKind, folder: Path) -> DatasetFiles:
    """The study's images in ``folder``, or up to two folders below it.

    The layout nearest to the top counts: Kaggle's OCT data set holds a second copy of itself one
    folder further down.
    """
    search = _with_masks if kind.masks else _classes
    level = [str(folder)]
    for _ in range(DEEPEST + 1):
        found = [(place, hit) for place in level if (hit := search(kind, place, str(folder)))]
        if len(found) > 1:
            places = " and ".join(_relative(place, str(folder)) for place, _ in found[:2])
            raise StudyError(
                f"Expected the {kind.name} images once in {folder}, found them in {places}. "
                "Give the path of one."
            )
        if found:
            hit = found[0][1]
            return replace(hit, ignored=_ignored(hit, str(folder)))
        level = [entry.path for place in level for entry in _folders(place)]
    raise NoLayoutError(
        f"Expected in {folder}, or up to two folders below it, the {kind.name} layout: "
        f"{kind.layout}. Found {_contents(folder)}."
    )


def guess(folder: Path, kinds: Sequence[ImageKind]) -> DatasetFiles:
    """The images of whichever study's layout ``folder`` has."""
    # Masks last: each class of a data set may have folders images and masks as well.
    for kind in sorted(kinds, key=lambda kind: kind.masks):
        try:
            return find(kind, folder)
        except NoLayoutError:
            continue
    expected = "; ".join(f"{kind.name}: {kind.layout}" for kind in kinds)
    raise NoLayoutError(
        f"Expected in {folder}, or up to two folders below it, one of the layouts ({expected}). "
        f"Found {_contents(folder)}."
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
                below = [sub.path for sub in _folders(entry.path) if _plain(sub.name) == "images"]
                if any(True for _ in _files(below[0] if below else entry.path, place)):
                    found.setdefault(_plain(entry.name), entry.name)
        if found or len(inside) != 1:
            return tuple(sorted(found.values()))
        place = inside[0].path
    return ()


def _classes(kind: ImageKind, place: str, root: str) -> DatasetFiles | None:
    """Labels: one folder per class, alone or in train, val and test."""
    folders = _folders(place)
    parts = [(entry.path, PARTS[key]) for entry in folders if (key := _plain(entry.name)) in PARTS]
    items = [item for path, part in parts for item in _one_part(kind, path, root, part)]
    if not items:
        items = list(_one_part(kind, place, root, None))
    # One class alone says nothing: there is a Normal in two of the data sets.
    if len({item.label for item in items}) < 2:
        return None
    if any(item.group is None for item in items):
        items = [Item(item.image, item.label, None, item.part) for item in items]
    return DatasetFiles(kind, tuple(sorted(items, key=_order)))


def _one_part(kind: ImageKind, place: str, root: str, part: str | None) -> Iterator[Item]:
    names = {_plain(name): i for i, name in enumerate(kind.class_names)}
    for entry in _folders(place):
        key = _plain(entry.name)
        label = names.get(kind.class_aliases.get(key, key))
        if label is None:
            continue
        inner = [sub.path for sub in _folders(entry.path) if _plain(sub.name) == "images"]
        for file in _files(inner[0] if inner else entry.path, root):
            yield Item(file, label, _patient(kind, file.name), part)


def _with_masks(kind: ImageKind, place: str, root: str) -> DatasetFiles | None:
    inside = {_plain(entry.name): entry.path for entry in _folders(place)}
    if kind.mask_folder is not None:
        inside = {"images": place, **inside, "masks": kind.mask_folder}
    if "images" not in inside or "masks" not in inside:
        return None
    above = os.path.dirname(kind.mask_folder) if kind.mask_folder else root
    masks = _by_stem(_files(inside["masks"], above))
    images = list(_files(inside["images"], root))
    if not images:
        return None
    stems = _by_stem(images)
    items = (Item(file, mask=masks.get(Path(file.name).stem)) for file in images)
    stray = sorted(file.name for stem, file in masks.items() if stem not in stems)
    return DatasetFiles(kind, tuple(sorted(items, key=_order)), tuple(stray))


def _by_stem(files: Iterable[File]) -> dict[str, File]:
    """By the name without its ending, which pairs an image with its mask: so each only once."""
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


def _patient(kind: ImageKind, name: str) -> int | None:
    if kind.patient is None:
        return None
    match = kind.patient.match(name.rpartition("/")[2])
    return int(match[1]) if match else None


def _plain(name: str) -> str:
    """A folder's name without case, blanks, dashes: "Lung_Opacity", "OCT2017 " (so on Kaggle)."""
    return re.sub(r"[\s_-]+", "", name).lower()


def _folders(place: str) -> list[os.DirEntry[str]]:
    return _scan(place, lambda entry: entry.is_dir())


def _files(place: str, root: str) -> Iterator[File]:
    """All files named like an image, even a pipe: reading it will say what it is."""
    for entry in _scan(place, lambda entry: os.path.splitext(entry.name)[1].lower() in IMAGES):
        if not entry.is_dir():
            yield File(entry.path, _relative(entry.path, root))


def _scan(place: str, wanted: Callable[[os.DirEntry[str]], bool]) -> list[os.DirEntry[str]]:
    """Return a folder's entries by name, without hidden files (macOS adds ``._x.jpeg``)."""
    try:
        with os.scandir(place) as entries:
            seen = [e for e in entries if not e.name.startswith((".", "__MACOSX")) and wanted(e)]
    except OSError as error:
        raise StudyError(f"Could not read the folder {place}: {error.strerror}.") from error
    for entry in seen:
        if any("\ud800" <= c < "\ue000" for c in entry.name):  # what Python makes of other bytes
            raise StudyError(
                f"Expected names in UTF-8 in {place}, got {os.fsencode(entry.name)!r}. Rename it."
            )
    return sorted(seen, key=lambda entry: entry.name)


def _ignored(found: DatasetFiles, root: str) -> str:
    """Count what else is in the folders of the images and masks, and in those above to the root."""
    used = {f.path for item in found.items for f in (item.image, item.mask) if f is not None}
    used |= {os.path.join(root, name) for name in found.stray_masks}  # reported by themselves
    walked: set[str] = set()
    for path in {os.path.dirname(path) for path in used}:
        while path not in walked and f"{path}{os.sep}".startswith(f"{root}{os.sep}"):
            walked.add(path)
            path = os.path.dirname(path)
    others = [
        entry
        for place in sorted(walked)
        for entry in _scan(place, lambda entry: entry.path not in used and entry.path not in walked)
    ]
    folders = [_relative(entry.path, root) for entry in others if entry.is_dir()]
    ends = Counter(os.path.splitext(e.name)[1].lower() for e in others if not e.is_dir())
    clauses = []
    if ends:
        kinds = ", ".join(f"{n} {end or 'without an ending'}" for end, n in ends.most_common())
        clauses.append(f"{ends.total()} files ignored ({kinds})")
    if folders:
        more = ", …" if len(folders) > 6 else ""
        clauses.append(f"{len(folders)} folders ignored ({', '.join(folders[:6])}{more})")
    return ", ".join(clauses)


def _relative(path: str, root: str) -> str:
    """For paths that begin with ``root``; fast, as a data set has a hundred thousand."""
    return path[len(root) :].lstrip(os.sep).replace(os.sep, "/") or "."


def _contents(folder: Path) -> str:
    entries = _scan(str(folder), lambda entry: True)
    if not entries:
        return "an empty folder"
    shown = [f"{e.name}/" if e.is_dir() else e.name for e in entries[:6]]
    more = f" and {len(entries) - 6} more" if len(entries) > 6 else ""
    return ", ".join(shown) + more
