"""What the tests of the compiled kernels share."""

import shlex
import shutil
from collections.abc import Callable, Iterator
from os import environ

import pytest
import torch

from tensorprojection import layout
from tensorprojection.compiled import execute, layer, library, polar, program
from tensorprojection.compiled.library import Library


@pytest.fixture
def kernels() -> Library:
    """The package's own library."""
    found = library.load()
    if found is None:
        pytest.skip("the compiled kernels are not there")
    return found


@pytest.fixture(scope="session")
def compiler() -> None:
    command = shlex.split(environ.get("CC", "cc"))
    if not command or shutil.which(command[0]) is None:
        pytest.skip("no C compiler")


@pytest.fixture
def put_in_place(monkeypatch) -> Callable[[Library | None], None]:
    """``put_in_place(library)``: what all modules find in place of the package's own library."""

    def put(found: Library | None) -> None:
        for module in (library, execute, polar, layer):
            monkeypatch.setattr(module, "load", lambda: found)

    return put


@pytest.fixture
def chunks_of(monkeypatch) -> Iterator[Callable[[int], None]]:
    """``chunks_of(n)``: plans of several steps go through a tensor n numbers at a time."""

    def set_size(n: int) -> None:
        monkeypatch.setattr(program, "_CHUNK", n)
        layout._layout.cache_clear()

    yield set_size
    layout._layout.cache_clear()


@pytest.fixture
def with_threads() -> Iterator[Callable]:
    """``with_threads(n, function)``: what the function returns when torch has n threads."""
    before = torch.get_num_threads()

    def run(n: int, function: Callable):
        torch.set_num_threads(n)
        return function()

    yield run
    torch.set_num_threads(before)
