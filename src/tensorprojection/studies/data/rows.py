"""A NumPy file that is filled some rows at a time.

The rows go through plain writes. A memory map would end the process by a signal where the disk is
full; a write raises, and the user gets a sentence.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import DTypeLike, NDArray


def create(path: Path, shape: tuple[int, ...], dtype: DTypeLike) -> None:
    """An array file of this shape, all zero for now."""
    kind = np.dtype(dtype)
    header = {"descr": kind.str, "fortran_order": False, "shape": shape}
    with open(path, "wb") as file:
        np.lib.format.write_array_header_1_0(file, header)
        file.truncate(file.tell() + kind.itemsize * int(np.prod(shape)))


def write(path: Path, start: int, rows: NDArray[Any]) -> None:
    """Put rows into the file, from row ``start`` on."""
    whole = np.load(path, mmap_mode="r", allow_pickle=False)
    end = start + len(rows)
    if rows.dtype != whole.dtype or rows.shape[1:] != whole.shape[1:] or end > len(whole):
        raise ValueError(
            f"Expected rows of an array of {whole.dtype}, {whole.shape}, got {rows.dtype}, "
            f"{rows.shape}, from row {start} on."
        )
    with open(path, "r+b") as file:
        file.seek(whole.offset + start * whole.strides[0])
        file.write(np.ascontiguousarray(rows).data)
