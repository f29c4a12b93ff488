"""W's and x to z in one node of autograd: the U's and the map together.

Note [One node per layer]
    A layer's step is two dozen small calls around two or three large ones, and every node of
    autograd adds some 50 µs of its own. So a layer that trains is one node, and where the compiled
    kernels serve, one call each way. A compiler sees one opaque operator each way (layer_ops.py);
    Dynamo, the whole as one operator (compiled.py), so that it never follows what is here.
    What cannot be one node, a transform of torch.func, an exporter, a backward pass that is to be
    differentiated itself, gets `polar` and `project` one after the other, which are the same
    functions.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from ..algebra.multilinear import map_gradients
from ..algebra.polar import polar, polar_gradient, polar_values
from ..engine.device.polar import polar_gradient_by_products
from ..engine.dispatch import by_products, engine
from ..engine.dtypes import autocasts, cast, has_float64, map_dtype, no_autocast
from ..engine.interface import Engine, LayerOptions, SavedForBackward
from ..engine.layer_ops import run_layer, run_layer_grad
from ..engine.layout import Matrices
from ..engine.saved import save, saved
from ..engine.tracing import Onlooker, in_transform, is_opaque, onlooker


def can_be_one_node(x: Tensor, Ws: Matrices) -> bool:
    """Whether nothing that looks on needs to see more than one node, and x's device has float64."""
    if not has_float64(x):  # U is made on the host, by copies that autograd records
        return False
    return onlooker(x, *Ws) in (Onlooker.NOBODY, Onlooker.MODE, Onlooker.COMPILER)


def project_in_one_node(x: Tensor, Ws: Matrices, options: LayerOptions) -> Tensor:
    """The layer's output from its input and its W's, one per mode or None."""
    if not autocasts(x):
        return apply_node(x, Ws, options)
    x = cast(x, map_dtype(x))
    with no_autocast(x):
        return apply_node(x, Ws, options)


def apply_node(x: Tensor, Ws: Matrices, options: LayerOptions) -> Tensor:
    """The same where autocast is off, or leaves x as it is."""
    node: Any = _Node
    z: Tensor = node.apply(options, x, *Ws)
    return z


class _Node(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, options: LayerOptions, x: Tensor, *Ws: Tensor | None) -> Tensor:
        ctx.options, ctx.order = options, len(Ws)
        if is_opaque(*(t for t in (x, *Ws) if t is not None)):
            ctx.engine = ctx.context = ctx.kinds = None
            z, *tensors = run_layer(x, Ws, options.transposed, options.eps, options.relative)
            ctx.save_for_backward(x, *Ws, *tensors)
            return z
        used: Engine = engine(*Ws)
        z, kept = used.forward(x, Ws, options)
        ctx.engine, ctx.context = used, kept.context
        save(ctx, x, *Ws, *kept.tensors)
        return z

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Any:
        with no_autocast(grad):  # a backward pass may be called where autocast is on
            return None, *_gradients(ctx, grad)


def _gradients(ctx: Any, grad: Tensor) -> Sequence[Tensor | None]:
    """dL/dx and dL/dW by mode."""
    x, *rest = saved(ctx)
    Ws, kept = rest[: ctx.order], rest[ctx.order :]
    wanted, options = ctx.needs_input_grad[1:], ctx.options
    if torch.is_grad_enabled() or in_transform(x, grad):
        return _differentiable(x, grad, Ws, options, wanted)
    if ctx.engine is None:
        numbers = options.transposed, options.eps, options.relative
        return run_layer_grad(x, grad, Ws, kept, *numbers, wanted)
    if onlooker(x, grad, *Ws) not in (Onlooker.NOBODY, Onlooker.MODE):
        return _differentiable(x, grad, Ws, options, wanted)
    used: Engine = ctx.engine
    return used.backward(x, grad, Ws, SavedForBackward(tuple(kept), ctx.context), options, wanted)


def _differentiable(
    x: Tensor, grad: Tensor, Ws: Matrices, options: LayerOptions, wanted: Sequence[bool]
) -> list[Tensor | None]:
    """The gradients as differentiable functions of x, grad and the W's.

    They are written out. Asking autograd for them would differentiate through the history of x as
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
        if W is None or dU is None:
            continue
        if by_products(W):
            grad_Ws[k] = polar_gradient_by_products(W, dU, eps[k], relative)
        else:
            _, _, V, s = polar_values(W.detach(), eps[k], relative, x.dtype, options.names[k])
            grad_Ws[k] = polar_gradient(W, dU, V, s, eps[k], relative)
    return [grad_x, *grad_Ws]
