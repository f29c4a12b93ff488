"""A set of images with what is known about each, and a description of a study's images."""

from __future__ import annotations

import hashlib
import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from ..errors import StudyError

Mode = Literal["L", "RGB"]  # Pillow's names for gray and for colour
# The fields of an ImageSet that hold one value per image, with their types.
KNOWN = {"labels": "int64", "groups": "int64", "names": "str", "parts": "str"}
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
        shape, dtype = self.images.shape, self.images.dtype
        if dtype != np.uint8 or not (len(shape) == 3 or (len(shape) == 4 and shape[3] == 3)):
            raise ValueError(
                "Expected images of type uint8 and shape (N, H, W) or (N, H, W, 3), got "
                f"{dtype}, {shape}."
            )
        for name, kind in {"masks": "uint8", **KNOWN}.items():
            array: NDArray[Any] | None = getattr(self, name)
            rows = shape[:3] if name == "masks" else shape[:1]
            if array is not None and not (
                array.shape == rows and array.dtype.name.startswith(kind)
            ):
                raise ValueError(
                    f"Expected {name} of type {kind} and shape {rows}, one row per image, got "
                    f"{array.dtype}, {array.shape}."
                )
        labels, count = self.labels, len(self.class_names)
        if labels is not None and labels.size and not 0 <= labels.min() <= labels.max() < count:
            raise ValueError(
                f"Expected labels from 0 to {count - 1}, as there are {count} class names, "
                f"got {labels.min()} to {labels.max()}."
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
    r"""One study's images: what they are, and where to get them.

    >>> ImageKind("stripes", ("across", "down")).layout
    'a folder for each of across, down, alone or in train, val and test'

    Args:
        name: the study's.
        class_names: the classes, in the order of the labels.
        mode: gray or colour.
        masks: True if the images come with masks, in place of labels.
        phantoms: a function that generates images, ``phantoms(count, seed=…, size=…)``; None if
            there are only real images. The cache's key has the content of its file.
        kaggle: the data set's name there.
        versions: the data set's known versions, by their number of images.
        medmnist: the classes in the order of MedMNIST's file, if it has these images.
        class_aliases: other names of the classes' folders, without case, blanks and dashes.
        patient_pattern: a regular expression for the patient in a file's name, such as
            ``"P(\d+)_"``, which is used if every name has one.
    """

    name: str
    class_names: tuple[str, ...]
    mode: Mode = "L"
    masks: bool = False
    phantoms: Callable[..., ImageSet] | None = None
    kaggle: str | None = None
    versions: Mapping[int, str] = field(default_factory=dict)
    medmnist: tuple[str, ...] = ()
    class_aliases: Mapping[str, str] = field(default_factory=dict)
    patient_pattern: str | None = None

    @property
    def layout(self) -> str:
        """How its folders look, for messages."""
        if self.masks:
            return "folders images and masks, with files of the same names"
        return (
            f"a folder for each of {', '.join(self.class_names)}, alone or in train, val and test"
        )

    def shape(self, count: int, size: int) -> tuple[int, ...]:
        """Return the shape of ``count`` images of ``size × size``."""
        return (count, size, size, 3) if self.mode == "RGB" else (count, size, size)

    def key(self) -> dict[str, Any]:
        """Return everything here that decides which arrays come out of a given source."""
        names = ("name", "class_names", "mode", "masks", "medmnist", "patient_pattern")
        found = {name: getattr(self, name) for name in names}
        return found | {"class_aliases": dict(self.class_aliases)}

    def phantoms_digest(self) -> str:
        """Return the sha256 of the file that defines the phantoms."""
        assert self.phantoms is not None
        try:
            file = inspect.getsourcefile(inspect.unwrap(self.phantoms))
        except TypeError:
            raise StudyError(
                f"Expected phantoms to be a function, got {type(self.phantoms).__name__}."
            ) from None
        return hashlib.sha256(b"" if file is None else Path(file).read_bytes()).hexdigest()
