"""The kernels' functions, called with tensors: one function here for each of the library's.

All tensors are plain, dense, float32 and in the host's memory; kernel_engine.py checks that. Every
buffer is created with its type and device given: the defaults are the user's to set.
"""

from __future__ import annotations

from collections.abc import Sequence
from ctypes import Array, c_double, c_void_p
from functools import lru_cache

import torch
from torch import Tensor

from ..interface import LayerOptions, Polar
from ..layout import Layout, Matrices
from ..packed import Packed
from .library import Library
from .program import Program


def run_map(
    library: Library, x: Tensor, Us: Matrices, layout: Layout, *, transposed: bool
) -> Tensor:
    """The map of x, or its transpose."""
    program = _program(layout)
    x = layout.dense(x, large=not transposed)
    z = layout.empty(x, large=transposed)
    held, matrices = _pointers(Us, layout)
    steps = program.grow if transposed else program.shrink
    ends = (x.data_ptr(), z.data_ptr())
    _check(library.map(library.parallel, program.threads(), steps, matrices, transposed, *ends))
    del held
    return z


def run_gradients(
    library: Library,
    x: Tensor,
    grad: Tensor,
    Us: Matrices,
    layout: Layout,
    *,
    transposed: bool,
    want_x: bool,
) -> tuple[Tensor | None, list[Tensor | None]]:
    """dL/dx, if it is wanted, and dL/dU by mode."""
    program = _program(layout)
    X, Z = (grad, x) if transposed else (x, grad)
    X, Z = layout.dense(X, large=True), layout.dense(Z, large=False)
    grad_x = layout.empty(x, large=not transposed) if want_x else None
    grad_Us = [None if U is None else _new(U) for U in Us]
    held, matrices = _pointers(Us, layout)
    _, derivatives = _pointers(grad_Us, layout)
    grown = None if transposed or grad_x is None else grad_x.data_ptr()
    shrunk = grad_x.data_ptr() if transposed and grad_x is not None else None
    ends = (X.data_ptr(), Z.data_ptr(), grown, shrunk, derivatives)
    _check(library.pair(library.parallel, program.threads(), program.pair, matrices, *ends))
    del held
    return grad_x, grad_Us


def run_forward(
    library: Library, x: Tensor, Ws: Matrices, layout: Layout, options: LayerOptions
) -> tuple[Tensor, Packed] | None:
    """z, and the U's and spectra; None where the kernels cannot decompose a W."""
    program = _program(layout)
    x = layout.dense(x, large=not options.transposed)
    z = layout.empty(x, large=options.transposed)
    Us, spectra = _numbers(program.entries), _numbers(program.spectra, dtype=torch.float64)
    held, matrices = _pointers(Ws, layout)
    failed = library.forward(
        library.parallel,
        program.threads(),
        program.grow if options.transposed else program.shrink,
        options.transposed,
        matrices,
        _eps(options.eps, layout.modes),
        options.relative,
        Us.data_ptr(),
        spectra.data_ptr(),
        x.data_ptr(),
        z.data_ptr(),
    )
    del held
    return None if failed else (z, (Us, spectra))


def run_backward(
    library: Library,
    x: Tensor,
    grad: Tensor,
    Ws: Matrices,
    packed: Packed,
    layout: Layout,
    options: LayerOptions,
    wanted: Sequence[bool],
) -> list[Tensor | None]:
    """dL/dx and dL/dW by mode, where they are wanted."""
    program, transposed = _program(layout), options.transposed
    X, Z = (grad, x) if transposed else (x, grad)
    X, Z = layout.dense(X, large=True), layout.dense(Z, large=False)
    grad_x = layout.empty(x, large=not transposed) if wanted[0] else None
    grad_Ws = [
        _new(W) if want and W is not None else None for W, want in zip(Ws, wanted[1:], strict=True)
    ]
    to = None if grad_x is None else grad_x.data_ptr()
    held, matrices = _pointers(Ws, layout)
    _, derivatives = _pointers(grad_Ws, layout)
    Us, spectra = (t.contiguous() for t in packed)
    _check(
        library.backward(
            library.parallel,
            program.threads(),
            program.pair,
            matrices,
            _eps(options.eps, layout.modes),
            options.relative,
            Us.data_ptr(),
            spectra.data_ptr(),
            X.data_ptr(),
            Z.data_ptr(),
            None if transposed else to,
            to if transposed else None,
            derivatives,
        )
    )
    del held
    return [grad_x, *grad_Ws]


def run_polar(library: Library, W: Tensor, eps: float, relative: bool) -> Polar | None:
    """U, G, V and s; None where W is not finite, vanishes, or is large and ill-conditioned."""
    p, q = W.shape
    W = W.detach().contiguous()
    G, V, s = (_numbers(*shape, dtype=torch.float64) for shape in ((q, q), (q, q), (q,)))
    found = Polar(_numbers(p, q), G, V, s)
    results = [t.data_ptr() for t in found]
    threads = torch.get_num_threads()
    failed = library.polar(library.parallel, threads, W.data_ptr(), p, q, eps, relative, *results)
    return None if failed else found


def run_polar_grad(
    library: Library, W: Tensor, grad_U: Tensor, found: Polar, eps: float, relative: bool
) -> Tensor:
    """dL/dW from dL/dU."""
    p, q = W.shape
    given = [t.contiguous() for t in (W.detach(), grad_U.to(torch.float32), *found[1:])]
    dW = _numbers(p, q)
    pointers = [t.data_ptr() for t in given]
    threads, sizes = torch.get_num_threads(), (p, q, eps, relative)
    _check(library.polar_grad(library.parallel, threads, *pointers, *sizes, dW.data_ptr()))
    return dW


def _program(layout: Layout) -> Program:
    assert layout.program is not None
    return layout.program


def _numbers(*shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.empty(shape, dtype=dtype, device="cpu")


def _new(like: Tensor) -> Tensor:
    return _numbers(*like.shape)


def _pointers(matrices: Matrices, layout: Layout) -> tuple[list[Tensor | None], Array[c_void_p]]:
    """Pointers by axis, and the tensors they point into, which they do not keep alive."""
    held = [None if A is None else A.contiguous() for A in layout.matrices(matrices)]
    to = [None if A is None else A.data_ptr() for A in held]
    return held, (c_void_p * len(to))(*to)


@lru_cache(maxsize=1024)
def _eps(eps: tuple[float, ...], modes: tuple[int | None, ...]) -> Array[c_double]:
    """ε by axis."""
    return (c_double * len(modes))(*(0.0 if k is None else eps[k] for k in modes))


def _check(failed: int) -> None:
    if failed:
        raise MemoryError("No memory for the tiles of a projection.")
