"""Opening files that may not be what their names say."""

from __future__ import annotations

import errno
import os
import stat
from io import BufferedReader
from pathlib import Path

from ..errors import StudyError

MOST_BYTES = 2**29  # of one image's file; the largest of the data sets have a few million

_OTHERS = (
    (stat.S_ISDIR, "a folder"),
    (stat.S_ISFIFO, "a pipe"),
    (stat.S_ISCHR, "a device"),
    (stat.S_ISBLK, "a device"),
    (stat.S_ISSOCK, "a socket"),
)


def open_regular(path: str | Path) -> BufferedReader:
    """The file for reading. A pipe, which would wait for ever, or a device is an OSError.

    What a symbolic link leads to counts, as kagglehub and others keep files behind links.
    """
    _refuse_others(os.stat(path), path)  # before it is opened: some devices act on that alone
    # Without waiting, as a pipe might have come in between; then what was opened is what counts.
    handle = os.open(path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0))
    try:
        _refuse_others(os.fstat(handle), path)
        return os.fdopen(handle, "rb")
    except BaseException:
        os.close(handle)
        raise


def read_regular(path: str | Path, most: int = MOST_BYTES) -> bytes:
    """The whole file, which may have that many bytes at most."""
    with open_regular(path) as file:
        content = file.read(most + 1)
    if len(content) > most:
        raise OSError(errno.EFBIG, f"more than {most} bytes", str(path))
    return content


def what_is(path: Path) -> str | None:
    """ "folder", "file" or "other" (a pipe, a device); None where there is nothing."""
    try:
        str(path).encode()
    except UnicodeEncodeError:
        raise StudyError(
            f"Expected a path in UTF-8, got {os.fsencode(path)!r}. Rename the file or folder."
        ) from None
    try:
        mode = path.stat().st_mode
    except (FileNotFoundError, NotADirectoryError):
        return None
    except (OSError, ValueError) as error:  # such as a name of 300 characters, or one with a NUL
        raise StudyError(
            f"Could not look at {path}: {getattr(error, 'strerror', None) or error}."
        ) from error
    return "folder" if stat.S_ISDIR(mode) else "file" if stat.S_ISREG(mode) else "other"


def _refuse_others(seen: os.stat_result, path: str | Path) -> None:
    if stat.S_ISREG(seen.st_mode):
        return
    kind = next((name for test, name in _OTHERS if test(seen.st_mode)), "something else")
    raise OSError(errno.EINVAL, f"{kind}, not a regular file", str(path))
