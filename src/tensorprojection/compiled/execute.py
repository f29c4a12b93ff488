"""Carries out a plan by contract.c: what contract.py does, for float32 on a CPU, by tiles."""

from __future__ import annotations

from ctypes import Array, c_void_p

from torch import Tensor

from ..layout import Layout, Matrices
from .library import Library, load


def run_map(x: Tensor, Us: Matrices, layout: Layout, *, transposed: bool) -> Tensor:
    """The map of x, or its transpose."""
    library = _library()
    assert layout.program is not None
    x = layout.dense(x, large=not transposed)
    z = layout.empty(x, large=transposed)
    held, matrices = pointers(Us, layout)
    program = layout.program.grow if transposed else layout.program.shrink
    threads = layout.program.threads()
    ends = (x.data_ptr(), z.data_ptr())
    check(library.map(library.parallel, threads, program, matrices, transposed, *ends))
    del held
    return z


def run_gradients(
    x: Tensor, grad: Tensor, Us: Matrices, layout: Layout, *, transposed: bool, want_x: bool
) -> tuple[Tensor | None, list[Tensor | None]]:
    """dL/dx, if it is wanted, and dL/dU by mode."""
    library = _library()
    assert layout.program is not None
    X, Z = (grad, x) if transposed else (x, grad)
    X, Z = layout.dense(X, large=True), layout.dense(Z, large=False)
    grad_x = layout.empty(x, large=not transposed) if want_x else None
    grad_Us = [None if U is None else U.new_empty(U.shape) for U in Us]
    held, matrices = pointers(Us, layout)
    _, derivatives = pointers(grad_Us, layout)
    grown = None if transposed or grad_x is None else grad_x.data_ptr()
    shrunk = grad_x.data_ptr() if transposed and grad_x is not None else None
    ends = (X.data_ptr(), Z.data_ptr(), grown, shrunk, derivatives)
    threads = layout.program.threads()
    check(library.pair(library.parallel, threads, layout.program.pair, matrices, *ends))
    del held
    return grad_x, grad_Us


def _library() -> Library:
    library = load()
    assert library is not None
    return library


def pointers(matrices: Matrices, layout: Layout) -> tuple[list[Tensor | None], Array[c_void_p]]:
    """Pointers by axis, and the tensors they point into, which they do not keep alive."""
    held = [None if A is None else A.contiguous() for A in layout.matrices(matrices)]
    to = [None if A is None else A.data_ptr() for A in held]
    return held, (c_void_p * len(to))(*to)


def check(failed: int) -> None:
    if failed:
        raise MemoryError("No memory for the tiles of a projection.")
