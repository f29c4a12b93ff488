"""The steps that compute a layer for an input: ``tp.explain(layer, x)``."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from ..ops import torch_steps
from ..ops.dtypes import HALF
from ..ops.kernels.library import kernels
from ..ops.layout import layout_of, memory_order
from .layers import TensorProjection, TransposeTensorProjection

Steps = tuple[tuple[int, ...], ...]  # modes, from 1; modes in one step go together


@dataclass(frozen=True)
class Explanation:
    """The steps for one layer and one input, as :func:`explain` returns them; print it.

    >>> import torch, tensorprojection as tp
    >>> layer = tp.TensorProjection((32, 12, 12), (20, None, None))
    >>> tp.explain(layer, torch.randn(8, 32, 12, 12)).forward
    ((1,),)
    """

    memory_order: tuple[int, ...]  # the modes, from the outermost in memory on
    compiled: bool  # with the compiled kernels, or with torch's own operations
    forward: Steps
    backward: Steps  # of the input's gradient
    derivative: Steps  # of the gradients of all U's, and of the input's with them

    def __str__(self) -> str:
        used = "compiled kernels" if self.compiled else "torch's operations"
        order = ", ".join(map(str, self.memory_order))
        return "\n".join(
            [
                f"modes in memory   {order}; {used}",
                f"forward           {_words(self.forward)}",
                f"backward, input   {_words(self.backward)}",
                f"backward, all     {_words(self.derivative)}",
            ]
        )


def explain(layer: TensorProjection | TransposeTensorProjection, x: Tensor) -> Explanation:
    """Return the matrix products, and their order, that compute the layer for an input like x.

    >>> import torch, tensorprojection as tp
    >>> layer = tp.TensorProjection((32, 12, 12), (32, 6, 6))
    >>> print(tp.explain(layer, torch.randn(300, 32, 12, 12)))
    modes in memory   1, 2, 3; ...
    forward           mode...
    backward, input   mode...
    backward, all     mode...
    """
    Ws = layer.Ws
    layer._check(x, Ws)
    b = x.ndim - layer.order
    axes = memory_order(x, b)
    in_memory = tuple(a - b + 1 for a in axes if a >= b)
    fast = kernels() and x.device.type == "cpu" and x.dtype in (torch.float32, *HALF)
    layout = layout_of(x, Ws, transposed=layer.transposed) if fast else None
    if layout is None:
        steps = torch_steps.steps_of(x, Ws, layer.transposed, axes)
        one_by_one = tuple((axes[axis] - b + 1,) for axis, _ in steps)
        return Explanation(in_memory, False, one_by_one, one_by_one[::-1], one_by_one[::-1])
    plan, by_axis = layout.plan, layout.modes
    shrink, grow, pair = (
        tuple(tuple(1 + mode for k in g if (mode := by_axis[k - 1]) is not None) for g in steps)
        for steps in (plan.shrink, plan.grow, plan.pair)
    )
    forward, backward = (grow, shrink) if layer.transposed else (shrink, grow)
    return Explanation(in_memory, True, forward, backward, pair)


def _words(steps: Steps) -> str:
    if not steps:
        return "no mode changes"
    return ", then ".join(
        f"mode {group[0]}" if len(group) == 1 else f"modes {'+'.join(map(str, group))} together"
        for group in steps
    )
