"""What a graph takes for granted about its arguments, checked at every call.

Note [What an exporter takes for granted]
    An exporter follows one example. A flag, a number or a fixed size is a constant from then on,
    and a branch that depended on it is gone. The exporter's own check of all this is a function
    that cannot be saved; here it becomes operations of the graph, torch's own, so that a folded
    model refuses another argument wherever it runs.
"""

from __future__ import annotations

import operator
from typing import Any

import torch
from torch import Tensor
from torch.fx import GraphModule, Node
from torch.fx.proxy import GraphAppendingTracer, Proxy

from ..errors import ProjectionValueError

CHECK = torch.ops.aten._assert_scalar.default  # unlike torch._assert, it stays under python -O


def keep_guards(module: GraphModule) -> None:
    """The exporter's check of the arguments as nodes: see Note [What an exporter …]."""
    graph = module.graph
    inputs = [node for node in graph.nodes if node.op == "placeholder"]
    with graph.inserting_after(inputs[-1] if inputs else None):
        start = graph.call_function(operator.eq, (0, 0))  # a place to insert before
    with graph.inserting_before(start):
        calls = [node for node in graph.nodes if node.op == "call_module" and not node.users]
        for call in calls:
            _follow(module, call)
            graph.erase_node(call)
        for node in inputs:
            value = node.meta.get("val")
            if value is None:
                _check_equal(node, node, None, node.name)  # torch leaves these out
            elif not calls:  # before torch 2.9
                _check_input(node, value)
    graph.erase_node(start)


def check_size_is_not(node: Node, size: int) -> None:
    """Refuse an argument with that many samples."""
    graph = node.graph
    first = next(n for n in graph.nodes if n.op not in ("placeholder", "get_attr"))
    with graph.inserting_before(first):
        got = graph.call_function(torch.ops.aten.sym_size.int, (node, 0))
        other = graph.call_function(operator.ne, (got, size))
        graph.call_function(CHECK, (other, _message(f"{node.name}.size()[0] != {size}")))


def _follow(module: GraphModule, call: Node) -> None:
    """The checks that the exporter's function makes, as nodes where nodes are being inserted."""
    graph, before = module.graph, set(module.graph.nodes)
    tracer: Any = GraphAppendingTracer(graph)
    check: Any = module.get_submodule(str(call.target))
    try:
        check.forward(*[Proxy(a, tracer) if isinstance(a, Node) else a for a in call.args])
    except Exception as error:
        raise ProjectionValueError(
            "Expected a model whose conditions on its arguments are sizes and constants, got "
            f"{type(error).__name__}: {error}"
        ) from error
    for node in list(graph.nodes):
        if node not in before and node.target is torch._assert:
            condition, text = node.args
            node.target = CHECK
            node.args = (condition, _message(text.removeprefix("Guard failed: ")))


def _check_input(node: Node, value: Any) -> None:
    if not isinstance(value, Tensor):
        _check_equal(node, node, value, node.name)
        return
    for axis, size in enumerate(value.shape):
        if isinstance(size, int):
            got = node.graph.call_function(torch.ops.aten.sym_size.int, (node, axis))
            _check_equal(node, got, size, f"{node.name}.size()[{axis}]")


def _check_equal(node: Node, got: Node, value: Any, name: str) -> None:
    equal = node.graph.call_function(operator.eq, (got, value))
    node.graph.call_function(CHECK, (equal, _message(f"{name} == {value!r}")))


def _message(condition: str) -> str:
    return f"Expected {condition}, as when the model was folded; fold it again for another."
