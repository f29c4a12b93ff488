"""What each study's images are, wherever they come from."""

from __future__ import annotations

from collections.abc import Container, Sequence
from dataclasses import dataclass
from typing import Literal

from ..errors import StudyError
from .phantoms import chest, oct, polyp  # noqa: A004

Mode = Literal["L", "RGB"]  # Pillow's names for gray and for colour


@dataclass(frozen=True)
class Kind:
    """One study's images: gray or colour, its classes, with masks or labels, and Kaggle's name."""

    mode: Mode
    class_names: tuple[str, ...]
    masks: bool
    kaggle: str

    def shape(self, count: int, size: int) -> tuple[int, ...]:
        """Of ``count`` images of ``size × size``."""
        return (count, size, size, 3) if self.mode == "RGB" else (count, size, size)


KINDS = {
    "oct": Kind("L", oct.CLASS_NAMES, False, "paultimothymooney/kermany2018"),
    "chest": Kind("L", chest.CLASS_NAMES, False, "tawsifurrahman/covid19-radiography-database"),
    "kvasir": Kind("RGB", polyp.CLASS_NAMES, True, "debeshjha1/kvasirseg"),
}


def kind_of(study: str) -> Kind:
    """
    >>> kind_of("oct").class_names
    ('NORMAL', 'CNV', 'DME', 'DRUSEN')
    """
    if study not in KINDS:
        raise StudyError(f"Expected a study of {', '.join(KINDS)}, got {study!r}.")
    return KINDS[study]


# The rules about classes, which a check and a run share


def missing(class_names: Sequence[str], labels: Container[int | None]) -> tuple[str, ...]:
    """The classes without an image.

    >>> missing(("NORMAL", "CNV", "DME"), {0, 2})
    ('CNV',)
    """
    return tuple(name for i, name in enumerate(class_names) if i not in labels)


def require_all(study: str, without_image: Sequence[str], where: str) -> None:
    """A network that never sees a class scores too well on the others."""
    if without_image:
        raise StudyError(
            f"Expected images of {', '.join(kind_of(study).class_names)} in {where}, got none of "
            f"{', '.join(without_image)}."
        )


def require_names(study: str, names: Sequence[str], where: str) -> None:
    """The study's classes, each once, in any order."""
    expected = kind_of(study).class_names
    if sorted(names) != sorted(expected):
        raise StudyError(
            f"Expected images of the classes {', '.join(expected)} in {where}, got "
            f"{', '.join(names) or 'none'}."
        )
