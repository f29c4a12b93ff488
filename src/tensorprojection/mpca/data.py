"""Read data as batches: tensors, arrays, loaders, and features captured inside a model."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from difflib import get_close_matches
from math import prod
from typing import Any, TypeAlias

import numpy as np
import torch
from torch import Tensor, nn

from ..errors import ProjectionTypeError, ProjectionValueError
from ..shapes import Shape

Array: TypeAlias = np.ndarray[Any, Any]
Data: TypeAlias = Tensor | Array | Iterable[Any]

# A chunk and its intermediate results should fit into the processor's cache.
CHUNK_BYTES = 8 * 2**20
# The number of a tensor's samples that run through a model at a time.
BATCH = 64


class Source:
    """A stream of samples.

    >>> source = Source(torch.zeros(100, 8, 6))
    >>> [tuple(chunk.shape) for chunk in source.chunks()], source.shape
    ([(100, 8, 6)], (8, 6))

    Args:
        data: a tensor or an array with the samples along axis 0, or an iterable of such batches
            (a DataLoader). The first entry of a tuple such as ``(x, y)`` is used. An array may be
            a memory map: only one chunk of it is in memory at a time.
        in_shape: the shape of one sample, if batches are flattened to ``(n, prod(in_shape))``.

    Attributes:
        repeatable: True if the data can be read more than once; an iterator cannot.
        shape: the shape of one sample, known after the first batch.
    """

    def __init__(self, data: Data, *, in_shape: Sequence[int] | None = None) -> None:
        if not isinstance(data, Tensor | np.ndarray) and not hasattr(data, "__iter__"):
            raise ProjectionTypeError(
                "Expected a tensor, an array or a loader that gives batches of them, "
                f"got {type(data).__name__}."
            )
        self.repeatable = not isinstance(data, Iterator)
        self.shape: Shape | None = None if in_shape is None else tuple(in_shape)
        self._data = data
        self._is_flat = in_shape is not None
        self._count: int | None = None

    def chunks(self) -> Iterator[Tensor]:
        """Yield the samples as ``(n, *shape)`` tensors in float32 or float64."""
        count = 0
        whole = isinstance(self._data, Tensor | np.ndarray)
        for batch in [self._data] if whole else self._data:
            for rows in split_rows(self._shaped(_first(batch))):
                count += len(rows)
                yield to_working_dtype(as_tensor(rows).detach())
        if self._count not in (None, count):
            raise ProjectionValueError(
                f"Expected data that gives the same samples in every pass, got {self._count} in "
                f"the first and {count} in a later one."
            )
        self._count = count

    def _shaped(self, x: Tensor | Array) -> Tensor | Array:
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
        if self._is_flat and shape == (prod(self.shape),):
            return x.reshape(len(x), *self.shape)
        raise ProjectionValueError(
            f"Expected every batch to hold samples of one shape, {self.shape}, got {shape}."
        )


def _first(batch: Any) -> Tensor | Array:
    """Return the batch itself, or the first entry of a tuple or list."""
    x = batch[0] if isinstance(batch, tuple | list) and len(batch) else batch
    if not isinstance(x, Tensor | np.ndarray):
        name = type(batch).__name__
        if isinstance(batch, tuple | list):
            name = f"a {name} of {type(batch[0]).__name__}" if len(batch) else f"an empty {name}"
        raise ProjectionTypeError(
            f"Expected batches that are tensors, arrays or tuples (x, ...) of them, got {name}."
        )
    if x.dtype.is_complex if isinstance(x, Tensor) else x.dtype.kind not in "fiub":
        raise ProjectionTypeError(f"Expected real numbers, got {x.dtype}.")
    return x


def split_rows(x: Tensor | Array) -> Iterator[Tensor | Array]:
    """Yield the rows of x in chunks of about CHUNK_BYTES."""
    rows = max(1, CHUNK_BYTES // max(1, prod(x.shape[1:]) * max(4, x.dtype.itemsize)))
    for first in range(0, len(x), rows):
        yield x[first : first + rows]


def as_tensor(x: Tensor | Array) -> Tensor:
    """Return an array as a tensor that shares its memory if torch allows that."""
    if isinstance(x, Tensor):
        return x
    native = x.astype(x.dtype.newbyteorder("="), copy=False)
    # torch has no negative strides, and warns about memory that is read-only.
    return torch.from_numpy(np.require(native, requirements=["C", "W"]))


def to_working_dtype(x: Tensor) -> Tensor:
    """Return x as float64 if it is float64 or a wide integer, else as float32."""
    wide = x.dtype in (torch.float64, torch.int32, torch.int64) and x.device.type != "mps"
    return x.to(torch.float64 if wide else torch.float32)


def capture(model: nn.Module, name: str, loader: Tensor | Iterable[Any]) -> Iterable[Tensor]:
    """Return the outputs of one module inside a model, batch by batch.

    >>> model = nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU(), nn.Flatten(), nn.LazyLinear(4))
    >>> features = capture(model, "1", torch.randn(100, 3, 12, 12))
    >>> [tuple(f.shape) for f in features]
    [(64, 8, 10, 10), (36, 8, 10, 10)]

    The model runs in eval mode and without gradients. Its mode is restored after every batch. The
    result can be iterated again if the loader can.

    Args:
        model: any module; batches are moved to the device of its first parameter.
        name: the module's name in ``model.named_modules()``, such as ``"features.7"``. A module
            that is called several times in a forward pass gives several outputs.
        loader: batches of the model's input. The first entry of a tuple such as ``(x, y)`` is used.
            A tensor is split into batches of 64.
    """
    modules = dict(model.named_modules(remove_duplicate=False))
    if name not in modules:
        near = get_close_matches(name, modules, n=5, cutoff=0.4) or [*modules][1:6]
        raise ProjectionValueError(
            f"Expected the name of a module inside {type(model).__name__}, such as "
            f"{', '.join(map(repr, near))}, got {name!r}."
        )
    features = _Features(model, modules[name], loader)
    return iter(features) if isinstance(loader, Iterator) else features


class _Features:
    """An iterable that runs the model again in each iteration."""

    def __init__(self, model: nn.Module, module: nn.Module, loader: Tensor | Iterable[Any]) -> None:
        self._model, self._module, self._loader = model, module, loader

    def __iter__(self) -> Iterator[Tensor]:
        loader = self._loader
        for batch in loader.split(BATCH) if isinstance(loader, Tensor) else loader:
            x = batch[0] if isinstance(batch, tuple | list) and len(batch) else batch
            parameter = next(self._model.parameters(), None)
            if isinstance(x, Tensor) and parameter is not None:
                x = x.to(parameter.device)
            yield from _outputs(self._model, self._module, x)


def _outputs(model: nn.Module, module: nn.Module, x: Any) -> list[Tensor]:
    """Return a module's outputs in one forward pass of the model, which is restored afterwards."""
    outputs: list[Tensor] = []

    def record(_: nn.Module, __: Any, output: Any) -> None:
        first = output[0] if isinstance(output, tuple | list) and len(output) else output
        if not isinstance(first, Tensor):
            raise ProjectionTypeError(
                f"Expected a module that returns a tensor, or a tuple that starts with one, got "
                f"{type(output).__name__}."
            )
        # A later in-place operation, such as ReLU(inplace=True), must not change the copy.
        outputs.append(first.detach().clone())

    modes = {m: m.training for m in model.modules()}
    handle = module.register_forward_hook(record)
    model.eval()
    try:
        with torch.no_grad():
            model(x)
    finally:
        handle.remove()
        for m, training in modes.items():
            m.training = training
    if not outputs:
        raise ProjectionValueError(
            "Expected a module that the model's forward pass calls, got one that it does not call."
        )
    return outputs
