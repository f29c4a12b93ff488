"""On PyTorch: the PyTorch layer's own node of autograd, and its kernels."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from ..algebra.multilinear import back_project, project
from ..algebra.polar import polar as _polar
from ..engine import torch_private
from ..engine.dtypes import map_dtype
from ..engine.interface import LayerOptions
from ..engine.tracing import in_jit_trace, is_exported
from ..eps import EpsMode
from ..nn.compiled import project_by_weights as one_node
from ..nn.fused import can_be_one_node


def polar(W: torch.Tensor, eps: float, relative: bool) -> torch.Tensor:
    return _polar(W, eps, eps_mode="relative" if relative else "absolute")


def multilinear(x: torch.Tensor, Us: Sequence[Any], *, transposed: bool) -> torch.Tensor:
    return back_project(x, Us) if transposed else project(x, Us)


def project_by_weights(
    x: torch.Tensor, Ws: Sequence[Any], eps: Sequence[float], eps_mode: EpsMode, *, transposed: bool
) -> torch.Tensor:
    names = tuple(f"W{k}" for k in range(1, len(Ws) + 1))
    if can_be_one_node(x, Ws):
        return one_node(x, Ws, LayerOptions(transposed, tuple(eps), eps_mode, names))
    Us = [
        None if W is None else _polar(W, e, eps_mode=eps_mode, dtype=map_dtype(x), name=name)
        for W, e, name in zip(Ws, eps, names, strict=True)
    ]
    return multilinear(x, Us, transposed=transposed)


def concrete(variable: Any) -> Any:
    # An exporter runs with stand-ins that have no values; real arithmetic is needed here.
    with torch_private.without_modes(), torch.no_grad():
        return variable._value.detach().cpu().numpy()


def is_traced(x: Any) -> bool:
    return is_exported() or in_jit_trace()
