"""U and its derivative for a small W, by polar.c."""

from __future__ import annotations

import torch
from torch import Tensor

from .library import load, serves

MOST_COLUMNS = 64  # beyond, a decomposition of a library is faster


def is_small(W: Tensor) -> bool:
    """Whether this is the way for W."""
    if W.ndim != 2 or not serves(W):
        return False
    return 1 <= W.shape[1] <= MOST_COLUMNS


def small_polar(
    W: Tensor, eps: float, relative: bool
) -> tuple[Tensor, Tensor, Tensor, Tensor] | None:
    """U, G, V and s; None where W is not finite, vanishes, or is large and ill-conditioned."""
    library = load()
    assert library is not None
    p, q = W.shape
    W = W.detach().contiguous()
    U = torch.empty(p, q)
    G, V, s = (torch.empty(shape, dtype=torch.float64) for shape in ((q, q), (q, q), (q,)))
    results = [t.data_ptr() for t in (U, G, V, s)]
    threads = torch.get_num_threads()
    failed = library.polar(library.parallel, threads, W.data_ptr(), p, q, eps, relative, *results)
    return None if failed else (U, G, V, s)


def small_polar_grad(
    W: Tensor, grad_U: Tensor, G: Tensor, V: Tensor, s: Tensor, eps: float, relative: bool
) -> Tensor:
    """dL/dW from dL/dU."""
    library = load()
    assert library is not None
    p, q = W.shape
    given = [t.contiguous() for t in (W.detach(), grad_U.to(torch.float32), G, V, s)]
    dW = torch.empty(p, q)
    pointers = [t.data_ptr() for t in given]
    threads = torch.get_num_threads()
    sizes = (p, q, eps, relative)
    if library.polar_grad(library.parallel, threads, *pointers, *sizes, dW.data_ptr()):
        raise MemoryError("No memory for the derivative of U.")
    return dW
