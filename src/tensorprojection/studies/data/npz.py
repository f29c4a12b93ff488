"""The two layouts of ``.npz`` files: plain arrays, and MedMNIST's."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from ..errors import StudyError
from . import rows as row_file
from .decode import fit, fit_mask
from .folders import PARTS
from .images import KNOWN, rows_of
from .kinds import ImageKind, missing, require_all, require_names
from .npz_arrays import NpzArrays
from .splits import subset
from .stored import store_known
from .threads import Progress, in_threads

MEDMNIST_PARTS = ("train", "val", "test")


@dataclass(frozen=True)
class Facts:
    """All that a file says about its images except the pixels; row i is image i."""

    kind: ImageKind
    count: int
    shape: tuple[int, ...]  # of one image
    arrays: tuple[str, ...]  # the names of the arrays of images, in the order of the rows
    class_names: tuple[str, ...]
    labels: NDArray[np.int64] | None = None
    groups: NDArray[np.int64] | None = None
    names: NDArray[np.str_] | None = None
    parts: NDArray[np.str_] | None = None
    patients: NDArray[Any] | None = None  # as the file calls them; groups are their numbers

    def missing_classes(self) -> tuple[str, ...]:
        """The classes of which there is no image."""
        if self.labels is None:
            return ()
        return missing(self.class_names, set(np.unique(self.labels).tolist()))


def facts(file: NpzArrays, kinds: Sequence[ImageKind]) -> Facts:
    """Check the arrays against each other, and say what they hold; of several kinds, guess it."""
    if "images" in file:
        return _plain(file, kinds)
    if any(f"{part}_images" in file for part in MEDMNIST_PARTS):
        return _medmnist(file, kinds)
    raise StudyError(
        f"Expected in {file.path} an array images, or MedMNIST's train_images, val_images and "
        f"test_images, got {', '.join(sorted(file.headers)) or 'no arrays'}."
    )


def store_npz(
    path: Path,
    folder: Path,
    kind: ImageKind,
    size: int,
    *,
    count: int | None = None,
    seed: int = 0,
    workers: int | None = None,
    progress: Progress | None = None,
) -> None:
    """Write the images of an ``.npz`` at this size, with what is known about them, as .npy."""
    with NpzArrays(path) as file:
        known = facts(file, [kind])
        require_all(kind, known.missing_classes(), str(path))
        rows = subset(known.labels, known.count, count, seed)
        images, masks = folder / "images.npy", folder / "masks.npy"
        row_file.create(images, kind.shape(len(rows), size), np.uint8)
        _fill(images, image_blocks(file, known), rows, kind, size, workers, progress)
        if kind.masks:
            row_file.create(masks, (len(rows), size, size), np.uint8)
            _fill(masks, mask_blocks(file), rows, None, size, workers, progress)
    what = {name: getattr(known, name) for name in KNOWN}
    store_known(rows_of(what, rows), known.class_names, folder)


def image_blocks(file: NpzArrays, known: Facts) -> Iterator[tuple[int, NDArray[Any]]]:
    """All images, block by block, with the number of each block's first row."""
    first = 0
    for name in known.arrays:
        for start, block in file.blocks(name):
            yield first + start, block
        first += file.headers[name].shape[0]


def mask_blocks(file: NpzArrays) -> Iterator[tuple[int, NDArray[np.uint8]]]:
    """The masks as 0 and 255, which is what they look like as images."""
    seen: set[int] = set()
    for start, block in file.blocks("masks"):
        seen |= {int(value) for value in np.unique(block)}
        if not (seen <= {0, 1} or seen <= {0, 255}):
            raise StudyError(
                f"Expected masks of 0 and 1, or of 0 and 255, in {file.path}, got the values "
                f"{', '.join(map(str, sorted(seen)[:6]))}."
            )
        yield start, np.where(block > 0, 255, 0).astype(np.uint8)


def _fill(
    path: Path,
    blocks: Iterator[tuple[int, NDArray[Any]]],
    rows: NDArray[np.int64],
    kind: ImageKind | None,  # None: masks
    size: int,
    workers: int | None,
    progress: Progress | None,
) -> None:
    what = "masks" if kind is None else "images"
    with row_file.RowFile(path) as out:
        for start, block in blocks:
            low, high = np.searchsorted(rows, [start, start + len(block)])
            chosen = rows[low:high] - start

            def one(
                row: int,
                block: NDArray[Any] = block,
                chosen: NDArray[np.int64] = chosen,
                low: int = int(low),
            ) -> None:
                picture = Image.fromarray(block[chosen[row]])
                fitted = fit_mask(picture, size) if kind is None else fit(picture, size, kind.mode)
                out.write(low + row, fitted[None])

            in_threads(one, len(chosen), workers)
            if progress is not None and len(chosen):
                progress(what, int(high), len(rows))


# The plain layout


def _plain(file: NpzArrays, kinds: Sequence[ImageKind]) -> Facts:
    shape = _image_shape(file, "images")
    count = shape[0]
    kind = kinds[0] if len(kinds) == 1 else _guess(file, kinds)
    labels = None
    if kind.masks:
        class_names = kind.class_names
        _need(file, "masks", kind.name)
        if file.headers["masks"].shape != shape[:3] or file.headers["masks"].dtype not in (
            np.dtype(np.uint8),
            np.dtype(np.bool_),
        ):
            raise StudyError(
                f"Expected masks of shape {shape[:3]} and type uint8 in {file.path}, "
                f"got {_said(file, 'masks')}."
            )
    else:
        _need(file, "labels", kind.name)
        labels = _whole_numbers(file, "labels", count)
        _need(file, "class_names", kind.name)
        class_names = _class_names(file)
        require_names(kind, class_names, str(file.path))
        _check_labels(file, labels, len(class_names))
    patients = _patients(file, count) if "patient_ids" in file else None
    names = _texts(file, "file_names", count) if "file_names" in file else None
    parts = _parts(file, count) if "parts" in file else None
    return Facts(
        kind,
        count,
        shape[1:],
        ("images",),
        class_names,
        labels,
        None if patients is None else _numbered(patients),
        names=names,
        parts=parts,
        patients=patients,
    )


def _guess(file: NpzArrays, kinds: Sequence[ImageKind]) -> ImageKind:
    class_names = _class_names(file) if "class_names" in file else ()
    for kind in kinds:
        if "masks" in file if kind.masks else set(class_names) == set(kind.class_names):
            return kind
    raise StudyError(
        f"Could not tell which study {file.path} is for, as it has neither masks nor the "
        "class_names of one. Name the study."
    )


# MedMNIST's


def _medmnist(file: NpzArrays, kinds: Sequence[ImageKind]) -> Facts:
    # Of several, the one that MedMNIST has; of one, that, whatever it is.
    kind = next((kind for kind in kinds if kind.medmnist), kinds[0])
    parts = [part for part in MEDMNIST_PARTS if f"{part}_images" in file]
    arrays = tuple(f"{part}_images" for part in parts)
    shapes = [_image_shape(file, name) for name in arrays]
    for name, shape in zip(arrays, shapes, strict=True):
        if shape[1:] != shapes[0][1:]:
            raise StudyError(
                f"Expected {name} in {file.path} of the same size as {arrays[0]}, "
                f"{shapes[0][1:]}, got {shape[1:]}."
            )
    counts = [shape[0] for shape in shapes]
    for part in parts:
        _need(file, f"{part}_labels", kind.name)
    pieces = [
        _whole_numbers(file, f"{part}_labels", n) for part, n in zip(parts, counts, strict=True)
    ]
    labels = np.concatenate(pieces)
    if kind.masks:
        raise StudyError(f"Expected an array masks in {file.path} for {kind.name}, got none.")
    if not kind.medmnist:
        raise StudyError(
            f"Expected in {file.path} arrays images, labels and class_names: the {kind.name} study "
            "has none of MedMNIST's files."
        )
    # MedMNIST's files do not name their classes: only the numbers tell that these are other ones.
    found = np.unique(labels).tolist()
    if found != list(range(len(kind.medmnist))):
        shown = ", ".join(map(str, found[:12])) + (", …" if len(found) > 12 else "")
        raise StudyError(
            f"Expected in {file.path} MedMNIST's labels for {kind.name}, 0 to "
            f"{len(kind.medmnist) - 1}, got the labels {shown}."
        )
    return Facts(
        kind,
        sum(counts),
        shapes[0][1:],
        arrays,
        kind.medmnist,
        labels,
        names=np.concatenate(
            [
                np.array([f"{part}/{i}" for i in range(n)], dtype=np.str_)
                for part, n in zip(parts, counts, strict=True)
            ]
        ),
        parts=np.repeat(np.array(parts), counts),
    )


# Checks that both share


def _image_shape(file: NpzArrays, name: str) -> tuple[int, ...]:
    header = file.headers[name]
    shape = header.shape
    if header.dtype != np.uint8:
        raise StudyError(f"Expected {name} of type uint8 in {file.path}, got {header.dtype}.")
    if not (len(shape) == 3 or (len(shape) == 4 and shape[3] == 3)):
        raise StudyError(
            f"Expected {name} of shape (N, H, W) or (N, H, W, 3) in {file.path}, got {shape}."
        )
    if 0 in shape:
        raise StudyError(f"Expected {name} with at least one image in {file.path}, got {shape}.")
    most = Image.MAX_IMAGE_PIXELS  # the same limit as for files of images
    if most is not None and shape[1] * shape[2] > most:
        raise StudyError(
            f"Expected {name} of at most {most} pixels each in {file.path}, got {shape}."
        )
    return shape


def _need(file: NpzArrays, name: str, study: str) -> None:
    if name not in file:
        raise StudyError(f"Expected an array {name} in {file.path} for {study}, got none.")


def _whole_numbers(file: NpzArrays, name: str, count: int) -> NDArray[np.int64]:
    header = file.headers[name]
    if header.shape not in ((count,), (count, 1)) or header.dtype.kind not in "iu":
        raise StudyError(
            f"Expected {name} of shape ({count},) and an integer type in {file.path}, one row per "
            f"image, got {_said(file, name)}."
        )
    return file.array(name).reshape(count).astype(np.int64)


def _texts(file: NpzArrays, name: str, count: int) -> NDArray[np.str_]:
    header = file.headers[name]
    if header.shape != (count,) or header.dtype.kind != "U":
        raise StudyError(
            f"Expected {name} of shape ({count},) and type str in {file.path}, one row per image, "
            f"got {_said(file, name)}."
        )
    return file.array(name)


def _class_names(file: NpzArrays) -> tuple[str, ...]:
    header = file.headers["class_names"]
    if len(header.shape) != 1 or header.dtype.kind != "U":
        raise StudyError(
            f"Expected class_names of shape (classes,) and type str in {file.path}, got "
            f"{_said(file, 'class_names')}."
        )
    return tuple(map(str, file.array("class_names")))


def _check_labels(file: NpzArrays, labels: NDArray[np.int64], classes: int) -> None:
    low, high = int(labels.min()), int(labels.max())
    if low < 0 or high >= classes:
        raise StudyError(
            f"Expected labels from 0 to {classes - 1}, as there are {classes} classes, in "
            f"{file.path}, got {low} to {high}."
        )


def _patients(file: NpzArrays, count: int) -> NDArray[Any]:
    """Numbers or texts; only which images share one matters."""
    header = file.headers["patient_ids"]
    if header.dtype.kind != "U":
        return _whole_numbers(file, "patient_ids", count)
    found = _texts(file, "patient_ids", count)
    if (found == "").any():
        raise StudyError(
            f"Expected a text for every image in patient_ids of {file.path}, got an empty one for "
            f"row {int(np.flatnonzero(found == '')[0])}: it would count as one patient."
        )
    return found


def _numbered(patients: NDArray[Any]) -> NDArray[np.int64]:
    """Numbers as they are; texts by their order."""
    if patients.dtype.kind != "U":
        return patients
    return np.unique(patients, return_inverse=True)[1].astype(np.int64)


def _parts(file: NpzArrays, count: int) -> NDArray[np.str_]:
    """train, val and test, whichever of their names the file uses; as for folders."""
    given = _texts(file, "parts", count)
    names = {str(name): PARTS.get(str(name).strip().lower()) for name in np.unique(given)}
    if unknown := [name for name, part in names.items() if part is None]:
        raise StudyError(
            f"Expected parts of {', '.join(PARTS)} in {file.path}, got {unknown[0]!r}."
        )
    return np.array([names[str(name)] for name in given], np.str_)


def _said(file: NpzArrays, name: str) -> str:
    return f"{file.headers[name].shape} of {file.headers[name].dtype}"
