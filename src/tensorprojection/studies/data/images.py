"""A set of images with what is known about each, and a description of a study's images."""

from __future__ import annotations

import hashlib
import inspect
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
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
    """Images with their labels, masks, patients and names, if these are known. Row i is image i.

    >>> images = ImageSet(np.zeros((3, 96, 96), np.uint8), labels=np.array([0, 1, 1]),
    ...                   class_names=("NORMAL", "DRUSEN"))
    >>> images
    ImageSet(3 images of 96 × 96, labels: NORMAL 1, DRUSEN 2)

    Args:
        images: uint8, ``(N, H, W)`` gray or ``(N, H, W, 3)`` RGB.
        labels: int64, ``(N,)``, indices into ``class_names``.
        masks: uint8, ``(N, H, W)``, 1 inside the object and 0 outside.
        class_names: the classes, in the order of the labels.
        groups: int64, ``(N,)``: images that must not be split apart (one patient's) share a number.
        names: str, ``(N,)``: file names, or other names that tell images apart.
        parts: str, ``(N,)``: "train", "val" or "test", if the data set comes divided.
    """

    images: NDArray[np.uint8]
    labels: NDArray[np.int64] | None = None
    masks: NDArray[np.uint8] | None = None
    class_names: tuple[str, ...] = ()
    groups: NDArray[np.int64] | None = None
    names: NDArray[np.str_] | None = None
    parts: NDArray[np.str_] | None = None

    def __post_init__(self) -> None:
        shape = self.images.shape
        if self.images.dtype != np.uint8:
            raise TypeError(f"Expected images of type uint8, got {self.images.dtype}.")
        if not (len(shape) == 3 or (len(shape) == 4 and shape[3] == 3)):
            raise ValueError(f"Expected images of shape (N, H, W) or (N, H, W, 3), got {shape}.")
        types = dict(zip(ARRAYS[1:], ("uint8", "int64", "int64", "str", "str"), strict=True))
        for name, dtype in types.items():
            array: NDArray[Any] | None = getattr(self, name)
            rows = shape[:3] if name == "masks" else shape[:1]
            if array is not None and array.shape != rows:
                raise ValueError(
                    f"Expected {name} of shape {rows}, one row per image, got {array.shape}."
                )
            if array is not None and not (
                array.dtype.kind == "U" if dtype == "str" else array.dtype == dtype
            ):
                raise TypeError(f"Expected {name} of type {dtype}, got {array.dtype}.")
        count = len(self.class_names)
        if self.labels is not None and self.labels.size:
            low, high = self.labels.min(), self.labels.max()
            if low < 0 or high >= count:
                raise ValueError(
                    f"Expected labels from 0 to {count - 1}, as there are {count} class names, "
                    f"got {low} to {high}."
                )

    def __len__(self) -> int:
        return len(self.images)

    def __repr__(self) -> str:
        size = " × ".join(map(str, self.images.shape[1:]))
        parts = [f"{len(self)} images of {size}"]
        if self.labels is not None:
            counts = np.bincount(self.labels, minlength=len(self.class_names))
            classes = zip(self.class_names, counts, strict=True)
            parts.append("labels: " + ", ".join(f"{name} {count}" for name, count in classes))
        others = ("masks", "groups", "names", "parts")
        parts += [name for name in others if getattr(self, name) is not None]
        return f"ImageSet({', '.join(parts)})"


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
        masks: True if the images come with masks, in place of labels.
        phantoms: generates images, ``phantoms(count, seed=…, size=…)``; None if there are only
            real images.
        phantom_count: how many by default.
        phantoms_version: raised when the phantoms change, so that cached ones are not used. By
            default it is the content of the file that defines ``phantoms``.
        kaggle: the data set's name there.
        kaggle_note: how Kaggle's images differ from the paper's; ``tpl data get`` prints it.
        versions: the data set's known versions, by their number of images.
        layout: how its folders look, for messages.
        class_aliases: other names of the classes' folders, without case, blanks and dashes.
        patient: matches a file's name, with the patient's number as its first group.
        medmnist: the classes in the order of MedMNIST's file, if MedMNIST has these images.
        mask_folder: the folder of the masks, if it is not beside the images' folder.
    """

    name: str
    class_names: tuple[str, ...]
    mode: Mode = "L"
    masks: bool = False
    phantoms: Callable[..., ImageSet] | None = None
    phantom_count: int = 1600
    phantoms_version: int | None = None
    kaggle: str | None = None
    kaggle_note: str = ""
    versions: Mapping[int, str] = field(default_factory=dict)
    layout: str = ""
    class_aliases: Mapping[str, str] = field(default_factory=dict)
    patient: re.Pattern[str] | None = None
    medmnist: tuple[str, ...] = ()
    mask_folder: str | None = None

    def __post_init__(self) -> None:
        if not self.layout:
            layout = "images and masks, with files of the same names"
            if not self.masks:
                names = ", ".join(self.class_names)
                layout = f"{names}, each with its images, alone or in train, val and test"
            object.__setattr__(self, "layout", layout)

    def shape(self, count: int, size: int) -> tuple[int, ...]:
        """Return the shape of ``count`` images of ``size × size``."""
        return (count, size, size, 3) if self.mode == "RGB" else (count, size, size)

    def key(self) -> dict[str, Any]:
        """Return everything here that decides which arrays come out of a given source."""
        names = ("name", "class_names", "mode", "masks", "class_aliases", "medmnist")
        rule = None if self.patient is None else [self.patient.pattern, self.patient.flags]
        found = {name: getattr(self, name) for name in names}
        return found | {"class_aliases": dict(self.class_aliases), "patient": rule}

    def made_by(self) -> int | str:
        """Return a version of the code that makes phantoms, for the cache's key."""
        if self.phantoms_version is not None:
            return self.phantoms_version
        assert self.phantoms is not None
        made = inspect.unwrap(self.phantoms)
        if not inspect.isroutine(made):
            raise StudyError(
                "Expected phantoms to be a function, whose file is in the cache's key, "
                f"got {type(made).__name__}. Define a function, or set phantoms_version."
            )
        source = inspect.getsourcefile(made)
        content = Path(source).read_bytes() if source is not None else b""
        return hashlib.sha256(content).hexdigest()
