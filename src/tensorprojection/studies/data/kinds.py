"""What a study's images are, wherever they come from."""

from __future__ import annotations

import hashlib
import inspect
import re
from collections.abc import Callable, Container, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from ..errors import StudyError
from .images import ImageSet

Mode = Literal["L", "RGB"]  # Pillow's names for gray and for colour


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

    @property
    def pixel_bytes(self) -> int:
        """Of a pixel as it is kept, with its mask."""
        return (3 if self.mode == "RGB" else 1) + self.masks

    def made_by(self) -> int | str:
        """What tells phantoms from those that another version of the code makes."""
        if self.phantoms_version is not None:
            return self.phantoms_version
        assert self.phantoms is not None
        source = inspect.getsourcefile(inspect.unwrap(self.phantoms))
        content = Path(source).read_bytes() if source is not None else b""
        return hashlib.sha256(content).hexdigest()


# The rules about classes, which a check and a run share


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


def require_names(kind: ImageKind, names: Sequence[str], where: str) -> None:
    """The study's classes, each once, in any order."""
    expected = kind.class_names
    if sorted(names) != sorted(expected):
        raise StudyError(
            f"Expected images of the classes {', '.join(expected)} in {where}, got "
            f"{', '.join(names) or 'none'}."
        )
