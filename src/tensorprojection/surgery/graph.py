"""A model as a graph of torch's own operations, and the questions that folding asks of it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import count
from math import prod
from typing import Any

import torch
from torch import Tensor, nn
from torch.fx import GraphModule, Node

from ..engine.torch_private import (
    is_block,
    is_operator,
    tree_flatten,
    tree_leaves,
    tree_map,
    tree_unflatten,
    writes,
)
from ..errors import ProjectionValueError
from .guards import check_size_is_not, is_any_number, keep_guards
from .inline import inline_blocks
from .mark import belongs_to
from .run import run

_aten = torch.ops.aten
CONVS = (
    _aten.conv1d.default,
    _aten.conv1d.padding,
    _aten.conv2d.default,
    _aten.conv2d.padding,
    _aten.conv3d.default,
    _aten.conv3d.padding,
)
LINEAR = _aten.linear.default
_FLATTENINGS = (_aten.flatten.using_ints, _aten.view.default, _aten.reshape.default)
_DROPOUTS = (_aten.dropout.default, _aten.feature_dropout.default)


def graph_of(model: nn.Module, args: tuple[Any, ...]) -> GraphModule:
    """The model in eval mode as a graph, for batches of any size."""
    errors: list[ProjectionValueError] = []
    for example in _examples(args):
        try:
            module = _followed(model, example)
            if example is not args:
                run(module, args, "a graph that takes the example as it is")
        except ProjectionValueError as error:
            errors.append(error)
        else:
            return module
    raise errors[-1]  # that of the example as it is


def _examples(args: tuple[Any, ...]) -> Iterator[tuple[Any, ...]]:
    """The example with two samples for one, if that is what it has; then as it is.

    The exporter takes a size of 1 for a constant. Which arguments have a batch axis nobody knows:
    all are tried, then those of more axes than one.
    """
    for least in (1, 2):
        doubled = tree_map(
            lambda a, least=least: torch.cat([a, a]) if _may_be_one_sample(a, least) else a, args
        )
        if any(a is not b for a, b in zip(tree_leaves(doubled), tree_leaves(args), strict=True)):
            yield doubled
    yield args


def _may_be_one_sample(a: Any, least: int) -> bool:
    return isinstance(a, Tensor) and a.ndim >= least and a.shape[0] == 1


def _followed(model: nn.Module, args: tuple[Any, ...]) -> GraphModule:
    any_batch: Any = torch.export.ShapesCollection()
    for a in tree_leaves(args):
        if isinstance(a, Tensor) and a.ndim and a.shape[0] != 1:
            any_batch[a] = {0: torch.export.Dim.AUTO}
    try:
        program = torch.export.export(model, args, dynamic_shapes=any_batch)
    except Exception as error:
        raise ProjectionValueError(
            "Expected a model that torch.export can follow on example_input, got "
            f"{type(error).__name__}: {error}"
        ) from error
    module: Any = program.module()
    keep_guards(module)
    inline_blocks(module)
    for node in list(module.graph.nodes):
        if node.target in _DROPOUTS and not node.args[2]:
            node.replace_all_uses_with(node.args[0])
            module.graph.erase_node(node)
    return GraphModule(module, module.graph)


class Graph:
    """Reading and rewriting a graph's nodes."""

    def __init__(self, module: GraphModule) -> None:
        self.module = module
        self.inputs = [node for node in module.graph.nodes if node.op == "placeholder"]
        self._any_batch = [_has_any_batch(node.meta.get("val")) for node in self.inputs]

    def of_size(self, size: int, args: tuple[Any, ...]) -> tuple[Any, ...]:
        """The example with that many samples."""
        leaves, spec = tree_flatten(args)
        cut = [a[:size] if b else a for a, b in zip(leaves, self._any_batch, strict=True)]
        return tree_unflatten(cut, spec)  # type: ignore[no-any-return]

    def refuse_size(self, size: int) -> None:
        """Check at every call that there are not that many samples."""
        for node, any_batch in zip(self.inputs, self._any_batch, strict=True):
            if any_batch:
                check_size_is_not(node, size)

    @property
    def nodes(self) -> list[Node]:
        return list(self.module.graph.nodes)

    def coarsest(self) -> float:
        """The largest relative rounding error of the types that the model computes in."""
        values = [node.meta.get("val") for node in self.nodes if node.op == "call_function"]
        types = {v.dtype for v in values if isinstance(v, Tensor) and v.is_floating_point()}
        return max((torch.finfo(dtype).eps for dtype in types), default=0.0)

    def tensor(self, node: Any) -> Tensor:
        """The values of a parameter or buffer."""
        return self._attribute(node).detach()  # type: ignore[no-any-return]

    def _attribute(self, node: Node) -> Any:
        value: Any = self.module
        for name in str(node.target).split("."):
            value = getattr(value, name)
        return value

    def used_once(self, node: Any) -> bool:
        """Whether a parameter belongs to one operation alone, so that it goes with it."""
        values = self.tensor(node)
        constants = [self._attribute(n) for n in self.nodes if n.op == "get_attr"]
        tensors = [c for c in constants if isinstance(c, Tensor)]
        same = [t for t in tensors if t.data_ptr() == values.data_ptr()]
        return len(same) == 1 and len(node.users) == 1

    def writes_between(self, first: Node, last: Node) -> bool:
        """Whether an operation between the two writes into a tensor, which may be one of theirs.

        Through a view any tensor can be written to, so that it does not matter into which.
        """
        nodes = self.nodes
        return any(map(_writes, nodes[nodes.index(first) + 1 : nodes.index(last)]))

    def writes_after(self, node: Node) -> bool:
        nodes = self.nodes
        return any(map(_writes, nodes[nodes.index(node) + 1 :]))

    def reads(self, name: str) -> bool:
        """Whether the graph uses a constant that the module of that name got when it was marked."""
        return any(belongs_to(node, name) and node.users for node in self.nodes)

    def only_user(self, node: Node) -> Node | None:
        return next(iter(node.users)) if len(node.users) == 1 else None

    def is_conv(self, node: Any, x: Node) -> bool:
        """Whether it is a convolution without groups over tensors as x, with its batch axis."""
        if not isinstance(node, Node) or node.target not in CONVS or not _has_stored_weights(node):
            return False
        groups = node.args[6] if len(node.args) > 6 else 1
        return bool(groups == 1) and self.tensor(node.args[1]).ndim == x.meta["val"].ndim

    def linear_after(self, node: Node, shape: Sequence[int]) -> Node | None:
        """The linear layer that takes all features of this node, which have that shape."""
        user = self.only_user(node)
        if user is not None and len(shape) > 1:
            flat = user.meta["val"] if user.target in _FLATTENINGS else None
            with_batch = node.meta["val"].ndim == 1 + len(shape)
            if flat is None or not with_batch or flat.ndim != 2 or flat.shape[1] != prod(shape):
                return None
            node, user = user, self.only_user(user)
        if user is None or user.target != LINEAR or user.args[0] is not node:
            return None
        return user if _has_stored_weights(user) else None

    def constant(self, values: Tensor) -> Node:
        """A new parameter that does not learn, as a node before all others."""
        name = next(n for k in count(1) if not hasattr(self.module, n := f"folded{k}"))
        self.module.register_parameter(name, nn.Parameter(values, requires_grad=False))
        with self.module.graph.inserting_before(self.nodes[0]):
            return self.module.graph.get_attr(name)

    def call(self, before: Node, target: Any, *args: Any) -> Node:
        with self.module.graph.inserting_before(before):
            return self.module.graph.call_function(target, args)

    def finish(self) -> GraphModule:
        """The module without what is no longer used; nothing in it learns."""
        graph = self.module.graph
        graph.eliminate_dead_code()
        for node in graph.nodes:
            node.meta.clear()  # traces of where the model came from
        graph.lint()
        graph._tracer_cls = None  # the exporter's own cannot be saved
        # A new module takes over what its graph mentions, and nothing else.
        return GraphModule(self.module, graph).eval().requires_grad_(False)


def _has_any_batch(value: Any) -> bool:
    return isinstance(value, Tensor) and value.ndim > 0 and is_any_number(value.shape[0])


def _writes(node: Node) -> bool:
    if is_operator(node.target):
        return writes(node.target)
    # A block, such as torch.cond's, may hold anything.
    return is_block(node.target) or node.op == "call_module"


def _has_stored_weights(node: Node) -> bool:
    """Whether weight and bias are parameters, not made anew at every call (by weight_norm, say)."""
    stored = [n is None or (isinstance(n, Node) and n.op == "get_attr") for n in node.args[1:3]]
    return all(stored) and not node.kwargs


def mode_products(
    graph: Graph, x: Any, As: dict[int, Tensor], shape: Sequence[Any], at: Node
) -> Any:
    """x, of that shape, times the A's by axis: matrix products with constants."""
    sizes = list(shape)
    for axis, A in sorted(As.items(), key=lambda item: (item[1].shape[1] / item[1].shape[0], item)):
        last = len(sizes) - 1
        sizes[axis] = A.shape[1]
        if axis == last:
            x = graph.call(at, _aten.matmul.default, x, graph.constant(A.contiguous()))
            continue
        At = graph.constant(A.mT.contiguous())
        if axis == last - 1:
            x = graph.call(at, _aten.matmul.default, At, x)
            continue
        flat = graph.call(at, _aten.flatten.using_ints, x, axis + 1, last)
        product = graph.call(at, _aten.matmul.default, At, flat)
        x = graph.call(at, _aten.unflatten.int, product, axis + 1, sizes[axis + 1 :])
    return x
