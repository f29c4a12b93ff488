"""A layer as torch.compile sees it: one operator, in which nothing of Python is left to follow.

Note [One operator to Dynamo]
    Whatever Dynamo follows, functions, modules, attributes, it checks before every later call of
    what it compiled. A layer's own checks and choices were 300 such guards. So they are few here,
    and the layer is one operator. AOTAutograd takes that apart, into one node of autograd with an
    opaque operator each way (fused.py), or, where nothing is differentiated in eval mode, into one
    that keeps its U's.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from ..engine.dispatch import by_products, engine
from ..engine.dtypes import cast, has_float64, map_dtype, no_autocast
from ..engine.interface import LayerOptions
from ..engine.layer_ops import fake_output
from ..engine.layout import Matrices
from ..engine.operators import WAITS, composite, opaque
from ..engine.per_weights import PerWeights
from ..engine.tracing import Onlooker, in_compiler, is_ordinary, onlooker_in_compiler
from ..eps import EpsMode
from ..shapes import Shape
from .eval_cache import CachedProjections, Us, renew
from .fused import apply_node, project_in_one_node


def can_be_one_operator(
    x: Tensor, Ws: Matrices, in_shape: Shape, W_shapes: Sequence[tuple[int, int] | None]
) -> bool:
    """Whether a compiler looks on, and all is as it should be; else the usual way says what is not.

    To be asked inside of a compiler only.
    """
    if onlooker_in_compiler() != Onlooker.COMPILER or not has_float64(x):
        return False
    if not (is_ordinary(x) and x.is_floating_point() and x.layout is torch.strided):
        return False
    b = x.ndim - len(in_shape)
    if b < 0 or x.shape[b:] != in_shape:
        return False
    for W, shape in zip(Ws, W_shapes, strict=True):
        if W is None or shape is None:
            if not (W is None and shape is None):
                return False
        elif not (is_ordinary(W) and W.shape == shape and W.device == x.device):
            return False
    return True


def run_as_operator(
    x: Tensor,
    Ws: Matrices,
    transposed: bool,
    eps: tuple[float, ...],
    relative: bool,
    training: bool,
) -> Tensor:
    """The layer's output, for a compiler."""
    z: Tensor = _projection_op(
        x, list(Ws), transposed, list(eps), relative, not training and _keeps(x, Ws)
    )
    return z


def project_by_weights(x: Tensor, Ws: Matrices, options: LayerOptions) -> Tensor:
    """One operator to a compiler, else one node of autograd."""
    if in_compiler():
        relative = options.eps_mode == "relative"
        return run_as_operator(x, Ws, options.transposed, options.eps, relative, training=True)
    return project_in_one_node(x, Ws, options)


def _keeps(x: Tensor, Ws: Matrices) -> bool:
    """Whether the U's may be kept: see Note [When U is kept] in eval_cache.py."""
    tensors = [x, *(W for W in Ws if W is not None)]
    if len(tensors) == 1 or by_products(*Ws):
        return False
    return not (torch.is_grad_enabled() and any(t.requires_grad for t in tensors))


def _projection(
    x: Tensor,
    Ws: list[Tensor | None],
    transposed: bool,
    eps: list[float],
    relative: bool,
    keeps: bool,
) -> Tensor:
    x = cast(x, map_dtype(x))
    with no_autocast(x):
        if keeps:
            z: Tensor = _kept_op(x, Ws, transposed, eps, relative)
            return z
        names = tuple(f"W{k}" for k in range(1, len(Ws) + 1))
        mode: EpsMode = "relative" if relative else "absolute"
        return apply_node(x, Ws, LayerOptions(transposed, tuple(eps), mode, names))


class _Kept:
    """What an operator keeps: see Note [An operator remembers]."""

    projections: CachedProjections | None = None


_kept = PerWeights(_Kept)


def _kept_values(
    x: Tensor, Ws: list[Tensor | None], transposed: bool, eps: list[float], relative: bool
) -> Tensor:
    used = engine(*Ws)

    def compute(copies: Sequence[Tensor]) -> Us:
        present = iter(copies)
        return [
            None if W is None else used.polar(next(present), e, relative, x.dtype, f"W{k}").U
            for k, (W, e) in enumerate(zip(Ws, eps, strict=True), start=1)
        ]

    found = _kept.of(Ws)
    settings = (x.dtype, tuple(eps), relative)
    # Other threads may replace it, so it is read once and written once.
    kept = renew(found.projections, [W for W in Ws if W is not None], settings, compute)
    found.projections = kept
    return used.map(x, kept.Us, transposed, x)


def _fake_kept(x: Tensor, Ws: list[Tensor | None], transposed: bool, *_: Any) -> Tensor:
    return fake_output(x, Ws, transposed)


_LAYER = "(Tensor x, Tensor?[] Ws, bool transposed, float[] eps, bool relative"
_projection_op = composite("projection", f"{_LAYER}, bool keeps) -> Tensor", _projection)
_kept_op = opaque("kept_layer", f"{_LAYER}) -> Tensor", _kept_values, _fake_kept, WAITS)
