"""Show the order of the products that a layer computes for an input: ``tp.explain(layer, x)``."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.parameter import UninitializedParameter

from ..errors import ProjectionValueError
from ..ops.dtypes import check_input
from ..ops.kernels.library import kernels
from ..ops.layout import layout_of
from ..ops.plan import Costs, Steps
from .layers import TensorProjection, TransposeTensorProjection

Modes = tuple[tuple[int, ...], ...]


@dataclass(frozen=True)
class Choice:
    """The steps of one map, in modes (from 1), with their cost and the costs of all others."""

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
    """Return the products, in order, that a layer computes for an input like x, and their costs.

    >>> import torch, tensorprojection as tp
    >>> layer = tp.TensorProjection((32, 12, 12), (32, 6, 6))
    >>> print(tp.explain(layer, torch.randn(300, 32, 12, 12)))
    modes in memory   1, 2, 3; by ...
    forward           modes 2+3 together; next best (...× the cost): mode ..., then mode ...
    backward, input   modes 2+3 together; next best (...× the cost): mode ..., then mode ...
    backward, U       modes 2+3 together; next best (...× the cost): mode ..., then mode ...

    A cost is the number of bytes moved per row, or the arithmetic expressed in bytes (ops/plan.py).
    The cost in the last line is that of both gradients.
    """
    if any(isinstance(W, UninitializedParameter) for W in layer.Ws):
        raise ProjectionValueError(
            "Expected a layer that knows its shapes, as a lazy one does after its first call."
        )
    check_input(x, layer.in_shape)
    tiles = bool(kernels()) and x.dtype == torch.float32 and x.device.type == "cpu"
    layout = layout_of(x, layer.Ws, transposed=layer.transposed, tiles=tiles)
    plan = layout.plan
    costs = Costs(plan.large, plan.small, plan.touched, plan.tiles)

    def modes(steps: Steps) -> Modes:
        groups = ([layout.modes[k - 1] for k in group] for group in steps)
        return tuple(tuple(mode + 1 for mode in group if mode is not None) for group in groups)

    def choice(what: str, steps: Steps, cost: Callable[[Steps], float]) -> Choice:
        others = sorted((cost(s), s) for s in costs.ways if s != steps)
        return Choice(what, modes(steps), cost(steps), tuple((modes(s), c) for c, s in others))

    maps = (plan.shrink, costs.shrink), (plan.grow, costs.grow)
    forward, backward = reversed(maps) if layer.transposed else maps
    batch = x.ndim - layer.order
    return Explanation(
        tuple(axis - batch + 1 for axis in layout.axes if axis >= batch),
        plan.tiles,
        choice("forward", *forward),
        choice("backward, input", *backward),
        choice("backward, U", plan.pair, costs.pair),
    )


def _words(steps: Modes) -> str:
    if not steps:
        return "no mode changes"
    return ", then ".join(
        f"mode {group[0]}" if len(group) == 1 else f"modes {'+'.join(map(str, group))} together"
        for group in steps
    )
