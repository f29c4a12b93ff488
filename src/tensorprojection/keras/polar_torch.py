"""On PyTorch: the functions of the PyTorch layers, and their kernels."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch

from .. import functional
from ..ops.dtypes import cast, derivative_dtype, map_dtype
from ..ops.tracing import is_exporting, outside_jit_trace, without_modes


def polar(W: torch.Tensor, eps: float, relative: bool) -> torch.Tensor:
    return functional.polar(W, eps, eps_mode="relative" if relative else "absolute")


def multilinear(x: torch.Tensor, Us: Sequence[Any], *, transposed: bool) -> torch.Tensor:
    dtype = derivative_dtype(map_dtype(x))
    Us = [None if U is None else cast(U, dtype) for U in Us]
    return functional.back_project(x, Us) if transposed else functional.project(x, Us)


@contextmanager
def outside_trace() -> Iterator[None]:
    # An exporter runs with fake tensors, which have no values.
    with without_modes(), outside_jit_trace(), torch.no_grad():
        yield


def is_traced(x: Any) -> bool:
    return is_exporting() or torch.jit.is_tracing()
