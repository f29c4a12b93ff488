"""The arrays of an ``.npz`` file, read without trusting what it says about itself."""

from __future__ import annotations

import zipfile
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

import numpy as np
from numpy.lib import format as npy
from numpy.typing import NDArray

from ..errors import StudyError
from .regular import open_regular

BLOCK_ROWS = 256
BLOCK_BYTES = 2**26  # of rows in memory at once, or one row where that is larger
WHOLE_BYTES = 2**28  # of an array that cannot be read in blocks


@dataclass(frozen=True)
class Header:
    """What an array's header says, once it agrees with the space that the array takes."""

    shape: tuple[int, ...]
    fortran: bool
    dtype: np.dtype[Any]

    @property
    def row_bytes(self) -> int:
        return _product(self.shape[1:]) * self.dtype.itemsize


class NpzArrays:
    """The arrays by name. Large ones come in blocks of rows, so memory stays small.

    ``numpy.load`` reads whole arrays only, and sets memory aside for any shape that is claimed.
    Arrays of Python objects would need pickle, which may run code; they are refused.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        with self._readable():
            self._file = open_regular(path)
        try:
            with self._readable():
                self._zip = zipfile.ZipFile(self._file)
            names = [name for name in self._zip.namelist() if name.endswith(".npy")]
            if len(set(names)) < len(names):
                raise StudyError(f"Expected each array once in {path}, got one more than once.")
            self.headers = {name.removesuffix(".npy"): self._header(name) for name in names}
        except BaseException:
            self._file.close()
            raise

    def __enter__(self) -> NpzArrays:
        return self

    def __exit__(self, *_: object) -> None:
        self._zip.close()
        self._file.close()

    def __contains__(self, name: str) -> bool:
        return name in self.headers

    def array(self, name: str) -> NDArray[Any]:
        """A whole array, of bounded size."""
        header = self.headers[name]
        if (size := _product(header.shape) * header.dtype.itemsize) > WHOLE_BYTES:
            order = ", or in C order, so that its rows can be read one by one"
            raise StudyError(
                f"Expected {name} in {self.path} of at most {WHOLE_BYTES} bytes"
                f"{order if header.fortran else ''}, got {size} bytes."
            )
        with self._readable(), self._zip.open(f"{name}.npy") as file:
            array: NDArray[Any] = npy.read_array(file, allow_pickle=False)
            return array

    def whole(self, name: str) -> NDArray[Any]:
        """A whole array of any size, for which there must be memory."""
        header = self.headers[name]
        if header.fortran or not header.shape:
            with self._readable(), self._zip.open(f"{name}.npy") as file:
                array: NDArray[Any] = npy.read_array(file, allow_pickle=False)
                return array
        result = np.empty(header.shape, header.dtype)
        for start, block in self.blocks(name):
            result[start : start + len(block)] = block
        return result

    def blocks(self, name: str) -> Iterator[tuple[int, NDArray[Any]]]:
        """The first row's number and the rows, as many at a time as memory is set aside for."""
        header = self.headers[name]
        count = header.shape[0]
        rows = max(1, min(BLOCK_ROWS, BLOCK_BYTES // max(1, header.row_bytes)))
        if header.fortran:  # its rows do not lie one after the other
            whole = self.array(name)
            for start in range(0, count, rows):
                yield start, whole[start : start + rows]
            return
        with self._readable(), self._zip.open(f"{name}.npy") as file:
            _read_header(file)
            for start in range(0, count, rows):
                shape = (min(rows, count - start), *header.shape[1:])
                wanted = shape[0] * header.row_bytes
                content = file.read(wanted)
                if len(content) != wanted:
                    raise EOFError(f"{name} ends early")
                yield start, np.frombuffer(content, header.dtype).reshape(shape)

    def _header(self, member: str) -> Header:
        name = member.removesuffix(".npy")
        with self._readable():
            info = self._zip.getinfo(member)
            with self._zip.open(info) as file:
                header = _read_header(file)
                begins = file.tell()
        if header.dtype.hasobject:
            raise StudyError(
                f"Expected arrays of numbers or text in {self.path}, got {name} of Python "
                "objects, which are not read: they could run code."
            )
        if _product(header.shape) * header.dtype.itemsize != info.file_size - begins:
            raise StudyError(
                f"Expected {name} in {self.path} to be as large as its header says, {header.shape} "
                f"of {header.dtype}, got {info.file_size - begins} bytes."
            )
        return header

    @contextmanager
    def _readable(self) -> Iterator[None]:
        try:
            yield
        except (
            zipfile.BadZipFile,
            zlib.error,
            EOFError,
            NotImplementedError,  # a compression that zipfile does not know
            RuntimeError,  # encrypted
            ValueError,
            OSError,
        ) as error:
            reason = getattr(error, "strerror", None) or f"{error}\n".splitlines()[0]
            raise StudyError(f"Could not read {self.path} as .npz: {reason}.") from error


def _read_header(file: IO[bytes]) -> Header:
    version = npy.read_magic(file)
    if version == (1, 0):
        return Header(*npy.read_array_header_1_0(file))
    if version == (2, 0):
        return Header(*npy.read_array_header_2_0(file))
    raise ValueError(f"an array has format {version}, which only records need")


def _product(shape: tuple[int, ...]) -> int:
    """Exact, where NumPy's own would run over."""
    result = 1
    for side in shape:
        result *= side
    return result
