"""A NumPy file that is filled some rows at a time.

Its space is reserved before the first row, and the rows go through plain writes. A memory map of a
sparse file would end the process by a signal where the disk is full; these raise, and the user gets
a sentence.
"""

from __future__ import annotations

import errno
import math
import os
from pathlib import Path
from threading import Lock
from typing import Any, Self

import numpy as np
from numpy.typing import DTypeLike, NDArray

from .space import need_disk

# What file systems answer that cannot reserve; rows are then refused when they are written.
CANNOT_RESERVE = (errno.EOPNOTSUPP, errno.EINVAL, errno.ENOSYS)


def create(path: Path, shape: tuple[int, ...], dtype: DTypeLike) -> None:
    """An array file of this shape, all zeros for now, with its disk space reserved."""
    kind = np.dtype(dtype)
    header = {"descr": kind.str, "fortran_order": False, "shape": shape}
    needed = kind.itemsize * math.prod(shape)
    need_disk(needed, path.parent)
    with open(path, "wb") as file:
        np.lib.format.write_array_header_1_0(file, header)
        file.flush()
        _reserve(file.fileno(), file.tell() + needed)


def write(path: Path, start: int, rows: NDArray[Any]) -> None:
    """Put rows into the file, from row ``start`` on."""
    with RowFile(path) as file:
        file.write(start, rows)


class RowFile:
    """A file that :func:`create` made, open for many writes; several threads may write."""

    def __init__(self, path: Path) -> None:
        self._file = open(path, "r+b", buffering=0)  # noqa: SIM115
        try:
            np.lib.format.read_magic(self._file)
            self.shape, _, self.dtype = np.lib.format.read_array_header_1_0(self._file)
        except BaseException:
            self._file.close()
            raise
        self._offset = self._file.tell()
        self._row_bytes = self.dtype.itemsize * math.prod(self.shape[1:])
        self._lock = Lock()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()

    def write(self, start: int, rows: NDArray[Any]) -> None:
        """Put rows into the file, from row ``start`` on."""
        end = start + len(rows)
        if rows.dtype != self.dtype or rows.shape[1:] != self.shape[1:] or end > self.shape[0]:
            raise ValueError(
                f"Expected rows of an array of {self.dtype}, {self.shape}, got {rows.dtype}, "
                f"{rows.shape}, from row {start} on."
            )
        content = np.ascontiguousarray(rows).reshape(-1).view(np.uint8).data
        with self._lock:
            self._file.seek(self._offset + start * self._row_bytes)
            while content:  # a disk that fills up, or a signal, may end a write half way
                content = content[self._file.write(content) :]


def _reserve(handle: int, size: int) -> None:
    if hasattr(os, "posix_fallocate"):
        try:
            os.posix_fallocate(handle, 0, size)
            return
        except OSError as error:
            if error.errno not in CANNOT_RESERVE:
                raise
    os.truncate(handle, size)
