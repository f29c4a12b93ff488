"""Images from ``.npz`` files: plain arrays, or MedMNIST's layout."""

from __future__ import annotations

import math
import os
import zipfile
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from numpy.lib.format import read_magic
from numpy.lib.npyio import NpzFile
from numpy.typing import NDArray

from ..errors import StudyError
from .decode import open_regular
from .folders import PARTS, Dataset, File, Item
from .images import ImageKind, ImageSet

MEDMNIST_PARTS = ("train", "val", "test")
LAYOUT = "an array images, or MedMNIST's train_images, val_images and test_images"
# Errors of zipfile and NumPy for a file that is cut short, encrypted, compressed with an unknown
# method, that holds Python objects, or whose headers claim more memory than there is.
UNREADABLE = (
    *(zipfile.BadZipFile, zlib.error, EOFError, NotImplementedError, RuntimeError),
    *(ValueError, OSError, MemoryError),
)


@contextmanager
def open_npz(path: Path) -> Iterator[NpzFile]:
    """Open an ``.npz`` file whose arrays fit into memory; pickle is never loaded."""
    try:
        with open_regular(path) as raw, NpzFile(raw, allow_pickle=False) as file:
            assert file.zip is not None
            needed = sum(info.file_size for info in file.zip.infolist())
            if needed > (memory := memory_bytes()):
                raise StudyError(
                    f"{path} holds {needed / 1e9:.1f} GB of arrays, but there are "
                    f"{memory / 1e9:.1f} GB of memory. Give a folder of image files instead."
                )
            for info in file.zip.infolist():
                with file.zip.open(info) as member:
                    read_magic(member)  # NumPy would return the bytes of any other file
            yield file
    except UNREADABLE as error:
        reason = getattr(error, "strerror", None) or f"{error}\n".splitlines()[0].rstrip(".")
        raise StudyError(f"Could not read {path} as .npz: {reason}.") from error


def memory_bytes() -> float:
    """Return the machine's memory in bytes; infinite if it is not known."""
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (AttributeError, ValueError, OSError):
        return math.inf


def read_npz(path: Path, kind: ImageKind) -> Dataset:
    """Read all images of a file."""
    with open_npz(path) as file:
        try:
            if "images" in file.files:
                return _plain(file, kind)
            if any(f"{part}_images" in file.files for part in MEDMNIST_PARTS):
                return _medmnist(file, kind)
            raise ValueError(f"Expected {LAYOUT}, got {', '.join(file.files) or 'no arrays'}.")
        except (ValueError, TypeError) as error:
            raise StudyError(f"{path}: {str(error).partition(chr(10))[0]}") from error


def _plain(file: NpzFile, kind: ImageKind) -> Dataset:
    class_names = _class_names(file)
    labels = masks = parts = patients = None
    if kind.masks:
        masks, class_names = _masks(_array(file, "masks")), kind.class_names
    else:
        labels = _numbers(_array(file, "labels"))
        if sorted(class_names) != sorted(kind.class_names):
            raise ValueError(
                f"Expected class_names with the classes {', '.join(kind.class_names)}, got "
                f"{', '.join(class_names) or 'none'}."
            )
    if "parts" in file.files:
        parts = _parts(file["parts"])
    if "patient_ids" in file.files:
        patients = _numbers(file["patient_ids"])
        if patients.dtype.kind not in "iuU":
            raise ValueError(
                f"Expected patient_ids that are whole numbers or str, got {patients.dtype}."
            )
        patients = patients.astype(np.str_)
        if (patients == "").any():
            row = int(np.flatnonzero(patients == "")[0])
            raise ValueError(f"Expected a patient for every image, got none for row {row}.")
    names = file["file_names"] if "file_names" in file.files else None
    images = ImageSet(_pixels(file, "images"), labels, masks, class_names, None, names, parts)
    return _dataset(kind, images, patients)


def _medmnist(file: NpzFile, kind: ImageKind) -> Dataset:
    if not kind.medmnist:
        what = "images and masks" if kind.masks else "images, labels and class_names"
        raise ValueError(f"Expected arrays {what}: MedMNIST has no file of the {kind.name} study.")
    parts = [part for part in MEDMNIST_PARTS if f"{part}_images" in file.files]
    pixels = [_pixels(file, f"{part}_images") for part in parts]
    labels = np.concatenate([_numbers(_array(file, f"{part}_labels")) for part in parts])
    # MedMNIST's files do not name their classes: only the numbers tell other classes apart.
    found = np.unique(labels).tolist()
    if found != list(range(len(kind.medmnist))):
        shown = ", ".join(map(str, found[:12])) + (", …" if len(found) > 12 else "")
        raise ValueError(
            f"Expected MedMNIST's labels for {kind.name}, 0 to {len(kind.medmnist) - 1}, got the "
            f"labels {shown}."
        )
    sizes = [len(some) for some in pixels]
    names = [f"{part}/{i}" for part, n in zip(parts, sizes, strict=True) for i in range(n)]
    images = ImageSet(
        np.concatenate(pixels),
        labels,
        class_names=kind.medmnist,
        names=np.array(names, np.str_),
        parts=np.repeat(np.array(parts), sizes),
    )
    return _dataset(kind, images, None)


def _dataset(kind: ImageKind, images: ImageSet, patients: NDArray[Any] | None) -> Dataset:
    if patients is not None and patients.shape != (len(images),):
        raise ValueError(f"Expected {len(images)} patient_ids, got shape {patients.shape}.")
    items = []
    for row, pixels in enumerate(images.images):
        name = f"row {row}" if images.names is None else str(images.names[row])
        mask = None if images.masks is None else File(f"mask of {name}", pixels=images.masks[row])
        label = None if images.labels is None else int(images.labels[row])
        patient = None if patients is None else str(patients[row])
        part = None if images.parts is None else str(images.parts[row])
        items.append(Item(File(name, pixels=pixels), label, patient, part, mask))
    return Dataset(kind, images.class_names, items, named=images.names is not None)


def _array(file: NpzFile, name: str) -> NDArray[Any]:
    if name not in file.files:
        raise ValueError(f"Expected an array {name}, got {', '.join(file.files)}.")
    array: NDArray[Any] = file[name]
    return array


def _pixels(file: NpzFile, name: str) -> NDArray[np.uint8]:
    array: NDArray[Any] = file[name]
    if array.dtype != np.uint8 or array.ndim not in (3, 4) or 0 in array.shape:
        raise ValueError(
            f"Expected {name} of type uint8 and shape (N, H, W) or (N, H, W, 3), with at least one "
            f"image, got {array.dtype}, {array.shape}."
        )
    return array


def _masks(array: NDArray[Any]) -> NDArray[np.uint8]:
    values = np.unique(array).tolist()
    if not (set(values) <= {0, 1} or set(values) <= {0, 255}):
        raise ValueError(
            "Expected masks of 0 and 1, or of 0 and 255, got the values "
            f"{', '.join(map(str, values[:6]))}."
        )
    return (array > 0).astype(np.uint8)


def _numbers(array: NDArray[Any]) -> NDArray[Any]:
    """Return whole numbers as an ImageSet takes them; MedMNIST has them as a column."""
    flat = array.reshape(-1) if array.ndim == 2 and array.shape[1] == 1 else array
    return flat.astype(np.int64) if flat.dtype.kind in "iu" else flat


def _class_names(file: NpzFile) -> tuple[str, ...]:
    if "class_names" not in file.files:
        return ()
    array: NDArray[Any] = file["class_names"]
    if array.ndim != 1 or array.dtype.kind != "U":
        raise ValueError(
            f"Expected class_names of shape (classes,) and type str, got {array.shape} of "
            f"{array.dtype}."
        )
    return tuple(map(str, array))


def _parts(given: NDArray[Any]) -> NDArray[np.str_]:
    """Return train, val and test for whichever of their names the file uses, as for folders."""
    names = {str(name): PARTS.get(str(name).strip().lower()) for name in np.unique(given)}
    if unknown := [name for name, part in names.items() if part is None]:
        raise ValueError(f"Expected parts of {', '.join(PARTS)}, got {unknown[0]!r}.")
    return np.array([names[str(name)] for name in given.reshape(-1)], np.str_)
