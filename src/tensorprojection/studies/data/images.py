"""A set of images in memory, with what is known about each."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import InitVar, dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

# What may be known of each image beside its pixels: the fields, and the arrays that are stored.
KNOWN = ("labels", "groups", "names", "parts")
ARRAYS = ("images", "masks", *KNOWN)


@dataclass(frozen=True, eq=False)
class ImageSet:
    """Images and, where known, their labels, masks, patients and names. Row i is image i.

    >>> images = ImageSet(np.zeros((3, 96, 96), np.uint8), labels=np.array([0, 1, 1]),
    ...                   class_names=("NORMAL", "DRUSEN"))
    >>> images
    ImageSet(3 images of 96 × 96, labels: NORMAL 1, DRUSEN 2)
    >>> images.select([2, 0]).labels
    array([1, 0])

    Args:
        images: uint8, ``(N, H, W)`` gray or ``(N, H, W, 3)`` RGB.
        labels: int64, ``(N,)``, indices into ``class_names``.
        masks: uint8, ``(N, H, W)``, 1 where the object is and 0 elsewhere.
        class_names: the classes, in the order of the labels.
        groups: int64, ``(N,)``: images that must not be split apart (one patient's) share a number.
        names: str, ``(N,)``: file names, or whatever tells images apart.
        parts: str, ``(N,)``: "train", "val" or "test", where the data set comes divided.
        checked: the values were checked before, so they need not be read now.
    """

    images: NDArray[np.uint8]
    labels: NDArray[np.int64] | None = None
    masks: NDArray[np.uint8] | None = None
    class_names: tuple[str, ...] = ()
    groups: NDArray[np.int64] | None = None
    names: NDArray[np.str_] | None = None
    parts: NDArray[np.str_] | None = None
    checked: InitVar[bool] = False

    def __post_init__(self, checked: bool) -> None:
        shape = self.images.shape
        if self.images.dtype != np.uint8:
            raise TypeError(f"Expected images of type uint8, got {self.images.dtype}.")
        if not (len(shape) == 3 or (len(shape) == 4 and shape[3] == 3)):
            raise ValueError(f"Expected images of shape (N, H, W) or (N, H, W, 3), got {shape}.")
        for name in ("labels", "groups"):
            self._check_rows(name, (shape[0],), "int64")
        for name in ("names", "parts"):
            self._check_rows(name, (shape[0],), "str")
        self._check_rows("masks", shape[:3], "uint8")
        if not checked:
            self._check_values()

    def _check_rows(self, name: str, shape: tuple[int, ...], dtype: str) -> None:
        array: NDArray[Any] | None = getattr(self, name)
        if array is None:
            return
        if array.shape != shape:
            raise ValueError(
                f"Expected {name} of shape {shape}, one row per image, got {array.shape}."
            )
        if not (array.dtype.kind == "U" if dtype == "str" else array.dtype == dtype):
            raise TypeError(f"Expected {name} of type {dtype}, got {array.dtype}.")

    def _check_values(self) -> None:
        count = len(self.class_names)
        if self.labels is not None and self.labels.size:
            low, high = self.labels.min(), self.labels.max()
            if low < 0 or high >= count:
                raise ValueError(
                    f"Expected labels from 0 to {count - 1}, as there are {count} class names, "
                    f"got {low} to {high}."
                )
        if self.masks is not None and self.masks.size and self.masks.max() > 1:
            raise ValueError(f"Expected masks of 0 and 1 only, got a {self.masks.max()}.")

    def known(self) -> dict[str, NDArray[Any] | None]:
        """What is known of each image, by name; None where it is not."""
        return {name: getattr(self, name) for name in KNOWN}

    def __len__(self) -> int:
        return len(self.images)

    def __repr__(self) -> str:
        size = " × ".join(map(str, self.images.shape[1:]))
        parts = [f"{len(self)} images of {size}"]
        if self.labels is not None:
            counts = np.bincount(self.labels, minlength=len(self.class_names))
            classes = zip(self.class_names, counts, strict=True)
            parts.append("labels: " + ", ".join(f"{name} {count}" for name, count in classes))
        parts += [
            name
            for name in ("masks", "groups", "names", "parts")
            if getattr(self, name) is not None
        ]
        return f"ImageSet({', '.join(parts)})"

    def select(self, indices: Sequence[int] | NDArray[np.integer[Any]]) -> ImageSet:
        """The images of these indices, in this order, with all that is known about them."""
        rows = np.asarray(indices, dtype=np.int64)
        if rows.ndim != 1:
            raise ValueError(f"Expected a flat list of indices, got shape {rows.shape}.")
        return ImageSet(
            self.images[rows],
            masks=None if self.masks is None else self.masks[rows],
            class_names=self.class_names,
            checked=True,
            **rows_of(self.known(), rows),
        )


def rows_of(
    known: Mapping[str, NDArray[Any] | None], rows: NDArray[np.integer[Any]]
) -> dict[str, Any]:
    """The rows of each array that there is."""
    return {name: None if array is None else array[rows] for name, array in known.items()}
