"""Which engine serves."""

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
    """For a layer with these W's, or none to speak of.

    On an accelerator that by products; else the compiled kernels where there are any, which leave
    to torch what they do not serve.
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
    """The engine for all that is called inside, for tests and comparisons."""
    _handed_in.append(given)
    try:
        yield
    finally:
        _handed_in.remove(given)
