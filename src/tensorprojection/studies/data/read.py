"""The images of a folder or an .npz file before they are decoded, and what is known about each."""

from __future__ import annotations

import errno
import math
import os
import re
import stat
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from io import BufferedReader
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
from numpy.lib.npyio import NpzFile
from numpy.typing import NDArray
from polars.exceptions import PolarsError

from ..errors import StudyError
from .images import ImageKind

MOST_BYTES = 2**29  # of one file; the largest images of the data sets have a few million
DEEPEST = 2  # how many folders down a layout is looked for
SHOWN = 6  # names in an error
IMAGES = {".jpg", ".jpeg", ".png", ".bmp", ".tif", ".tiff"}
ARCHIVES = (".zip", ".tar", ".tar.gz", ".tgz", ".tar.bz2", ".tar.xz")
PARTS = {
    **dict.fromkeys(("train", "training"), "train"),
    **dict.fromkeys(("val", "valid", "validation"), "val"),
    "test": "test",
}
# The arrays of an .npz file, and how the names of their types begin.
NPZ = {
    "images": ("uint8",),
    "masks": ("int", "uint", "bool"),
    "labels": ("int", "uint"),
    "class_names": ("str",),
    "patient_ids": ("int", "uint", "str"),
    "parts": ("str",),
    "file_names": ("str",),
}

Picture = str | NDArray[np.uint8]  # a file's path, or pixels from an .npz


@dataclass
class Item:
    """An image that is not decoded yet, its mask, and what is known about it."""

    name: str  # relative to the folder that was given, with "/"
    image: Picture
    mask: Picture | None = None
    label: int | None = None
    part: str | None = None
    patient: str | None = None
    named: bool = True  # False for a row of an .npz without file_names


def read_items(
    kind: ImageKind,
    path: Path,
    masks: Path | None = None,
    patients: Path | None = None,
    patient_pattern: str | None = None,
) -> tuple[list[Item], str]:
    """Return the images of a folder or an .npz file, and what else is in the folder, as a clause.

    Those of a folder are in the order of class and name.

    Args:
        kind: what the images are.
        path: the folder or file.
        masks: the folder of the masks, if it is not beside the images' folder.
        patients: a CSV file with the columns ``file`` and ``patient``. A file is named as in the
            folder (``train/CNV/a.png``), or by its last part if that is unique.
        patient_pattern: a regular expression that is found in every file's name; its first group,
            or all of it, is the patient.
    """
    items, ignored = (
        _of_folder(kind, str(path), masks) if is_folder(path) else (_of_npz(kind, path), "")
    )
    names = [item.name for item in items]
    pattern = patient_pattern or kind.patient_pattern
    if patients is not None and patient_pattern is not None:
        raise StudyError("Expected `patients` or `patient_pattern`, got both.")
    if not items[0].named and (patients is not None or patient_pattern is not None):
        raise StudyError(f"Expected an array file_names in {path} to find patients by, got none.")
    known = items[0].patient is not None or not items[0].named
    if patients is not None:
        found = _listed(names, patients)
    elif pattern is None or (patient_pattern is None and known):
        return items, ignored  # with the patients of an .npz, if it has any
    else:
        found = _matched(names, pattern)
        if None in found and patient_pattern is None:
            return items, ignored
        if None in found:
            raise StudyError(
                f"Expected {pattern!r} in the name of every image, but "
                f"{names[found.index(None)]} has no match. Change `patient_pattern`, or list the "
                "patients in a file (`patients`)."
            )
    for item, patient in zip(items, found, strict=True):
        item.patient = patient
    return items, ignored


def known_of(items: Sequence[Item]) -> dict[str, NDArray[Any] | None]:
    """Return labels, groups, names and parts as an ImageSet has them; None if an item has none."""

    def column(name: str, dtype: type) -> NDArray[Any] | None:
        values = [getattr(item, name) for item in items]
        return None if None in values else np.array(values, dtype)

    groups = column("patient", np.str_)
    if groups is not None:
        # Numbers stay as they are, other texts are numbered in their order.
        numbers = all(re.fullmatch(r"-?[0-9]{1,18}", patient) for patient in groups)
        groups = groups.astype(np.int64) if numbers else np.unique_inverse(groups)[1]
    return {
        "labels": column("label", np.int64),
        "groups": groups,
        "names": column("name", np.str_),
        "parts": column("part", np.str_),
    }


def is_folder(path: Path) -> bool:
    """Return False for an .npz file; anything but that or a folder is an error."""
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
    if path.name.lower().endswith(ARCHIVES) and stat.S_ISREG(mode):
        raise StudyError(f"{path} is an archive. Unpack it, and give the folder instead.")
    if not (stat.S_ISDIR(mode) or (stat.S_ISREG(mode) and path.suffix.lower() == ".npz")):
        raise StudyError(f"Expected a folder or an .npz file, got {path}, which is neither.")
    return stat.S_ISDIR(mode)


def open_regular(path: str | Path) -> BufferedReader:
    """Open a regular file, or a link to one; anything else is an OSError and is never read.

    Reading a pipe would block, and a device may be endless.
    """
    if not stat.S_ISREG(os.stat(path).st_mode):
        raise OSError(errno.EINVAL, "not a regular file", str(path))
    return open(path, "rb")


def read_regular(path: str | Path, most: int = MOST_BYTES) -> bytes:
    """Read a whole regular file of at most so many bytes."""
    with open_regular(path) as file:
        content = file.read(most + 1)
    if len(content) > most:
        raise OSError(errno.EFBIG, f"more than {most} bytes", str(path))
    return content


# Patients


def _matched(names: Sequence[str], pattern: str) -> list[str | None]:
    try:
        rule = re.compile(pattern)
    except re.error as error:
        raise StudyError(
            f"`patient_pattern` is not a regular expression: {pattern!r} ({error})."
        ) from None
    found = [rule.search(_last(name)) for name in names]
    return [match and (match[1 if rule.groups else 0] or None) for match in found]


def _listed(names: Sequence[str], file: Path) -> list[str | None]:
    try:
        table = pl.read_csv(read_regular(file), infer_schema=False)
        known = dict(table.select("file", "patient").drop_nulls().iter_rows())
    except (OSError, PolarsError) as error:
        reason = getattr(error, "strerror", None) or f"{error}".splitlines()[0]
        raise StudyError(
            f"Could not read the columns file and patient of {file}: {reason}."
        ) from error
    last = Counter(map(_last, names))
    found = []
    for name in names:
        short = _last(name)
        found.append(known.get(name) or (known.get(short) if last[short] == 1 else None))
        if not found[-1]:
            raise StudyError(
                f"Expected a line for every image in {file}, but there is none for {name}."
            )
    return found


def _last(name: str) -> str:
    return name.rpartition("/")[2]


# An .npz file


def load_npz(path: Path, medmnist: Sequence[str] = ()) -> dict[str, NDArray[Any]]:
    """Load those arrays of a file that :data:`NPZ` names; pickle is never loaded.

    ``medmnist`` are the classes of a file in MedMNIST's layout, which does not name them.
    """
    try:
        with open_regular(path) as raw, NpzFile(raw, allow_pickle=False) as file:
            assert file.zip is not None
            needed = sum(info.file_size for info in file.zip.infolist())
            if needed > (memory := memory_bytes()):
                raise StudyError(
                    f"{path} holds {needed / 1e9:.1f} GB of arrays, but there are "
                    f"{memory / 1e9:.1f} GB of memory. Give a folder of image files instead."
                )
            found = {name: np.asarray(file[name]) for name in NPZ if name in file.files}
            if "train_images" in file.files:
                found |= _medmnist(file)
                if medmnist:
                    found.setdefault("class_names", np.array(medmnist))
    except StudyError:
        raise
    # The file may be cut short, encrypted, hold Python objects, or claim more memory than there is:
    # zipfile, its decompressors and NumPy's parser of headers raise many kinds.
    except Exception as error:
        reason = getattr(error, "strerror", None) or f"{error}\n".splitlines()[0].rstrip(".")
        raise StudyError(f"Could not read {path} as .npz: {reason}.") from error
    if "images" not in found:
        raise StudyError(f"Expected in {path} an array images, got {', '.join(found) or 'none'}.")
    shape = found["images"].shape
    if not (len(shape) == 3 or (len(shape) == 4 and shape[3] == 3)) or 0 in shape:
        raise StudyError(
            f"Expected in {path} images of shape (N, H, W) or (N, H, W, 3), with at least one "
            f"image, got {shape}."
        )
    for name, array in found.items():
        rows = {"images": shape, "masks": shape[:3], "class_names": (*array.shape, 1)[:1]}
        expected = rows.get(name, shape[:1])
        if array.shape != expected or not array.dtype.name.startswith(NPZ[name]):
            raise StudyError(
                f"Expected in {path} {name} of type {' or '.join(NPZ[name])} and shape {expected}, "
                f"got {array.dtype}, {array.shape}."
            )
    return found


def _medmnist(file: NpzFile) -> dict[str, NDArray[Any]]:
    """Return the arrays of a MedMNIST file, which has those of each part apart."""
    parts = [part for part in ("train", "val", "test") if f"{part}_images" in file.files]
    images = [file[f"{part}_images"] for part in parts]
    labels = [file[name] for part in parts if (name := f"{part}_labels") in file.files]
    return {
        "images": np.concatenate(images),
        "labels": np.concatenate([column.reshape(-1) for column in labels or [np.arange(0)]]),
        "parts": np.repeat(parts, [*map(len, images)]),
    }


def memory_bytes() -> float:
    """Return the machine's memory in bytes; infinite if it is not known."""
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (AttributeError, ValueError, OSError):
        return math.inf


def _of_npz(kind: ImageKind, path: Path) -> list[Item]:
    given = load_npz(path, kind.medmnist)
    wanted = {"masks"} if kind.masks else {"labels", "class_names"}
    if absent := sorted(wanted - set(given)):
        raise StudyError(f"Expected in {path} {' and '.join(absent)}, got {', '.join(given)}.")
    count = len(given["images"])
    names = given.get("file_names", [f"row {row}" for row in range(count)])
    items = [
        Item(str(name), pixels, named="file_names" in given)
        for name, pixels in zip(names, given["images"], strict=True)
    ]
    if kind.masks:
        low, high = int(given["masks"].min()), int(given["masks"].max())
        if low < 0 or high > 255:
            raise StudyError(
                f"Expected in {path} masks of values from 0 to 255, got {low} to {high}."
            )
        for item, mask in zip(items, given["masks"], strict=True):
            item.mask = mask.astype(np.uint8)
    else:
        classes = given["class_names"].tolist()
        if sorted(classes) != sorted(kind.class_names):
            raise StudyError(
                f"Expected in {path} class_names with the classes {', '.join(kind.class_names)}, "
                f"got {', '.join(classes)}."
            )
        for item, label in zip(items, given["labels"].tolist(), strict=True):
            if not 0 <= label < len(classes):
                raise StudyError(
                    f"Expected in {path} labels from 0 to {len(classes) - 1}, got {label}."
                )
            item.label = kind.class_names.index(classes[label])
    for item, part in zip(items, given.get("parts", ()), strict=False):
        item.part = PARTS.get(part.strip().lower())
        if item.part is None:
            raise StudyError(f"Expected in {path} parts of {', '.join(PARTS)}, got {str(part)!r}.")
    for item, patient in zip(items, given.get("patient_ids", ()), strict=False):
        item.patient = str(patient)
        if not item.patient:
            raise StudyError(
                f"Expected in {path} a patient for every image, got none of {item.name}."
            )
    return items


# A folder


def _of_folder(kind: ImageKind, root: str, masks: Path | None) -> tuple[list[Item], str]:
    """Return the study's images in a folder, or up to two folders below it.

    The layout nearest to the top counts: Kaggle's OCT data set holds a second copy of itself one
    folder further down.
    """
    level = [root]
    for _ in range(DEEPEST + 1):
        found = {}
        for place in level:
            items = _paired(place, root, masks) if kind.masks else _labelled(kind, place, root)
            if items:
                found[place] = sorted(items, key=lambda item: (item.label or 0, item.name))
        if len(found) > 1:
            places = " and ".join(_relative(place, root) for place in [*found][:2])
            raise StudyError(
                f"Expected the {kind.name} images once in {root}, found them in {places}. "
                "Give the path of one."
            )
        for items in found.values():
            return items, _ignored(items, root)
        level = [entry.path for place in level for entry in _folders(place)]
    inside = _scan(root, lambda entry: True)
    shown = [f"{e.name}/" if e.is_dir() else e.name for e in inside[:SHOWN]]
    more = f" and {len(inside) - SHOWN} more" if len(inside) > SHOWN else ""
    raise StudyError(
        f"Expected in {root}, or up to two folders below it, the {kind.name} layout: "
        f"{kind.layout}. Found {', '.join(shown) or 'an empty folder'}{more}."
    )


def class_folders(folder: Path) -> tuple[str, ...]:
    """Return the names of the subfolders with images, which may lie in train, val and test.

    A folder that holds one folder and nothing else stands for that folder, as after unpacking.
    """
    place = str(folder)
    for _ in range(DEEPEST + 1):
        found: dict[str, str] = {}
        seen: dict[tuple[str, str], str] = {}
        for _, name, path in _class_places(place):
            if _files(path):
                found[_plain(name)] = name
                other = seen.setdefault((os.path.dirname(path), _plain(name)), name)
                if other != name:  # they would be one class
                    raise StudyError(
                        f"Expected folders whose names differ by more than case, blanks, - and _ "
                        f"in {place}, got {other} and {name}. Rename one."
                    )
        inside = _folders(place)
        if found or len(inside) != 1:
            return tuple(sorted(found.values()))
        place = inside[0].path
    return ()


def _class_places(place: str) -> list[tuple[str | None, str, str]]:
    """Return part, name and path of the folders in train, val and test; without them, of all."""
    found: list[tuple[str | None, str, str]] = []
    for entry in _folders(place):
        part = PARTS.get(_plain(entry.name))
        inside = [] if part is None else _folders(entry.path)
        found += [(part, inner.name, inner.path) for inner in inside]
        if not inside:
            found.append((None, entry.name, entry.path))
    return [one for one in found if one[0] is not None] or found


def _labelled(kind: ImageKind, place: str, root: str) -> list[Item]:
    labels = {_plain(name): label for label, name in enumerate(kind.class_names)}
    items = []
    for part, name, path in _class_places(place):
        key = _plain(name)
        label = labels.get(kind.class_aliases.get(key, key))
        for file in () if label is None else _files(path):
            items.append(Item(_relative(file, root), file, label=label, part=part))
    # One class alone does not identify a study: two of the data sets have a Normal.
    return items if len({item.label for item in items}) > 1 else []


def _paired(place: str, root: str, masks: Path | None) -> list[Item]:
    inside = {_plain(entry.name): entry.path for entry in _folders(place)}
    if masks is None and not {"images", "masks"} <= set(inside):
        return []
    of = _by_stem(_files(inside["masks"] if masks is None else str(masks)))
    images = _by_stem(_files(inside.get("images", place)))
    return [Item(_relative(file, root), file, of.get(stem)) for stem, file in images.items()]


def _by_stem(files: Sequence[str]) -> dict[str, str]:
    """Return the files by name without ending, which pairs an image with its mask."""
    found: dict[str, str] = {}
    for file in files:
        other = found.setdefault(Path(file).stem, file)
        if other != file:
            raise StudyError(
                f"Expected one file named {Path(file).stem}, as the name pairs an image with its "
                f"mask, got {other} and {file}. Remove one."
            )
    return found


def _plain(name: str) -> str:
    """Return a name without case, blanks, dashes: "Lung_Opacity", "OCT2017 " (so on Kaggle)."""
    return re.sub(r"[\s_-]+", "", name).lower()


def _folders(place: str) -> list[os.DirEntry[str]]:
    return _scan(place, lambda entry: entry.is_dir())


def _files(place: str) -> list[str]:
    """Return all files named like an image, in the folder or in its subfolder images.

    That includes pipes: reading one raises the right error.
    """
    inner = [entry.path for entry in _folders(place) if _plain(entry.name) == "images"]
    found = _scan(
        inner[0] if inner else place,
        lambda entry: os.path.splitext(entry.name)[1].lower() in IMAGES and not entry.is_dir(),
    )
    return [entry.path for entry in found]


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


def _relative(path: str, root: str) -> str:
    return path.removeprefix(root).lstrip(os.sep).replace(os.sep, "/") or "."


def _ignored(items: Sequence[Item], root: str) -> str:
    """Count the files below ``root`` that are not used, by their ending."""
    used = {path for item in items for path in (item.image, item.mask) if isinstance(path, str)}
    counts: Counter[str] = Counter()
    for place, folders, names in os.walk(root):
        folders[:] = [name for name in folders if not _hidden(name)]
        counts.update(
            os.path.splitext(name)[1].lower() or "without ending"
            for name in names
            if not _hidden(name) and os.path.join(place, name) not in used
        )
    shown = ", ".join(f"{count} {ending}" for ending, count in counts.most_common(SHOWN))
    text = f"{counts.total()} files ignored ({shown})" if counts else ""
    return text.encode(errors="replace").decode()  # ignored names need not be UTF-8
