"""Which engine serves."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import lru_cache

from .compiled.engine import KernelEngine
from .compiled.library import Library, load
from .engine import Engine
from .torch_engine import TORCH


@lru_cache(maxsize=8)
def _by_kernels(library: Library) -> KernelEngine:
    return KernelEngine(library)


_handed_in: list[Engine] = []


def engine() -> Engine:
    """The compiled kernels where there are any, which leave to torch what they do not serve."""
    if _handed_in:
        return _handed_in[-1]
    library = load()
    return TORCH if library is None else _by_kernels(library)


@contextmanager
def use(given: Engine) -> Iterator[None]:
    """The engine for all that is called inside, for tests and comparisons."""
    _handed_in.append(given)
    try:
        yield
    finally:
        _handed_in.remove(given)
