"""W's and x to z in one node of autograd: the U's and the map together.

Note [One node a layer]
    A layer's step is two dozen small calls around two or three large ones, and every node of
    autograd adds some 50 µs of its own. So a layer that trains is one node. What cannot be one,
    a transform of torch.func, a compiler, a backward pass that is to be differentiated itself,
    gets `polar` and `project` one after the other, which are the same functions.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from .dtypes import cast, has_values, in_transform, map_dtype, no_autocast
from .polar import EpsMode, polar, polar_grad_values, polar_values
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
    x = cast(x, map_dtype(x))
    node: Any = _Node
    with no_autocast(x):
        z: Tensor = node.apply(settings, x, *Ws)
    return z


class _Node(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, settings: Settings, x: Tensor, *Ws: Tensor | None) -> Tensor:
        Us: list[Tensor | None] = [None] * len(Ws)
        spectra: list[Tensor | None] = []
        for k, W in enumerate(Ws):
            spectrum: list[Tensor | None] = [None, None, None]
            if W is not None:
                eps, name = settings.eps[k], settings.names[k]
                Us[k], *spectrum = polar_values(W, eps, settings.relative, x.dtype, name)
            spectra += spectrum
        ctx.settings, ctx.order = settings, len(Ws)
        ctx.save_for_backward(x, *Ws, *Us, *spectra)
        return map_values(x, Us, settings.transposed, x)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Any:
        with no_autocast(grad):  # a backward pass may be called where autocast is on
            return _Node._gradients(ctx, grad)

    @staticmethod
    def _gradients(ctx: Any, grad: Tensor) -> Any:
        x, *rest = ctx.saved_tensors
        order, settings = ctx.order, ctx.settings
        Ws, Us, spectra = rest[:order], rest[order : 2 * order], rest[2 * order :]
        _, want_x, *want_Ws = ctx.needs_input_grad
        if torch.is_grad_enabled() or not can_be_one_node(grad, Ws):
            return None, *_differentiable(ctx, x, grad, Ws)
        if not any(want_Ws):
            return None, map_values(grad, Us, not settings.transposed, x), *[None] * order
        grad_x, *grad_Us = gradient_values(x, grad, Us, settings.transposed, want_x)
        by_mode = iter(grad_Us)
        grad_Ws: list[Tensor | None] = [None] * order
        for k, W in enumerate(Ws):
            if W is None:
                continue
            dU, (G, V, s), eps = next(by_mode), spectra[3 * k : 3 * k + 3], settings.eps[k]
            if want_Ws[k]:
                grad_Ws[k] = polar_grad_values(W, dU, G, V, s, eps, settings.relative)
        return None, grad_x if want_x else None, *grad_Ws


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
