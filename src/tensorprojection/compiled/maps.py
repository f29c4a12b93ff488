"""The multilinear map of a few small modes, and its derivatives, by maps.c."""

from __future__ import annotations

from collections.abc import Sequence
from ctypes import c_int64, c_void_p
from math import prod
from typing import NamedTuple

import torch
from torch import Tensor

from .library import load

_ONE_THREAD = 2**14  # numbers for which waking another thread does not pay


class Tiles(NamedTuple):
    """A tensor (left, p_1, …, p_m, right) or (left, q_1, …, q_m, right), and the order of modes."""

    left: int
    p: tuple[int, ...]
    q: tuple[int, ...]
    right: int
    order: tuple[int, ...]


def run_maps(
    tiles: Tiles,
    As: Sequence[Tensor],
    X: Tensor | None = None,
    Z: Tensor | None = None,
    *,
    grown: Tensor | None = None,
    shrunk: Tensor | None = None,
    derivatives: Tensor | None = None,
) -> None:
    """Writes what there is a tensor for: Z grown, X shrunk, the derivatives of <shrunk, Z>.

    Args:
        As: ``p_k × q_k``.
        derivatives: room for those by every A, one after the other.
    """
    library = load()
    assert library is not None
    left, p, q, right, order = tiles
    shape = (c_int64 * (3 + 3 * len(p)))(len(p), left, right, *p, *q, *order)
    # Held by name until the call is over: a pointer does not keep its tensor alive.
    held = [A.contiguous() for A in As]
    X, Z = (None if t is None else t.contiguous() for t in (X, Z))
    pointers = (c_void_p * len(p))(*(A.data_ptr() for A in held))
    few = left * right * prod(p) <= _ONE_THREAD
    results = [None if t is None else t.data_ptr() for t in (X, Z, grown, shrunk, derivatives)]
    threads = 1 if few else torch.get_num_threads()
    if library.maps(library.parallel, threads, shape, pointers, *results):
        raise MemoryError("No memory for the tiles of a projection.")
