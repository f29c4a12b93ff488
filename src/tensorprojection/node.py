"""W's and x to z in one node of autograd: the U's and the map together.

Note [One node a layer]
    A layer's step is two dozen small calls around two or three large ones, and every node of
    autograd adds some 50 µs of its own. So a layer that trains is one node, and where the compiled
    kernels serve, one call each way. What cannot be one node, a transform of torch.func, a
    compiler, a backward pass that is to be differentiated itself, gets `polar` and `project` one
    after the other, which are the same functions.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from .compiled.layer import Kept, run_backward, run_forward, split
from .dtypes import autocasts, cast, has_values, in_transform, map_dtype, no_autocast
from .eps import EpsMode
from .layout import layout_of
from .polar import polar, polar_grad_values, polar_values
from .project import back_project, gradient_values, map_values, project


class Settings(NamedTuple):
    """What a layer knows besides its W's."""

    transposed: bool
    eps: tuple[float, ...]
    eps_mode: EpsMode
    names: tuple[str, ...]

    @property
    def relative(self) -> bool:
        return self.eps_mode == "relative"


def can_be_one_node(x: Tensor, Ws: Sequence[Tensor | None]) -> bool:
    """Whether nothing looks on that needs to see more than one node."""
    if torch.compiler.is_compiling():
        return False
    tensors = [x, *(W for W in Ws if W is not None)]
    return not in_transform(*tensors) and all(map(has_values, tensors))


def project_by_weights(x: Tensor, Ws: Sequence[Tensor | None], settings: Settings) -> Tensor:
    """The layer's output from its input and its W's, one a mode or None."""
    node: Any = _Node
    z: Tensor
    if not autocasts(x):
        z = node.apply(settings, x, *Ws)
        return z
    x = cast(x, map_dtype(x))
    with no_autocast(x):
        z = node.apply(settings, x, *Ws)
    return z


class _Node(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, settings: Settings, x: Tensor, *Ws: Tensor | None) -> Tensor:
        ctx.settings, ctx.order = settings, len(Ws)
        found = run_forward(x, Ws, settings.eps, settings.relative, settings.transposed)
        ctx.compiled = found is not None
        if found is not None:
            z, kept = found
            ctx.save_for_backward(x, *Ws, *kept)
            return z
        Us, spectra = _values(Ws, settings, x.dtype)
        ctx.save_for_backward(x, *Ws, *Us, *spectra)
        return map_values(x, Us, settings.transposed, x)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Any:
        with no_autocast(grad):  # a backward pass may be called where autocast is on
            return None, *_gradients(ctx, grad)


def _gradients(ctx: Any, grad: Tensor) -> Sequence[Tensor | None]:
    """dL/dx and dL/dW by mode."""
    x, *rest = ctx.saved_tensors
    order, settings, wanted = ctx.order, ctx.settings, ctx.needs_input_grad[1:]
    Ws, kept = rest[:order], rest[order:]
    if torch.is_grad_enabled() or not can_be_one_node(grad, Ws):
        return list(_differentiable(ctx, x, grad, Ws))
    eps, relative, transposed = settings.eps, settings.relative, settings.transposed
    if ctx.compiled and any(wanted[1:]):
        return run_backward(x, grad, Ws, Kept(*kept), eps, relative, transposed, wanted)
    Us = split(Kept(*kept), Ws, layout_of(x, Ws)) if ctx.compiled else kept[:order]
    if not any(wanted[1:]):
        return [map_values(grad, Us, not transposed, x), *[None] * order]
    grad_x, *grad_Us = gradient_values(x, grad, Us, transposed, wanted[0])
    by_mode = iter(grad_Us)
    grad_Ws: list[Tensor | None] = [None] * order
    for k, W in enumerate(Ws):
        if W is None:
            continue
        dU, (G, V, s) = next(by_mode), kept[order + 3 * k : order + 3 * k + 3]
        if wanted[k + 1]:
            grad_Ws[k] = polar_grad_values(W, dU, G, V, s, eps[k], relative)
    return [grad_x if wanted[0] else None, *grad_Ws]


def _values(
    Ws: Sequence[Tensor | None], settings: Settings, dtype: torch.dtype
) -> tuple[list[Tensor | None], list[Tensor | None]]:
    """The U's, and G, V and s of each, by mode."""
    Us: list[Tensor | None] = []
    spectra: list[Tensor | None] = []
    for W, eps, name in zip(Ws, settings.eps, settings.names, strict=True):
        values: Sequence[Tensor | None] = [None] * 4
        if W is not None:
            values = polar_values(W, eps, settings.relative, dtype, name)
        Us.append(values[0])
        spectra += values[1:]
    return Us, spectra


def _differentiable(ctx: Any, x: Tensor, grad: Tensor, Ws: Sequence[Tensor | None]) -> Any:
    """The gradients as differentiable functions of x, grad and the W's."""
    settings: Settings = ctx.settings
    create_graph = torch.is_grad_enabled()
    with torch.enable_grad():
        Us = [
            None if W is None else polar(W, eps, eps_mode=settings.eps_mode, dtype=x.dtype)
            for W, eps in zip(Ws, settings.eps, strict=True)
        ]
        z = back_project(x, Us) if settings.transposed else project(x, Us)
        inputs = [x, *Ws]
        asked = zip(inputs, ctx.needs_input_grad[1:], strict=True)
        wanted = [t for t, want in asked if want and t is not None]
        found = iter(torch.autograd.grad(z, wanted, grad, create_graph=create_graph))
    return [next(found) if want else None for want in ctx.needs_input_grad[1:]]
