"""Projections turned into what a graph of the model shows as one node each.

Note [One node a projection]
    torch.export follows a projection into its products. While a model is folded, each is to be
    seen whole: it becomes one call of the library's operator ``tensorprojection::map``, which an
    exporter does not look into, with the U's as constants. fold takes every one of them out again.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from ..frozen import FrozenProjection
from ..hope import HOPE
from ..layers import _Projection

MAP = torch.ops.tensorprojection.map.default


class Marked(nn.Module):
    """A frozen projection as one node: see Note [One node a projection]."""

    def __init__(self, frozen: FrozenProjection) -> None:
        super().__init__()
        self.transposed = frozen.transposed
        self.names = [f"U{k}" for k in range(1, len(frozen.in_shape) + 1)]
        for name in self.names:
            self.register_buffer(name, getattr(frozen, name))

    def forward(self, x: Tensor) -> Tensor:
        Us = [getattr(self, name) for name in self.names]
        marked: Tensor = torch.ops.tensorprojection.map(x, Us, self.transposed, x)
        return marked


def mark(model: nn.Module) -> nn.Module:
    """The model with every projection marked, in place; a HOPE becomes torch's own layers."""
    if isinstance(model, _Projection):
        return Marked(model.freeze())
    if isinstance(model, FrozenProjection):
        return Marked(model)
    if isinstance(model, HOPE):
        return _plain_hope(model)
    marked: dict[nn.Module, nn.Module] = {}  # one that has several names stays one
    for parent in list(model.modules()):
        for name, child in list(parent._modules.items()):
            if isinstance(child, _Projection | FrozenProjection | HOPE):
                if child not in marked:
                    marked[child] = mark(child)
                setattr(parent, name, marked[child])
    return model


def _plain_hope(layer: HOPE) -> nn.Module:
    with torch.no_grad():
        if layer.patch is None:
            # Rows of U are Fortran-ordered, a flattened tensor is C-ordered.
            axes = list(range(len(layer.in_shape), -1, -1))
            weight = layer.columns().mT.reshape(-1, *reversed(layer.in_shape))
            weight = weight.permute(0, *axes[:-1]).flatten(1)
            linear = nn.Linear(weight.shape[1], weight.shape[0], bias=False)
            linear.weight = nn.Parameter(weight.contiguous())
            return nn.Sequential(nn.Flatten(-len(layer.in_shape)), linear)
        conv = nn.Conv2d(
            layer.in_shape[0], layer.features, layer.patch, layer.stride or 1, bias=False
        )
        conv.weight = nn.Parameter(layer.filters().contiguous())
        return conv
