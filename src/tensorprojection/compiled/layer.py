"""A layer's forward and backward pass by layer.c: one call each for the U's and the map."""

from __future__ import annotations

from collections.abc import Sequence
from ctypes import Array, c_double
from functools import lru_cache
from typing import NamedTuple

import torch
from torch import Tensor

from ..layout import Layout, layout_of
from .execute import check, pointers
from .library import load
from .polar import MOST_COLUMNS


class Kept(NamedTuple):
    """What the backward pass needs besides x and the W's, each one after the other by axis."""

    Us: Tensor
    spectra: Tensor  # G, V and s


def run_forward(
    x: Tensor, Ws: Sequence[Tensor | None], eps: tuple[float, ...], relative: bool, transposed: bool
) -> tuple[Tensor, Kept] | None:
    """z, and what to keep; None where this is not the way for these tensors."""
    library = load()
    layout = layout_of(x, Ws)
    program = layout.program
    if library is None or program is None or not all(map(_is_small, Ws)):
        return None
    x = layout.dense(x, large=not transposed)
    z = layout.empty(x, large=transposed)
    kept = Kept(torch.empty(program.entries), torch.empty(program.spectra, dtype=torch.float64))
    held, matrices = pointers(Ws, layout)
    failed = library.forward(
        library.parallel,
        program.threads(),
        program.grow if transposed else program.shrink,
        transposed,
        matrices,
        _eps(eps, layout.modes),
        relative,
        kept.Us.data_ptr(),
        kept.spectra.data_ptr(),
        x.data_ptr(),
        z.data_ptr(),
    )
    del held
    return None if failed else (z, kept)


def run_backward(
    x: Tensor,
    grad: Tensor,
    Ws: Sequence[Tensor | None],
    kept: Kept,
    eps: tuple[float, ...],
    relative: bool,
    transposed: bool,
    wanted: Sequence[bool],
) -> list[Tensor | None]:
    """dL/dx and dL/dW by mode, where they are wanted."""
    library = load()
    layout = layout_of(x, Ws)
    program = layout.program
    assert library is not None
    assert program is not None
    X, Z = (grad, x) if transposed else (x, grad)
    X, Z = layout.dense(X, large=True), layout.dense(Z, large=False)
    grad_x = layout.empty(x, large=not transposed) if wanted[0] else None
    grad_Ws = [
        W.new_empty(W.shape) if want and W is not None else None
        for W, want in zip(Ws, wanted[1:], strict=True)
    ]
    to = None if grad_x is None else grad_x.data_ptr()
    held, matrices = pointers(Ws, layout)
    _, derivatives = pointers(grad_Ws, layout)
    check(
        library.backward(
            library.parallel,
            program.threads(),
            program.pair,
            matrices,
            _eps(eps, layout.modes),
            relative,
            kept.Us.data_ptr(),
            kept.spectra.data_ptr(),
            X.data_ptr(),
            Z.data_ptr(),
            None if transposed else to,
            to if transposed else None,
            derivatives,
        )
    )
    del held
    return [grad_x, *grad_Ws]


def split(kept: Kept, Ws: Sequence[Tensor | None], layout: Layout) -> list[Tensor | None]:
    """The U's by mode."""
    Us: list[Tensor | None] = [None] * len(Ws)
    start = 0
    for k in layout.modes:
        W = None if k is None else Ws[k]
        if k is not None and W is not None:
            Us[k] = kept.Us[start : start + W.numel()].view(W.shape)
            start += W.numel()
    return Us


def _is_small(W: Tensor | None) -> bool:
    return W is None or (W.dtype is torch.float32 and W.shape[1] <= MOST_COLUMNS)


@lru_cache(maxsize=1024)
def _eps(eps: tuple[float, ...], modes: tuple[int | None, ...]) -> Array[c_double]:
    """ε by axis."""
    return (c_double * len(modes))(*(0.0 if k is None else eps[k] for k in modes))
