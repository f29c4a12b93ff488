"""Images from ``.npz`` files: plain arrays, or MedMNIST's layout."""

from __future__ import annotations

import math
import os
import zipfile
import zlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from numpy.lib import format as npy
from numpy.lib.npyio import NpzFile
from numpy.typing import NDArray

from ..errors import StudyError
from .decode import open_regular
from .folders import PARTS
from .images import ImageKind, ImageSet

MEDMNIST_PARTS = ("train", "val", "test")
LAYOUT = "an array images, or MedMNIST's train_images, val_images and test_images"


@contextmanager
def open_npz(path: Path) -> Iterator[NpzFile]:
    """Open an ``.npz`` file whose arrays are as large as they claim, and fit into memory.

    ``numpy.load`` alone would allocate memory for any shape that a header claims. Arrays of Python
    objects would need pickle, which may run code; they are refused.
    """
    try:
        with open_regular(path) as raw, NpzFile(raw, allow_pickle=False) as file:
            assert file.zip is not None
            _check_headers(path, file.zip)
            yield file
    except (
        zipfile.BadZipFile,
        zlib.error,
        EOFError,
        NotImplementedError,  # a compression that zipfile does not know
        RuntimeError,  # encrypted
        ValueError,
        OSError,
    ) as error:
        reason = getattr(error, "strerror", None) or f"{error}\n".splitlines()[0]
        raise StudyError(f"Could not read {path} as .npz: {reason}.") from error


def _check_headers(path: Path, archive: zipfile.ZipFile) -> None:
    members = [info for info in archive.infolist() if info.filename.endswith(".npy")]
    if len({info.filename for info in members}) < len(members):
        raise StudyError(f"Expected each array once in {path}, got one more than once.")
    for info in members:
        name = info.filename.removesuffix(".npy")
        with archive.open(info) as file:
            newer = npy.read_magic(file) != (1, 0)
            read_header = npy.read_array_header_2_0 if newer else npy.read_array_header_1_0
            shape, _, dtype = read_header(file)
            size = info.file_size - file.tell()
        if dtype.hasobject:
            raise StudyError(
                f"Expected arrays of numbers or text in {path}, got {name} of Python objects, "
                "which are not read: they could run code."
            )
        if math.prod(shape) * dtype.itemsize != size:
            raise StudyError(
                f"Expected {name} in {path} to be as large as its header says, {shape} of {dtype}, "
                f"got {size} bytes."
            )
    needed, memory = sum(info.file_size for info in members), memory_bytes()
    if needed > memory:
        raise StudyError(
            f"{path} holds {needed / 1e9:.1f} GB of arrays, but there are {memory / 1e9:.1f} GB of "
            "memory. Give a folder of image files instead."
        )


def memory_bytes() -> float:
    """Return the machine's memory in bytes; infinite if it is not known."""
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (AttributeError, ValueError, OSError):
        return math.inf


def read_npz(path: Path, kinds: Sequence[ImageKind]) -> tuple[ImageKind, ImageSet, list[str]]:
    """Read all images of a file; of several kinds, guess which they are.

    Returns:
        the kind, the images at the file's own size, and the patients as the file calls them,
        empty without any.
    """
    with open_npz(path) as file:
        try:
            if "images" in file.files:
                return _plain(path, file, kinds)
            if any(f"{part}_images" in file.files for part in MEDMNIST_PARTS):
                return (*_medmnist(path, file, kinds), [])
        except (ValueError, TypeError) as error:  # of an ImageSet: arrays do not fit each other
            raise StudyError(f"{path}: {error}") from error
        got = ", ".join(sorted(file.files)) or "no arrays"
        raise StudyError(f"Expected in {path} {LAYOUT}, got {got}.")


def _plain(
    path: Path, file: NpzFile, kinds: Sequence[ImageKind]
) -> tuple[ImageKind, ImageSet, list[str]]:
    class_names = _class_names(path, file) if "class_names" in file.files else ()
    kind = kinds[0] if len(kinds) == 1 else _guess(path, file, class_names, kinds)
    labels = masks = None
    if kind.masks:
        masks, class_names = _masks(path, _array(path, file, "masks", kind)), kind.class_names
    else:
        labels = _numbers(_array(path, file, "labels", kind))
        _array(path, file, "class_names", kind)
        if sorted(class_names) != sorted(kind.class_names):
            raise StudyError(
                f"Expected images of the classes {', '.join(kind.class_names)} in {path}, got "
                f"{', '.join(class_names) or 'none'}."
            )
    patients = _numbers(file["patient_ids"]) if "patient_ids" in file.files else None
    groups = patients
    if patients is not None and patients.dtype.kind == "U":
        if (patients == "").any():
            row = int(np.flatnonzero(patients == "")[0])
            raise StudyError(
                f"Expected a patient for every image in {path}, got none for row {row}."
            )
        groups = np.unique(patients, return_inverse=True)[1].astype(np.int64)
    images = ImageSet(
        _pixels(path, file, "images"),
        labels,
        masks,
        class_names,
        groups,
        file["file_names"] if "file_names" in file.files else None,
        _parts(path, file["parts"]) if "parts" in file.files else None,
    )
    return kind, images, [] if patients is None else [str(patient) for patient in patients]


def _guess(
    path: Path, file: NpzFile, class_names: Sequence[str], kinds: Sequence[ImageKind]
) -> ImageKind:
    for kind in kinds:
        if "masks" in file.files if kind.masks else set(class_names) == set(kind.class_names):
            return kind
    raise StudyError(
        f"Could not tell which study {path} is for, as it has neither masks nor the class_names of "
        "one. Name the study."
    )


def _medmnist(path: Path, file: NpzFile, kinds: Sequence[ImageKind]) -> tuple[ImageKind, ImageSet]:
    kind = next((kind for kind in kinds if kind.medmnist), kinds[0])
    if not kind.medmnist:
        what = "images and masks" if kind.masks else "images, labels and class_names"
        raise StudyError(
            f"Expected in {path} arrays {what}: MedMNIST has no file of the {kind.name} study."
        )
    parts = [part for part in MEDMNIST_PARTS if f"{part}_images" in file.files]
    pixels = [_pixels(path, file, f"{part}_images") for part in parts]
    labels = [_numbers(_array(path, file, f"{part}_labels", kind)) for part in parts]
    names = [
        f"{part}/{i}" for part, some in zip(parts, pixels, strict=True) for i in range(len(some))
    ]
    # MedMNIST's files do not name their classes: only the numbers tell that these are other ones.
    found = np.unique(np.concatenate(labels)).tolist()
    if found != list(range(len(kind.medmnist))):
        shown = ", ".join(map(str, found[:12])) + (", …" if len(found) > 12 else "")
        raise StudyError(
            f"Expected in {path} MedMNIST's labels for {kind.name}, 0 to {len(kind.medmnist) - 1}, "
            f"got the labels {shown}."
        )
    return kind, ImageSet(
        np.concatenate(pixels),
        np.concatenate(labels),
        class_names=kind.medmnist,
        names=np.array(names, np.str_),
        parts=np.repeat(np.array(parts), [len(some) for some in pixels]),
    )


def _array(path: Path, file: NpzFile, name: str, kind: ImageKind) -> NDArray[Any]:
    if name not in file.files:
        raise StudyError(f"Expected an array {name} in {path} for {kind.name}, got none.")
    array: NDArray[Any] = file[name]
    return array


def _pixels(path: Path, file: NpzFile, name: str) -> NDArray[np.uint8]:
    array: NDArray[Any] = file[name]
    shape = array.shape
    if array.dtype != np.uint8 or not (len(shape) == 3 or (len(shape) == 4 and shape[3] == 3)):
        raise StudyError(
            f"Expected {name} of type uint8 and shape (N, H, W) or (N, H, W, 3) in {path}, got "
            f"{array.dtype}, {shape}."
        )
    if 0 in shape:
        raise StudyError(f"Expected {name} with at least one image in {path}, got {shape}.")
    return array


def _masks(path: Path, array: NDArray[Any]) -> NDArray[np.uint8]:
    values = np.unique(array).tolist()
    if not (set(values) <= {0, 1} or set(values) <= {0, 255}):
        raise StudyError(
            f"Expected masks of 0 and 1, or of 0 and 255, in {path}, got the values "
            f"{', '.join(map(str, values[:6]))}."
        )
    return (array > 0).astype(np.uint8)


def _numbers(array: NDArray[Any]) -> NDArray[Any]:
    """Return whole numbers as an ImageSet takes them; MedMNIST has them as a column."""
    flat = array.reshape(-1) if array.ndim == 2 and array.shape[1] == 1 else array
    return flat.astype(np.int64) if flat.dtype.kind in "iu" else flat


def _class_names(path: Path, file: NpzFile) -> tuple[str, ...]:
    array: NDArray[Any] = file["class_names"]
    if array.ndim != 1 or array.dtype.kind != "U":
        raise StudyError(
            f"Expected class_names of shape (classes,) and type str in {path}, got {array.shape} "
            f"of {array.dtype}."
        )
    return tuple(map(str, array))


def _parts(path: Path, given: NDArray[Any]) -> NDArray[np.str_]:
    """Return train, val and test for whichever of their names the file uses, as for folders."""
    names = {str(name): PARTS.get(str(name).strip().lower()) for name in np.unique(given)}
    if unknown := [name for name, part in names.items() if part is None]:
        raise StudyError(f"Expected parts of {', '.join(PARTS)} in {path}, got {unknown[0]!r}.")
    return np.array([names[str(name)] for name in given.reshape(-1)], np.str_)
