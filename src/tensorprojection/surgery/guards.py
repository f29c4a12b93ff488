"""What a graph takes for granted about its arguments, checked at every call.

Note [What an exporter takes for granted]
    An exporter follows one example. A flag, a number or a fixed size is a constant from then on,
    and a branch that depended on it, or on the size of the batch, is gone. The exporter's own check
    of all this cannot be saved, and is not complete before torch 2.9; here it becomes operations of
    the graph, torch's own, so that a folded model refuses another argument wherever it runs.
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.fx import Graph, GraphModule, Node
from torch.fx.proxy import GraphAppendingTracer, Proxy

from ..engine import torch_private
from ..errors import ProjectionValueError

CHECK = torch.ops.aten._assert_scalar.default  # unlike torch._assert, it stays under python -O


def keep_guards(module: GraphModule) -> None:
    """The conditions on the arguments as nodes: see Note [What an exporter takes for granted]."""
    graph = module.graph
    for node in list(graph.nodes):
        if node.op == "call_module" and not node.users:  # the exporter's own
            graph.erase_node(node)
    inputs = [node for node in graph.nodes if node.op == "placeholder"]
    with graph.inserting_before(_first_operation(graph)):
        sizes = _Sizes(graph)
        for node in inputs:
            value = node.meta.get("val")
            if isinstance(value, Tensor):
                for axis, size in enumerate(value.shape):
                    sizes.check(node, axis, size)
            else:
                _check(graph, operator.eq, node, value, f"{node.target} == {value!r}")
        sizes.check_conditions()


def is_any_number(size: Any) -> bool:
    """Whether a size stands for any number; one may also be a symbol that turned out as fixed."""
    return isinstance(size, torch.SymInt) and not size.node.expr.is_number


def check_size_is_not(node: Node, size: int) -> None:
    """Refuse an argument with that many samples."""
    graph = node.graph
    with graph.inserting_before(_first_operation(graph)):
        got = _size(node, 0)
        _check(graph, operator.ne, got, size, f"{_name(node, 0)} != {size}")


class _Sizes:
    """The sizes of the arguments: fixed ones, and those that stand for any number.

    The latter are symbols. What the exporter found out about them on its way is in their shape
    environment, as expressions of sympy.
    """

    def __init__(self, graph: Graph) -> None:
        self._tracer = GraphAppendingTracer(graph)
        self._graph = graph
        self._known: dict[Any, tuple[Proxy, str]] = {}  # by symbol
        self._derived: list[tuple[Node, str, Any]] = []
        self._environment: Any = None

    def check(self, node: Node, axis: int, size: Any) -> None:
        got, name = _size(node, axis), _name(node, axis)
        if not is_any_number(size):
            _check(self._graph, operator.eq, got, int(size), f"{name} == {size}")
            return
        self._environment, expression = size.node.shape_env, size.node.expr
        if expression.is_Symbol and expression not in self._known:
            self._known[expression] = (Proxy(got, self._tracer), name)
            return
        self._derived.append((got, name, expression))

    def check_conditions(self) -> None:
        """Sizes that follow from others, and what branches have asked about them."""
        for got, name, expression in self._derived:
            expected, text = self._followed(expression)
            _check(self._graph, operator.eq, got, expected, f"{name} == {text}")
        for guard in self._environment.guards if self._environment else ():
            condition = guard.expr.xreplace(self._environment.replacements)
            if condition.free_symbols:
                holds, text = self._followed(condition)
                self._graph.call_function(CHECK, (holds, _message(text)))

    def _followed(self, expression: Any) -> tuple[Node, str]:
        """The expression as nodes, and as text in terms of the arguments."""
        # Only here: sympy takes long to import.
        import sympy  # type: ignore[import-untyped]

        names = {symbol: sympy.Symbol(name) for symbol, (_, name) in self._known.items()}
        text = torch_private.size_as_text(expression.xreplace(names))
        proxies = {symbol: proxy for symbol, (proxy, _) in self._known.items()}
        try:
            followed: Any = torch_private.size_as_nodes(expression, proxies)
        except Exception as error:
            raise ProjectionValueError(
                "Expected a model whose conditions on its arguments' sizes can be checked, got "
                f"{text}."
            ) from error
        return followed.node, text


def _first_operation(graph: Graph) -> Node:
    first: Node = next(n for n in graph.nodes if n.op not in ("placeholder", "get_attr"))
    return first


def _size(node: Node, axis: int) -> Node:
    return node.graph.call_function(torch.ops.aten.sym_size.int, (node, axis))


def _name(node: Node, axis: int) -> str:
    return f"{node.target}.shape[{axis}]"


def _check(
    graph: Graph, compare: Callable[[Any, Any], Any], got: Node, value: Any, text: str
) -> None:
    graph.call_function(CHECK, (graph.call_function(compare, (got, value)), _message(text)))


def _message(condition: str) -> str:
    return f"Expected {condition}, as when the model was folded; fold it again for another."
