"""Data as a stream of batches: a tensor, an array or a loader, all read the same way."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from math import prod
from typing import Any, TypeAlias

import numpy as np
import torch
from torch import Tensor

from ..errors import ProjectionTypeError, ProjectionValueError
from ..shapes import Shape

Array: TypeAlias = np.ndarray[Any, Any]
Data: TypeAlias = Tensor | Array | Iterable[Any]

# A chunk and what is made of it should stay in the cache; larger ones gain nothing.
CHUNK_BYTES = 8 * 2**20


class Source:
    """A stream of samples that can be read once, or again and again.

    >>> source = Source(torch.zeros(100, 8, 6))
    >>> [tuple(chunk.shape) for chunk in source.chunks()], source.shape
    ([(100, 8, 6)], (8, 6))

    Args:
        data: a tensor or an array with the samples along axis 0, or an iterable of such batches
            (a DataLoader); of a tuple such as ``(x, y)`` the first entry is taken. An array may be
            a memory map: only one chunk of it is in memory at a time.
        transform: called with each batch before anything else.
        in_shape: the shape of one sample, for batches that are flattened, ``(n, prod(in_shape))``.

    Attributes:
        repeatable: whether it can be read more than once; an iterator cannot.
        shape: the shape of one sample, known after the first batch.
    """

    def __init__(
        self,
        data: Data,
        *,
        transform: Callable[[Any], Any] | None = None,
        in_shape: Sequence[int] | None = None,
    ) -> None:
        if not isinstance(data, Tensor | np.ndarray) and not hasattr(data, "__iter__"):
            raise ProjectionTypeError(
                "Expected a tensor, an array or a loader that gives batches of them, "
                f"got {type(data).__name__}."
            )
        self.repeatable = not isinstance(data, Iterator)
        self.shape: Shape | None = None if in_shape is None else tuple(in_shape)
        self._data = data
        self._transform = transform
        self._flat = in_shape is not None
        self._count: int | None = None

    def chunks(self) -> Iterator[Tensor]:
        """The samples, some at a time, as ``(n, *shape)`` tensors in float32 or float64."""
        count = 0
        for batch in self._batches():
            x = self._checked(_first(batch))
            for rows in _split(x):
                if len(rows):
                    count += len(rows)
                    yield _working(rows)
        if self._count not in (None, count):
            raise ProjectionValueError(
                f"Expected data that gives the same samples in every pass, got {self._count} in "
                f"the first and {count} in a later one."
            )
        self._count = count

    def _batches(self) -> Iterator[Any]:
        whole = isinstance(self._data, Tensor | np.ndarray)
        for batch in [self._data] if whole else self._data:
            yield batch if self._transform is None else self._transform(_first(batch))

    def _checked(self, x: Tensor | Array) -> Tensor | Array:
        if x.ndim < 2:
            raise ProjectionValueError(
                "Expected batches of shape (n, p1, ...), samples along the first axis, "
                f"got {tuple(x.shape)}."
            )
        shape = tuple(x.shape[1:])
        if 0 in shape:
            raise ProjectionValueError(f"Expected modes of at least 1, got shape {tuple(x.shape)}.")
        if self.shape is None:
            self.shape = shape
        if shape == self.shape:
            return x
        if self._flat and shape == (prod(self.shape),):
            return x.reshape(len(x), *self.shape)
        raise ProjectionValueError(
            f"Expected every batch to hold samples of one shape, {self.shape}, got {shape}."
        )


def _first(batch: Any) -> Tensor | Array:
    x = batch[0] if isinstance(batch, tuple | list) and len(batch) else batch
    if not isinstance(x, Tensor | np.ndarray):
        raise ProjectionTypeError(
            "Expected batches that are tensors, arrays or tuples (x, ...) of them, "
            f"got {_described(batch)}."
        )
    kind = x.dtype.is_complex if isinstance(x, Tensor) else x.dtype.kind not in "fiub"
    if kind:
        raise ProjectionTypeError(f"Expected real numbers, got {x.dtype}.")
    return x


def _described(batch: Any) -> str:
    name = type(batch).__name__
    if isinstance(batch, tuple | list):
        return f"a {name} of {type(batch[0]).__name__}" if len(batch) else f"an empty {name}"
    return name


def _split(x: Tensor | Array) -> Iterator[Tensor | Array]:
    size = prod(x.shape[1:]) * max(4, x.dtype.itemsize)
    rows = max(1, CHUNK_BYTES // size)
    for start in range(0, len(x), rows):
        yield x[start : start + rows]


def as_tensor(x: Tensor | Array) -> Tensor:
    """An array as a tensor that shares its memory where torch allows that."""
    if isinstance(x, Tensor):
        return x
    native = x.astype(x.dtype.newbyteorder("="), copy=False)
    # torch has no negative strides and warns of memory that it must not write.
    return torch.from_numpy(np.require(native, requirements=["C", "W"]))


def working_dtype(x: Tensor) -> torch.dtype:
    """float64 for float64 and wide integers, else float32, which holds the values exactly."""
    wide = (torch.float64, torch.int32, torch.int64)
    return torch.float64 if x.dtype in wide and x.device.type != "mps" else torch.float32


def _working(rows: Tensor | Array) -> Tensor:
    x = as_tensor(rows).detach()
    return x.to(working_dtype(x))
