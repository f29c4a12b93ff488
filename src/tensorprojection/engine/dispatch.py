"""Which engine carries out a layer."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from torch import Tensor

from .device.engine import DeviceEngine
from .interface import Engine
from .kernels.kernel_engine import KernelEngine
from .kernels.library import load
from .torch_engine import TORCH

_handed_in: list[Engine] = []


def engine(*Ws: Tensor | None) -> Engine:
    """The engine for a layer with these W's, if any.

    On an accelerator the one by products; elsewhere the compiled kernels, if they were built, which
    leave to torch what they do not serve.
    """
    if _handed_in:
        return _handed_in[-1]
    if DeviceEngine.serves(*Ws):
        return DeviceEngine()
    library = load()
    return TORCH if library is None else KernelEngine(library)


def by_products(*Ws: Tensor | None) -> bool:
    """Whether the U's of these W's are made by products alone, without a wait."""
    if _handed_in:
        return isinstance(_handed_in[-1], DeviceEngine)
    return DeviceEngine.serves(*Ws)


@contextmanager
def use(given: Engine) -> Iterator[None]:
    """Everything called inside uses the given engine: for tests and comparisons."""
    _handed_in.append(given)
    try:
        yield
    finally:
        _handed_in.remove(given)
