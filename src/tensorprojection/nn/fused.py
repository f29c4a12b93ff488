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
from typing import Any

import torch
from torch import Tensor

from ..algebra.multilinear import map_gradients
from ..algebra.polar import polar, polar_gradient, polar_values
from ..engine.dispatch import engine
from ..engine.dtypes import autocasts, cast, map_dtype, no_autocast
from ..engine.interface import Engine, LayerOptions, SavedForBackward
from ..engine.layout import Matrices
from ..engine.saved import save, saved
from ..engine.tracing import Onlooker, onlooker


def can_be_one_node(*tensors: Tensor | None) -> bool:
    """Whether nobody looks on who needs to see more than one node."""
    return onlooker(*tensors) in (Onlooker.NOBODY, Onlooker.MODE)


def project_by_weights(x: Tensor, Ws: Matrices, options: LayerOptions) -> Tensor:
    """The layer's output from its input and its W's, one per mode or None."""
    node: Any = _Node
    z: Tensor
    if not autocasts(x):
        z = node.apply(options, x, *Ws)
        return z
    x = cast(x, map_dtype(x))
    with no_autocast(x):
        z = node.apply(options, x, *Ws)
    return z


class _Node(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, options: LayerOptions, x: Tensor, *Ws: Tensor | None) -> Tensor:
        used: Engine = engine()
        z, kept = used.forward(x, Ws, options)
        ctx.engine, ctx.options, ctx.order, ctx.context = used, options, len(Ws), kept.context
        save(ctx, x, *Ws, *kept.tensors)
        return z

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Any:
        with no_autocast(grad):  # a backward pass may be called where autocast is on
            return None, *_gradients(ctx, grad)


def _gradients(ctx: Any, grad: Tensor) -> Sequence[Tensor | None]:
    """dL/dx and dL/dW by mode."""
    x, *rest = saved(ctx)
    Ws, kept = rest[: ctx.order], SavedForBackward(tuple(rest[ctx.order :]), ctx.context)
    wanted, options = ctx.needs_input_grad[1:], ctx.options
    if torch.is_grad_enabled() or not can_be_one_node(x, grad, *Ws):
        return _differentiable(x, grad, Ws, options, wanted)
    used: Engine = ctx.engine
    return used.backward(x, grad, Ws, kept, options, wanted)


def _differentiable(
    x: Tensor, grad: Tensor, Ws: Matrices, options: LayerOptions, wanted: Sequence[bool]
) -> list[Tensor | None]:
    """The gradients as differentiable functions of x, grad and the W's.

    They are written out. To ask autograd for them would differentiate through the history of x as
    well, which may lead to the same W's.
    """
    eps, relative, mode = options.eps, options.relative, options.eps_mode
    Us = [
        None if W is None else polar(W, e, eps_mode=mode, dtype=x.dtype, name=name)
        for W, e, name in zip(Ws, eps, options.names, strict=True)
    ]
    grad_x, *grad_Us = map_gradients(x, grad, Us, options.transposed, wanted)
    grad_Ws: list[Tensor | None] = [None] * len(Ws)
    for k, (W, dU) in enumerate(zip(Ws, grad_Us, strict=True)):
        if W is not None and dU is not None:
            _, _, V, s = polar_values(W.detach(), eps[k], relative, x.dtype, options.names[k])
            grad_Ws[k] = polar_gradient(W, dU, V, s, eps[k], relative)
    return [grad_x, *grad_Ws]
