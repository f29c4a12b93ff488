"""Which engine serves."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from .interface import Engine
from .kernels.kernel_engine import KernelEngine
from .kernels.library import load
from .torch_engine import TORCH

_handed_in: list[Engine] = []


def engine() -> Engine:
    """The compiled kernels where there are any, which leave to torch what they do not serve."""
    if _handed_in:
        return _handed_in[-1]
    library = load()
    return TORCH if library is None else KernelEngine(library)


@contextmanager
def use(given: Engine) -> Iterator[None]:
    """The engine for all that is called inside, for tests and comparisons."""
    _handed_in.append(given)
    try:
        yield
    finally:
        _handed_in.remove(given)
