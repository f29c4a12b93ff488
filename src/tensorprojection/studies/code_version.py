"""Which code trains: a table must not silently compare networks of two versions."""

from __future__ import annotations

import hashlib
from functools import cache
from importlib.metadata import version
from pathlib import Path

from .reference import parse_reference

PACKAGE = Path(__file__).resolve().parents[1]
SOURCES = (".py", ".c", ".h")
STUDY = ", study "  # stands before the digest of a user's own study


@cache
def code_version(study: str | None = None) -> str:
    """This package's version, a digest of its source files, and torch's version.

    For a user's own study, given by its reference, the study's file is part of it as well.
    """
    known = f"{_package_version()} {digest(PACKAGE)}, torch {version('torch')}"
    where = None if study is None else parse_reference(study)
    if where is None:
        return known
    source = where.source()
    content = source.read_bytes() if source is not None and source.is_file() else b""
    return f"{known}{STUDY}{hashlib.sha256(content).hexdigest()[:12]}"


def digest(folder: Path) -> str:
    """A digest of the names and contents of all source files below the folder, in milliseconds."""
    whole = hashlib.sha256()
    for path in sorted(folder.rglob("*")):
        if path.suffix in SOURCES:
            content = hashlib.sha256(path.read_bytes()).hexdigest()
            whole.update(f"{path.relative_to(folder).as_posix()} {content}\n".encode())
    return whole.hexdigest()[:12]


def _package_version() -> str:
    from tensorprojection import __version__

    return __version__
