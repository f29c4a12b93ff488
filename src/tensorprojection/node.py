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
from .errors import DivergedError
from .polar import EpsMode, polar, polar_grad_values, polar_values
from .project import back_project, gradient_values, map_values, project
from .small import is_small


class Settings(NamedTuple):
    """What a layer knows besides its W's."""

    transposed: bool
    eps: tuple[float, ...]
    eps_mode: EpsMode
    names: tuple[str, ...]


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
        ctx.groups = _alike(Ws, settings.eps)
        spectra: list[Tensor] = []
        for modes in ctx.groups:
            U, *spectrum = _values(modes, Ws, settings, x.dtype)
            spectra += spectrum
            for k, U_k in zip(modes, U.unbind() if len(modes) > 1 else (U,), strict=True):
                Us[k] = U_k
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
        dUs = [None if W is None else next(by_mode) for W in Ws]
        grad_Ws: list[Tensor | None] = [None] * order
        relative = settings.eps_mode == "relative"
        for i, modes in enumerate(ctx.groups):
            W, dU, eps = _together(modes, Ws), _together(modes, dUs), settings.eps[modes[0]]
            G, V, s = spectra[3 * i : 3 * i + 3]
            dW = polar_grad_values(W, dU, G, V, s, eps, relative)
            for k, dW_k in zip(modes, dW.unbind() if len(modes) > 1 else (dW,), strict=True):
                grad_Ws[k] = dW_k if want_Ws[k] else None
        return None, grad_x if want_x else None, *grad_Ws


def _alike(Ws: Sequence[Tensor | None], eps: Sequence[float]) -> list[list[int]]:
    """The modes, small W's of one shape and one ε together: it is the calls that cost."""
    groups: dict[Any, list[int]] = {}
    for k, (W, e) in enumerate(zip(Ws, eps, strict=True)):
        if W is not None:
            groups.setdefault((W.shape, W.dtype, e) if is_small(W) else k, []).append(k)
    return list(groups.values())


def _together(modes: list[int], matrices: Sequence[Tensor | None]) -> Tensor:
    found = [A for A in (matrices[k] for k in modes) if A is not None]
    return torch.stack(found) if len(found) > 1 else found[0]


def _values(
    modes: list[int], Ws: Sequence[Tensor | None], settings: Settings, dtype: torch.dtype
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """U, G, V and s of these modes' W's."""
    relative, eps = settings.eps_mode == "relative", settings.eps[modes[0]]
    names = settings.names
    try:
        return polar_values(_together(modes, Ws), eps, relative, dtype, names[modes[0]])
    except DivergedError:
        for k in modes:  # one by one, to tell which
            polar_values(_together([k], Ws), eps, relative, dtype, names[k])
        raise


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
