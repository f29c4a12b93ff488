"""A set of images with what is known about each, and a description of a study's images."""

from __future__ import annotations

import hashlib
import inspect
import re
from collections.abc import Callable, Container, Mapping, Sequence
from dataclasses import InitVar, dataclass, field
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from ..errors import StudyError

Mode = Literal["L", "RGB"]  # Pillow's names for gray and for colour
# The fields of an ImageSet that hold one value per image, and all that hold arrays.
KNOWN = ("labels", "groups", "names", "parts")
ARRAYS = ("images", "masks", *KNOWN)


@dataclass(frozen=True, eq=False)
class ImageSet:
    """Images and, where known, their labels, masks, patients and names. Row i is image i.

    >>> images = ImageSet(np.zeros((3, 96, 96), np.uint8), labels=np.array([0, 1, 1]),
    ...                   class_names=("NORMAL", "DRUSEN"))
    >>> images
    ImageSet(3 images of 96 × 96, labels: NORMAL 1, DRUSEN 2)

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
        """Return the labels, groups, names and parts by name; None if there are none."""
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


def rows_of(
    known: Mapping[str, NDArray[Any] | None], rows: NDArray[np.integer[Any]]
) -> dict[str, Any]:
    """The rows of each array that there is."""
    return {name: None if array is None else array[rows] for name, array in known.items()}


@dataclass(frozen=True)
class ImageKind:
    """One study's images: what they are, where to get them, and how their folders look.

    >>> kind = ImageKind("stripes", ("across", "down"))
    >>> kind.layout
    'across, down, each with its images, alone or in train, val and test'

    Args:
        name: the study's.
        class_names: the classes, in the order of the labels.
        mode: gray or colour.
        masks: whether they come with masks, in place of labels.
        phantoms: generates images, ``phantoms(count, seed=…, size=…)``; None where only real ones
            will do.
        phantom_count: how many by default.
        phantoms_version: raised when the phantoms change, so that none of an older kind are used.
            Without one, it is the content of the file that makes them.
        kaggle: the data set's name there.
        layout: how its folders look, for messages.
        class_aliases: other names of the classes' folders, without case, blanks and dashes.
        patient: matches a file's name, with the patient's number as its first group.
        medmnist: the classes in the order of MedMNIST's file, where it has these images.
        mask_folder: where the masks are, if not beside the images' folder.
    """

    name: str
    class_names: tuple[str, ...]
    mode: Mode = "L"
    masks: bool = False
    phantoms: Callable[..., ImageSet] | None = None
    phantom_count: int = 1600
    phantoms_version: int | None = None
    kaggle: str | None = None
    layout: str = ""
    class_aliases: Mapping[str, str] = field(default_factory=dict)
    patient: re.Pattern[str] | None = None
    medmnist: tuple[str, ...] = ()
    mask_folder: str | None = None

    def __post_init__(self) -> None:
        if not self.layout:
            usual = (
                "images and masks, with files of the same names"
                if self.masks
                else f"{', '.join(self.class_names)}, each with its images, alone or in train, val "
                "and test"
            )
            object.__setattr__(self, "layout", usual)

    def shape(self, count: int, size: int) -> tuple[int, ...]:
        """Of ``count`` images of ``size × size``."""
        return (count, size, size, 3) if self.mode == "RGB" else (count, size, size)

    def key(self) -> dict[str, Any]:
        """Everything here that decides which arrays come out of a given source."""
        rule = self.patient
        return {
            "study": self.name,
            "class_names": self.class_names,
            "mode": self.mode,
            "masks": self.masks,
            "class_aliases": dict(self.class_aliases),
            "patient": None if rule is None else [rule.pattern, rule.flags],
            "medmnist": self.medmnist,
        }

    def made_by(self) -> int | str:
        """Return a version of the code that makes phantoms, for the cache's key."""
        if self.phantoms_version is not None:
            return self.phantoms_version
        assert self.phantoms is not None
        source = inspect.getsourcefile(inspect.unwrap(self.phantoms))
        content = Path(source).read_bytes() if source is not None else b""
        return hashlib.sha256(content).hexdigest()


def missing(class_names: Sequence[str], labels: Container[int | None]) -> tuple[str, ...]:
    """The classes without an image.

    >>> missing(("NORMAL", "CNV", "DME"), {0, 2})
    ('CNV',)
    """
    return tuple(name for i, name in enumerate(class_names) if i not in labels)


def require_all(kind: ImageKind, without_image: Sequence[str], where: str) -> None:
    """A network that never sees a class scores too well on the others."""
    if without_image:
        raise StudyError(
            f"Expected images of {', '.join(kind.class_names)} in {where}, got none of "
            f"{', '.join(without_image)}."
        )
