"""One projection in a model's graph: what it becomes when the model is folded."""

from __future__ import annotations

from math import prod
from typing import Any

import torch
from torch import Tensor

from .graph import Graph, mode_products
from .mark import module_of
from .merge import into_conv_after, into_conv_before, into_linear_after
from .reports import THE_MODEL, FoldStep


class ProjectionNode:
    """One projection in the graph, and the ways to remove it."""

    def __init__(self, graph: Graph, node: Any) -> None:
        self.graph, self.node = graph, node
        self.x, Us, transposed, _ = node.args
        x, z = self.x.meta["val"], node.meta["val"]
        self.batch_dims = x.ndim - len(Us)
        self.shape = list(x.shape)
        self.in_shape = tuple(map(int, x.shape[self.batch_dims :]))
        self.out_shape = tuple(map(int, z.shape[self.batch_dims :]))
        self.name = next((module_of(U) for U in Us if U is not None), "")
        self.As: dict[int, Tensor] = {}  # by axis, each in × out
        for axis, U in enumerate(Us, start=self.batch_dims):
            if U is not None:
                matrix = graph.tensor(U).to(x.dtype)
                self.As[axis] = matrix.mT if transposed else matrix

    def fold(self) -> FoldStep:
        ways = [self._into_linear, self._into_conv_before, self._into_conv_after, self._as_1x1]
        became = [text for way in ways if self.As and (text := way())]
        if self.As:
            self._as_constants()
            became.append("products with constants")
        elif not became and self.graph.writes_after(self.node):
            # It changes nothing, but its result is a tensor of its own.
            self.x = self.graph.call(self.node, torch.ops.aten.clone.default, self.x)
        self.x.meta.setdefault("val", self.node.meta["val"])  # the next projection may ask
        self.node.replace_all_uses_with(self.x)
        return FoldStep(
            self.name or THE_MODEL,
            self.in_shape,
            self.out_shape,
            ", ".join(became) or "nothing: it changes nothing",
        )

    def _into_linear(self) -> str | None:
        linear = self.graph.linear_after(self.node, self.out_shape)
        if linear is None or not self._may_move(linear.args[1:3], self.node, linear):
            return None
        weight = self.graph.tensor(linear.args[1])
        n, P, Q = weight.shape[0], prod(self.in_shape), prod(self.out_shape)
        if n * P >= n * Q + sum(A.numel() for A in self.As.values()):
            return None
        by_mode = {axis - self.batch_dims: A for axis, A in self.As.items()}
        merged = self.graph.constant(into_linear_after(weight, by_mode, self.out_shape))
        flat = self.x
        if len(self.in_shape) > 1:
            flat = self.graph.call(linear, torch.ops.aten.flatten.using_ints, self.x, 1, -1)
        linear.args = (flat, merged, *linear.args[2:])
        self.As.clear()
        return "part of the linear layer after it"

    def _into_conv_before(self) -> str | None:
        conv, A = self.x, self._channels()
        if A is None or not self.graph.is_conv(conv, self.node) or len(conv.users) != 1:
            return None
        if not self._may_move(conv.args[1:3], conv, self.node):
            return None
        weight = self.graph.tensor(conv.args[1])
        bias_node = conv.args[2] if len(conv.args) > 2 else None
        bias = None if bias_node is None else self.graph.tensor(bias_node)
        merged, merged_bias = into_conv_before(weight, bias, A)
        if _numbers(merged, merged_bias) >= _numbers(weight, bias, A):
            return None
        new = [self.graph.constant(merged), None]
        if merged_bias is not None:
            new[1] = self.graph.constant(merged_bias)
        self.x = self.graph.call(self.node, conv.target, conv.args[0], *new, *conv.args[3:])
        self._done_with_channels()
        return "part of the convolution before it"

    def _into_conv_after(self) -> str | None:
        conv, A = self.graph.only_user(self.node), self._channels()
        if A is None or len(self.As) > 1 or conv is None:
            return None
        if not self.graph.is_conv(conv, self.node):
            return None
        if conv.args[0] is not self.node or not self._may_move(conv.args[1:3], self.node, conv):
            return None
        weight = self.graph.tensor(conv.args[1])
        merged = into_conv_after(weight, A)
        if merged.numel() >= _numbers(weight, A):
            return None
        conv.args = (self.x, self.graph.constant(merged), *conv.args[2:])
        self._done_with_channels()
        return "part of the convolution after it"

    def _as_1x1(self) -> str | None:
        A, spatial = self._channels(), len(self.shape) - 2
        if A is None or len(self.As) > 1 or spatial not in (1, 2, 3):
            return None
        aten = torch.ops.aten
        conv = [aten.conv1d.default, aten.conv2d.default, aten.conv3d.default][spatial - 1]
        weight = self.graph.constant(A.mT.contiguous()[(...,) + (None,) * spatial])
        self.x = self.graph.call(self.node, conv, self.x, weight)
        self._done_with_channels()
        return "a 1×1 convolution"

    def _as_constants(self) -> None:
        self.x = mode_products(self.graph, self.x, self.As, self.shape, self.node)

    def _channels(self) -> Tensor | None:
        """The matrix of the axis that a convolution has its channels on."""
        return self.As.get(1) if self.batch_dims == 1 and len(self.shape) > 2 else None

    def _done_with_channels(self) -> None:
        self.shape[1] = self.As.pop(1).shape[1]

    def _may_move(self, weights: Any, first: Any, last: Any) -> bool:
        """Whether what the first node reads is the same where the last one stands, and constant."""
        stored = [w for w in weights if w is not None]
        return all(map(self.graph.used_once, stored)) and not self.graph.writes_between(first, last)


def _numbers(*tensors: Tensor | None) -> int:
    return sum(t.numel() for t in tensors if t is not None)
