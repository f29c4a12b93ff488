"""What was chosen for a layer and an input, and why: ``tp.explain(layer, x)``."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.parameter import UninitializedParameter

from ..errors import ProjectionValueError
from ..ops.dtypes import check_input
from ..ops.kernels.library import kernels
from ..ops.layout import Layout, layout_of
from ..ops.plan import Costs, Steps
from .layers import TensorProjection, TransposeTensorProjection

Modes = tuple[tuple[int, ...], ...]


@dataclass(frozen=True)
class Choice:
    """The steps of one map, in modes (from 1); modes in one step go together."""

    what: str
    steps: Modes
    bytes_per_row: float
    alternatives: tuple[tuple[Modes, float], ...]

    def __str__(self) -> str:
        text = f"{self.what:<17} {_words(self.steps)}"
        if self.alternatives:
            steps, cost = self.alternatives[0]
            text += f"; next best ({cost / self.bytes_per_row:.2f}× the cost): {_words(steps)}"
        return text


@dataclass(frozen=True)
class Explanation:
    """The plan for one layer and one input, as :func:`explain` returns it; print it.

    >>> import torch, tensorprojection as tp
    >>> layer = tp.TensorProjection((32, 12, 12), (20, None, None))
    >>> tp.explain(layer, torch.randn(8, 32, 12, 12)).forward.steps  # the channels, in one step
    ((1,),)
    """

    memory_order: tuple[int, ...]
    compiled: bool  # by compiled kernels, or by torch's own operations
    forward: Choice
    backward: Choice
    derivative: Choice

    def __str__(self) -> str:
        order = ", ".join(map(str, self.memory_order))
        by = "compiled kernels" if self.compiled else "torch's operations"
        return "\n".join(
            [
                f"modes in memory   {order}; by {by}",
                *map(str, (self.forward, self.backward, self.derivative)),
            ]
        )


def explain(layer: TensorProjection | TransposeTensorProjection, x: Tensor) -> Explanation:
    """Which products, in which order, carry out the layer for an input like x, and why.

    >>> import torch, tensorprojection as tp
    >>> layer = tp.TensorProjection((32, 12, 12), (32, 6, 6))
    >>> print(tp.explain(layer, torch.randn(300, 32, 12, 12)))
    modes in memory   1, 2, 3; by ...
    forward           modes 2+3 together; next best (...× the cost): mode ..., then mode ...
    backward, input   modes 2+3 together; next best (...× the cost): mode ..., then mode ...
    backward, U       modes 2+3 together; next best (...× the cost): mode ..., then mode ...

    The costs are those by which the plan was chosen (plan.py): bytes moved per row, or their worth
    in arithmetic. Those of the last line count both gradients, as the backward pass gives both.
    """
    if any(isinstance(W, UninitializedParameter) for W in layer.Ws):
        raise ProjectionValueError(
            "Expected a layer that knows its shapes, as a lazy one does after its first call."
        )
    check_input(x, layer.in_shape)
    tiles = bool(kernels()) and x.dtype == torch.float32 and x.device.type == "cpu"
    layout = layout_of(x, layer.Ws, transposed=layer.transposed, tiles=tiles)
    p = layout.plan
    costs = Costs(p.large, p.small, p.touched, p.tiles)
    shrink = _choice(layout, p.shrink, costs.ways, costs.shrink)
    grow = _choice(layout, p.grow, costs.ways, costs.grow)
    pair = _choice(layout, p.pair, costs.ways, costs.pair)
    forward, backward = (grow, shrink) if layer.transposed else (shrink, grow)
    b = x.ndim - layer.order
    return Explanation(
        tuple(a - b + 1 for a in layout.axes if a >= b),
        p.tiles,
        forward("forward"),
        backward("backward, input"),
        pair("backward, U"),
    )


def _choice(
    layout: Layout, steps: Steps, ways: list[Steps], cost: Callable[[Steps], float]
) -> Callable[[str], Choice]:
    others = sorted((cost(s), s) for s in ways if s != steps)

    def modes(s: Steps) -> Modes:
        return tuple(
            tuple(mode + 1 for mode in (layout.modes[k - 1] for k in group) if mode is not None)
            for group in s
        )

    return lambda what: Choice(
        what, modes(steps), cost(steps), tuple((modes(s), c) for c, s in others)
    )


def _words(steps: Modes) -> str:
    if not steps:
        return "no mode changes"
    return ", then ".join(
        f"mode {group[0]}" if len(group) == 1 else f"modes {'+'.join(map(str, group))} together"
        for group in steps
    )
