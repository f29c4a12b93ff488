"""Augmented copies of a set of images, made once and kept on disk."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..errors import StudyError
from . import rows as row_file
from .augment import Augmentation, augment, draw
from .cache import about, cached
from .images import ImageSet, rows_of
from .space import need_memory
from .stored import open_array, open_stored, save_array, store_known

CHUNK = 16  # images in memory at once; more are slower, as they leave the processor's cache

MOST_COPIES = 10_000  # of each original


@dataclass(frozen=True, eq=False)
class Copies:
    """Copies, the original of each, and where they are kept.

    Args:
        images: the copies, memory-mapped, with the labels, groups and names of their originals.
        of: int64, ``(M,)``: the row of each copy's original.
        folder: the cache's folder.
    """

    images: ImageSet
    of: NDArray[np.int64]
    folder: Path

    def __len__(self) -> int:
        return len(self.of)


def make_copies(
    folder_of_originals: Path,
    images: ImageSet,
    copies: Mapping[str, int] | int,
    augmentation: Augmentation,
    seed: int,
    cache: Path | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> Copies:
    """The copies of these images, from the cache where they were made before.

    An image's copies depend on its row, the seed and the augmentation only: the first two of seven
    are the same as both of two.

    Args:
        folder_of_originals: the cache's folder of ``images``; its name stands for their content.
        images: the originals.
        copies: how many of each image, or of each image of a class by the class's name.
        augmentation: how far they may differ from the original.
        seed: another seed gives other copies.
        cache: where caches go; default the user's.
        progress: called with the number of copies made and to make.
    """
    numbers = _numbers(images, copies)
    need_memory(24 * int(numbers.sum()), f"the list of {int(numbers.sum())} copies")
    of = np.repeat(np.arange(len(images)), numbers)

    def make(folder: Path) -> None:
        _fill(folder, images, of, augmentation, seed, progress)

    key = {
        "originals": folder_of_originals.name,
        "shape": images.images.shape,
        "copies": copies if isinstance(copies, int) else dict(copies),
        "augmentation": asdict(augmentation),
        "seed": seed,
    }
    return open_copies(cached("copies", key, make, cache, about(folder_of_originals)))


def open_copies(folder: Path) -> Copies:
    """Copies made before, in this folder; nothing is read yet."""
    of = open_array(folder / "of.npy")
    return Copies(open_stored(folder), of, folder)


def rows_for(copies: Copies, rows: Sequence[int] | NDArray[np.integer[Any]]) -> NDArray[np.int64]:
    """The rows of all copies whose original is among these rows: what training may see."""
    return np.flatnonzero(np.isin(copies.of, np.asarray(rows, np.int64)))


def _numbers(images: ImageSet, copies: Mapping[str, int] | int) -> NDArray[np.int64]:
    """How many copies each image gets."""
    given = [copies] if isinstance(copies, int) else list(copies.values())
    if any(number < 0 for number in given):
        raise ValueError(f"Expected a number of copies ≥ 0, got {min(given)}.")
    if any(number > MOST_COPIES for number in given):
        raise StudyError(f"Expected at most {MOST_COPIES} copies of each image, got {max(given)}.")
    if isinstance(copies, int):
        return np.full(len(images), copies, np.int64)
    if images.labels is None or set(copies) != set(images.class_names):
        raise ValueError(
            f"Expected a number of copies for each of the classes {', '.join(images.class_names)}, "
            f"got {', '.join(copies)}."
        )
    return np.array([copies[name] for name in images.class_names], np.int64)[images.labels]


def _fill(
    folder: Path,
    images: ImageSet,
    of: NDArray[np.int64],
    augmentation: Augmentation,
    seed: int,
    progress: Callable[[int, int], None] | None,
) -> None:
    # First what needs most: a disk that cannot hold it is found before anything is written.
    row_file.create(folder / "images.npy", (len(of), *images.images.shape[1:]), np.uint8)
    if images.masks is not None:
        row_file.create(folder / "masks.npy", (len(of), *images.masks.shape[1:]), np.uint8)
    save_array(of, folder / "of.npy")
    store_known(rows_of(images.known(), of), images.class_names, folder)

    copy = np.arange(len(of)) - np.searchsorted(of, of)  # 0, 1, … within each original
    for start in range(0, len(of), CHUNK):
        rows = of[start : start + CHUNK]
        changes = [
            draw(augmentation, seed, int(i), int(k))
            for i, k in zip(rows, copy[start : start + CHUNK], strict=True)
        ]
        masks = None if images.masks is None else images.masks[rows]
        made, made_masks = augment(images.images[rows], masks, changes)
        row_file.write(folder / "images.npy", start, made)
        if made_masks is not None:
            row_file.write(folder / "masks.npy", start, made_masks)
        if progress is not None:
            progress(start + len(rows), len(of))
