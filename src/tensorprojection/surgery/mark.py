"""Projections turned into what a graph of the model shows as one node each.

Note [One node for each projection]
    torch.export follows a projection into its products. While a model is folded, each is to be
    seen whole: it becomes one call of the library's operator ``tensorprojection::map``, which an
    exporter does not look into, with the U's as constants. fold takes every one of them out again.
    The modules stay where they are, with their hooks; only what their ``forward`` does is another.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from ..engine.dtypes import cast, map_dtype
from ..nn.frozen import FrozenProjection
from ..nn.hope import HOPE
from ..nn.layers import _Projection

MAP = torch.ops.tensorprojection.map.default
_PLAIN = "_folded_as"  # the child of a projection's module that does its work in the graph


class MarkedProjection(nn.Module):
    """A projection as one node: see Note [One node for each projection]."""

    def __init__(self, Us: Sequence[Tensor | None], *, transposed: bool) -> None:
        super().__init__()
        self.transposed = transposed
        self.names = [f"U{k}" for k in range(1, len(Us) + 1)]
        for name, U in zip(self.names, Us, strict=True):
            self.register_buffer(name, U)

    def forward(self, x: Tensor) -> Tensor:
        Us = [getattr(self, name) for name in self.names]
        x = cast(x, map_dtype(x))  # inside an autocast block, to its type
        marked: Tensor = torch.ops.tensorprojection.map(x, Us, self.transposed, x)
        return marked


class PlainHOPE(nn.Module):
    """A HOPE as torch's own linear layer or convolution."""

    def __init__(self, layer: HOPE) -> None:
        super().__init__()
        self.order, self.out_shape, self.stride = len(layer.in_shape), layer.out_shape, layer.stride
        with torch.no_grad():
            if layer.patch is None:
                # Rows of U are Fortran-ordered, a flattened tensor is C-ordered.
                weight = layer.columns().mT.reshape(-1, *reversed(layer.in_shape))
                weight = weight.permute(0, *range(self.order, 0, -1)).flatten(1)
            else:
                weight = layer.filters()
        self.weight = nn.Parameter(weight.contiguous())

    def forward(self, x: Tensor) -> Tensor:
        x = cast(x, map_dtype(x))
        weight = cast(self.weight, x.dtype)
        if self.stride is None:
            return nn.functional.linear(x.flatten(-self.order), weight)
        batch = x.shape[: x.ndim - self.order]
        if len(batch) > 1:  # a convolution knows one batch axis
            x = x.flatten(0, len(batch) - 1)
        z = nn.functional.conv2d(x, weight, stride=self.stride)
        return z.reshape(*batch, *self.out_shape) if len(batch) > 1 else z


def mark(model: nn.Module) -> nn.Module:
    """The model with every projection marked, in place; a HOPE becomes torch's own operations."""
    for module in list(model.modules()):
        if isinstance(module, _Projection) and _is_own(module, _Projection):
            with torch.no_grad():  # the type of x, which decides, is not known yet
                Us = module.projections(torch.float64)  # float32 on a device without it
            _work_as(module, MarkedProjection(Us, transposed=module.transposed))
        elif isinstance(module, FrozenProjection) and _is_own(module, FrozenProjection):
            constants = [getattr(module, f"U{k + 1}") for k in range(len(module.in_shape))]
            _work_as(module, MarkedProjection(constants, transposed=module.transposed))
        elif isinstance(module, HOPE) and _is_own(module, HOPE):
            _work_as(module, PlainHOPE(module))
    return model


def _is_own(module: nn.Module, base: type[nn.Module]) -> bool:
    """Whether the class's forward is the library's; the exporter follows any other."""
    return type(module).forward is base.forward and "forward" not in vars(module)


def _work_as(module: nn.Module, plain: nn.Module) -> None:
    module.add_module(_PLAIN, plain)
    module.forward = plain.forward


def module_of(node: Any) -> str:
    """The name of the projection's module, from a node for a constant of it."""
    return f".{node.target}".rpartition(f".{_PLAIN}.")[0].removeprefix(".")


def belongs_to(node: Any, name: str) -> bool:
    """Whether the node is a constant of the module of that name."""
    return node.op == "get_attr" and f".{_PLAIN}." in f".{node.target}" and module_of(node) == name
