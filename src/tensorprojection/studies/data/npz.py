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
from .decode import blank, fit, fit_mask, in_threads
from .kinds import KINDS, Kind, kind_of
from .npz_arrays import NpzArrays
from .splits import subset
from .stored import store_class_names

BLOCK = 256  # images in memory at once
MEDMNIST_PARTS = ("train", "val", "test")
MOST_CLASSES = 100  # of labels without names; more are not labels but something else
# OCTMNIST has numbers only; its own order.
OCTMNIST = ("CNV", "DME", "DRUSEN", "NORMAL")


@dataclass(frozen=True)
class Facts:
    """All that a file says about its images but the pixels; row i is image i."""

    study: str
    count: int
    shape: tuple[int, ...]  # of one image
    arrays: tuple[str, ...]  # the names of the arrays of images, in the order of the rows
    class_names: tuple[str, ...]
    labels: NDArray[np.int64] | None = None
    groups: NDArray[np.int64] | None = None
    names: NDArray[np.str_] | None = None
    parts: NDArray[np.str_] | None = None


def facts(file: NpzArrays, study: str | None = None) -> Facts:
    """Check the arrays against each other, and say what they hold; without a study, guess it."""
    if "images" in file:
        return _plain(file, study)
    if any(f"{part}_images" in file for part in MEDMNIST_PARTS):
        return _medmnist(file, study)
    raise StudyError(
        f"Expected in {file.path} an array images, or MedMNIST's train_images, val_images and "
        f"test_images, got {', '.join(sorted(file.headers)) or 'no arrays'}."
    )


def store_npz(
    path: Path,
    folder: Path,
    study: str,
    size: int,
    *,
    count: int | None = None,
    seed: int = 0,
    workers: int | None = None,
) -> None:
    """Write the images of an ``.npz`` at this size, with what is known about them, as .npy."""
    kind = kind_of(study)
    with NpzArrays(path) as file:
        known = facts(file, study)
        rows = subset(known.labels, known.count, count, seed)
        images = blank(folder / "images.npy", kind.shape(len(rows), size))
        _fill(images, image_blocks(file, known), rows, kind, size, workers)
        if kind.masks:
            masks = blank(folder / "masks.npy", (len(rows), size, size))
            _fill(masks, mask_blocks(file), rows, None, size, workers)
    for name in ("labels", "groups", "names", "parts"):
        array = getattr(known, name)
        if array is not None:
            np.save(folder / f"{name}.npy", array[rows], allow_pickle=False)
    store_class_names(known.class_names, folder)


def image_blocks(file: NpzArrays, known: Facts) -> Iterator[tuple[int, NDArray[Any]]]:
    """All images, block by block, with the number of each block's first row."""
    first = 0
    for name in known.arrays:
        for start, block in file.blocks(name, BLOCK):
            yield first + start, block
        first += file.headers[name].shape[0]


def mask_blocks(file: NpzArrays) -> Iterator[tuple[int, NDArray[np.uint8]]]:
    """The masks as 0 and 255, which is what they look like as images."""
    seen: set[int] = set()
    for start, block in file.blocks("masks", BLOCK):
        seen |= {int(value) for value in np.unique(block)}
        if not (seen <= {0, 1} or seen <= {0, 255}):
            raise StudyError(
                f"Expected masks of 0 and 1, or of 0 and 255, in {file.path}, got the values "
                f"{', '.join(map(str, sorted(seen)[:6]))}."
            )
        yield start, np.where(block > 0, 255, 0).astype(np.uint8)


def _fill(
    out: NDArray[np.uint8],
    blocks: Iterator[tuple[int, NDArray[Any]]],
    rows: NDArray[np.int64],
    kind: Kind | None,  # None: masks
    size: int,
    workers: int | None,
) -> None:
    for start, block in blocks:
        low, high = np.searchsorted(rows, [start, start + len(block)])
        chosen = block[rows[low:high] - start]
        target = out[low:high]

        def one(row: int, chosen: NDArray[Any] = chosen, target: NDArray[Any] = target) -> None:
            picture = Image.fromarray(chosen[row])
            target[row] = fit_mask(picture, size) if kind is None else fit(picture, size, kind.mode)

        in_threads(one, len(chosen), workers, "resizing")


# The plain layout


def _plain(file: NpzArrays, study: str | None) -> Facts:
    shape = _image_shape(file, "images")
    count = shape[0]
    class_names = tuple(map(str, file.array("class_names"))) if "class_names" in file else ()
    study = study or _guess(file, class_names)
    kind = kind_of(study)
    labels = None
    if kind.masks:
        class_names = kind.class_names
        _need(file, "masks", study)
        if file.headers["masks"].shape != shape[:3] or file.headers["masks"].dtype not in (
            np.dtype(np.uint8),
            np.dtype(np.bool_),
        ):
            raise StudyError(
                f"Expected masks of shape {shape[:3]} and type uint8 in {file.path}, "
                f"got {_said(file, 'masks')}."
            )
    else:
        _need(file, "labels", study)
        labels = _whole_numbers(file, "labels", count)
        class_names = _class_names(file, labels, class_names)
    groups = _whole_numbers(file, "patient_ids", count) if "patient_ids" in file else None
    texts = {name: _texts(file, name, count) for name in ("file_names", "parts") if name in file}
    return Facts(
        study,
        count,
        shape[1:],
        ("images",),
        class_names,
        labels,
        groups,
        names=texts.get("file_names"),
        parts=texts.get("parts"),
    )


def _guess(file: NpzArrays, class_names: Sequence[str]) -> str:
    if "masks" in file:
        return "kvasir"
    for study, kind in KINDS.items():
        if set(class_names) == set(kind.class_names):
            return study
    raise StudyError(
        f"Could not tell which study {file.path} is for, as it has neither masks nor the "
        "class_names of one. Name it with --study."
    )


# MedMNIST's


def _medmnist(file: NpzArrays, study: str | None) -> Facts:
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
        _need(file, f"{part}_labels", study or "oct")
    pieces = [
        _whole_numbers(file, f"{part}_labels", n) for part, n in zip(parts, counts, strict=True)
    ]
    labels = np.concatenate(pieces)
    # The four classes and gray are what OCTMNIST has, of all that MedMNIST holds.
    four = bool(labels.size) and set(np.unique(labels).tolist()) <= set(range(len(OCTMNIST)))
    if study is None and not (four and len(shapes[0]) == 3):
        raise StudyError(f"Could not tell which study {file.path} is for. Name it with --study.")
    study = study or "oct"
    if kind_of(study).masks:
        raise StudyError(f"Expected an array masks in {file.path} for {study}, got none.")
    class_names = _class_names(file, labels, OCTMNIST if study == "oct" and four else ())
    return Facts(
        study,
        sum(counts),
        shapes[0][1:],
        arrays,
        class_names,
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
    return shape


def _need(file: NpzArrays, name: str, study: str) -> None:
    if name not in file:
        raise StudyError(f"Expected an array {name} in {file.path} for {study}, got none.")


def _whole_numbers(file: NpzArrays, name: str, count: int) -> NDArray[np.int64]:
    header = file.headers[name]
    if header.shape not in ((count,), (count, 1)) or header.dtype.kind not in "iu":
        raise StudyError(
            f"Expected {name} of shape ({count},) and an integer type in {file.path}, one row an "
            f"image, got {_said(file, name)}."
        )
    return file.array(name).reshape(count).astype(np.int64)


def _texts(file: NpzArrays, name: str, count: int) -> NDArray[np.str_]:
    header = file.headers[name]
    if header.shape != (count,) or header.dtype.kind != "U":
        raise StudyError(
            f"Expected {name} of shape ({count},) and type str in {file.path}, one row an image, "
            f"got {_said(file, name)}."
        )
    return file.array(name)


def _class_names(
    file: NpzArrays, labels: NDArray[np.int64], names: tuple[str, ...]
) -> tuple[str, ...]:
    low, high = int(labels.min()), int(labels.max())
    most = len(names) or MOST_CLASSES
    if low < 0 or high >= most:
        why = f", as there are {most} classes," if names else ""
        raise StudyError(
            f"Expected labels from 0 to {most - 1}{why} in {file.path}, got {low} to {high}."
        )
    return names or tuple(f"class {i}" for i in range(high + 1))


def _said(file: NpzArrays, name: str) -> str:
    return f"{file.headers[name].shape} of {file.headers[name].dtype}"
