"""What a file holds, as a short text: the same content has the same, whatever it is called."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from pathlib import Path

from ..errors import StudyError
from .folders import File
from .regular import open_regular
from .threads import in_threads


def file_digest(path: Path) -> str:
    """sha256 of one file, whole: size and time can be those of another file (``cp -p``)."""
    try:
        with open_regular(path) as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
    except OSError as error:
        raise StudyError(f"Could not read {path}: {error.strerror}.") from error


def files_digest(files: Sequence[File], workers: int | None = None) -> str:
    """sha256 of the names and contents of many files, read side by side."""
    found = [""] * len(files)

    def one(row: int) -> None:
        try:
            with open_regular(files[row].path) as file:
                found[row] = hashlib.file_digest(file, "sha256").hexdigest()
        except OSError as error:  # decoding will say so, or leave the file out
            found[row] = f"unreadable: {error.strerror}"

    in_threads(one, len(files), workers, "comparing with the cache")
    whole = hashlib.sha256()
    for file, digest in sorted(zip(files, found, strict=True), key=lambda pair: pair[0].name):
        whole.update(f"{file.name}\0{digest}\n".encode())
    return whole.hexdigest()
