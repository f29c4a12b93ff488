"""Where a study is found: by its name, in a file, or in a module.

A reference is a name such as ``oct``, a path such as ``studies/mine.py``, or ``package.module``;
the last two may end with ``:NAME`` where there is more than one study in them.
"""

from __future__ import annotations

import importlib.util
from dataclasses import dataclass
from pathlib import Path

from .errors import StudyError


@dataclass(frozen=True)
class Reference:
    """A user's own study: its file or module, and its name in it."""

    file: Path | None
    module: str | None
    name: str | None

    def __str__(self) -> str:
        where = str(self.file) if self.file is not None else self.module
        return f"{where}:{self.name}" if self.name else str(where)

    def source(self) -> Path | None:
        """The file that holds the study; None where a module has none."""
        if self.file is not None:
            return self.file
        assert self.module is not None
        try:
            found = importlib.util.find_spec(self.module)
        except (ImportError, ValueError):
            return None
        return Path(found.origin) if found is not None and found.origin else None


def parse_reference(text: str) -> Reference | None:
    """The file or module that is meant; None where it is the name of a built-in study.

    >>> parse_reference("oct")
    >>> str(parse_reference("package.studies:MINE"))
    'package.studies:MINE'
    """
    where, colon, name = text.rpartition(":")
    if not colon or not name.isidentifier():
        where, name = text, ""
    if where.endswith(".py"):
        return Reference(Path(where).resolve(), None, name or None)
    if name or "." in where:
        if all(part.isidentifier() for part in where.split(".")):
            return Reference(None, where, name or None)
        raise StudyError(
            f"Expected a study's name, a .py file or package.module:NAME, got {text!r}."
        )
    return None
