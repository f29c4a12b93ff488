"""What the tests of the compiled kernels share."""

import shlex
import shutil
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from os import environ

import pytest
import torch

from tensorprojection.engine import dispatch, layout
from tensorprojection.engine.kernels import library, program
from tensorprojection.engine.kernels.kernel_engine import KernelEngine
from tensorprojection.engine.kernels.library import Library


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
def put_in_place() -> Iterator[Callable[[Library], None]]:
    """``put_in_place(library)``: what serves in place of the package's own library."""
    with ExitStack() as stack:
        yield lambda found: stack.enter_context(dispatch.use(KernelEngine(found)))


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
