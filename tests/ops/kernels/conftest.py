"""Fixtures of the tests of the compiled kernels."""

import shlex
import shutil
from collections.abc import Callable, Iterator
from os import environ

import pytest
import torch

from tensorprojection.ops import layout
from tensorprojection.ops.kernels import calls, library
from tensorprojection.ops.kernels.library import Library


@pytest.fixture
def kernels() -> Library:
    """The package's own library."""
    found = library.load()
    if found is None:
        pytest.skip("the compiled kernels are not built")
    return found


@pytest.fixture(scope="session")
def compiler() -> None:
    command = shlex.split(environ.get("CC", "cc"))
    if not command or shutil.which(command[0]) is None:
        pytest.skip("no C compiler")


@pytest.fixture
def chunks_of(monkeypatch) -> Iterator[Callable[[int], None]]:
    """``chunks_of(n)``: plans of several steps go through a tensor n numbers at a time."""

    def set_size(n: int) -> None:
        monkeypatch.setattr(calls, "_CHUNK", n)
        layout._layout.cache_clear()

    yield set_size
    layout._layout.cache_clear()


@pytest.fixture
def with_threads() -> Iterator[Callable]:
    """``with_threads(n, function)``: the function's result when torch has n threads."""
    before = torch.get_num_threads()

    def run(n: int, function: Callable):
        torch.set_num_threads(n)
        return function()

    yield run
    torch.set_num_threads(before)
