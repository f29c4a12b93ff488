"""Checksums of a folder's files, written with them and compared before they are used again.

CRC-32 in pieces, in parallel: it finds what a disk or a careless edit has damaged, at every start,
at about the speed of reading.
"""

from __future__ import annotations

import json
import os
import zlib
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

SUMS = "sums.json"
PIECE = 2**24  # bytes


def write_sums(folder: Path) -> None:
    """Of all files in the folder and below it."""
    names = sorted(
        os.path.relpath(os.path.join(place, name), folder)
        for place, _, files in os.walk(folder)
        for name in files
    )
    sizes = [(folder / name).stat().st_size for name in names]
    sums = _sums(folder, names, sizes)
    found = {name: [size, *values] for name, size, values in zip(names, sizes, sums, strict=True)}
    (folder / SUMS).write_text(json.dumps(found))


def damage(folder: Path) -> str | None:
    """What is no longer as it was written, as a clause; None where nothing has changed."""
    try:
        known: dict[str, Any] = json.loads((folder / SUMS).read_text())
        names, sizes = list(known), [int(values[0]) for values in known.values()]
    except (OSError, ValueError, TypeError, AttributeError, IndexError):
        return f"{SUMS} is missing or damaged"
    for name, size in zip(names, sizes, strict=True):
        try:
            there = (folder / name).stat().st_size
        except OSError:
            return f"{name} is missing"
        if there != size:
            return f"{name} has {there} bytes, not {size}"
    try:
        sums = _sums(folder, names, sizes)
    except OSError as error:
        return f"{error.filename} cannot be read: {error.strerror}"
    for name, values in zip(names, sums, strict=True):
        if known[name][1:] != values:
            return f"{name} has other content than was written"
    return None


def _sums(folder: Path, names: Sequence[str], sizes: Sequence[int]) -> list[list[int]]:
    """The checksums of each file's pieces."""
    pieces = [
        (row, start)
        for row, size in enumerate(sizes)
        for start in range(0, max(size, 1), PIECE)  # an empty file has one piece
    ]

    def one(piece: tuple[int, int]) -> int:
        row, start = piece
        with open(folder / names[row], "rb", buffering=0) as file:
            file.seek(start)
            total, left = 0, PIECE
            while left and (content := file.read(min(left, 2**20))):
                total, left = zlib.crc32(content, total), left - len(content)
            return total

    found: list[list[int]] = [[] for _ in names]
    with ThreadPoolExecutor(os.cpu_count() or 1) as pool:
        for (row, _), value in zip(pieces, pool.map(one, pieces, chunksize=1), strict=True):
            found[row].append(value)
    return found
