"""U and its derivative for a small W, by polar.c."""

from __future__ import annotations

import torch
from torch import Tensor

from .library import load, serves

_ENTRIES, _COLUMNS = 4096, 32


def is_small(W: Tensor) -> bool:
    """Whether this is the way for W."""
    if W.ndim != 2 or not serves(W):
        return False
    p, q = W.shape
    return 1 <= q <= _COLUMNS and p * q <= _ENTRIES


def small_polar(
    W: Tensor, eps: float, relative: bool
) -> tuple[Tensor, Tensor, Tensor, Tensor] | None:
    """U, G, V and s; None where W is not finite, or vanishes."""
    library = load()
    assert library is not None
    p, q = W.shape
    W = W.detach().contiguous()
    U = torch.empty(p, q)
    G, V, s = (torch.empty(shape, dtype=torch.float64) for shape in ((q, q), (q, q), (q,)))
    results = [t.data_ptr() for t in (U, G, V, s)]
    failed = library.polar(W.data_ptr(), p, q, eps, relative, *results)
    return None if failed else (U, G, V, s)


def small_polar_grad(
    W: Tensor, grad_U: Tensor, V: Tensor, s: Tensor, eps: float, relative: bool
) -> Tensor:
    """dL/dW from dL/dU."""
    library = load()
    assert library is not None
    p, q = W.shape
    given = [t.contiguous() for t in (W.detach(), grad_U.to(torch.float32), V, s)]
    dW = torch.empty(p, q)
    pointers = [t.data_ptr() for t in given]
    if library.polar_grad(*pointers, p, q, eps, relative, dW.data_ptr()):
        raise MemoryError("No memory for the derivative of U.")
    return dW
