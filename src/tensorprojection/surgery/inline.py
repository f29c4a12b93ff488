"""Blocks such as ``with torch.autocast(…)`` in a graph, taken apart.

Note [Blocks]
    An exporter keeps ``torch.autocast`` and ``torch.no_grad`` as calls of a graph within the graph,
    which hide what is inside, and which cannot be loaded after ``torch.save``. Here the operations
    inside move to the graph itself, with the casts that autocast makes written out. Gradients play
    no part: a folded model does not learn.
"""

from __future__ import annotations

import operator
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.fx import GraphModule, Node
from torch.fx.node import map_arg

from ..engine.torch_private import TorchDispatchMode, is_operator

_AUTOCAST = "wrap_with_autocast"
_GRAD = "wrap_with_set_grad_enabled"


class _Autocast(NamedTuple):
    device: str
    dtype: torch.dtype | None
    enabled: bool


class _Block(NamedTuple):
    """A call of a graph within the graph."""

    autocast: _Autocast | None  # None where it leaves autocast alone
    inner: Node
    operands: Sequence[Any]


def inline_blocks(module: GraphModule) -> None:
    """Move what autocast and no_grad blocks hold into the graph: see Note [Blocks]."""
    for node in list(module.graph.nodes):
        block = _block(node)
        if block is None:
            continue
        with module.graph.inserting_before(node):
            results = _copied(module, str(block.inner.target), block.operands, block.autocast)
        for user in list(node.users):  # each takes one of the results
            user.replace_all_uses_with(results[user.args[1]])
            module.graph.erase_node(user)
        module.graph.erase_node(node)
        if not block.inner.users:
            module.graph.erase_node(block.inner)


def _block(node: Node) -> _Block | None:
    name = getattr(node.target, "__name__", "")
    if node.op != "call_function" or name not in (_AUTOCAST, _GRAD):
        return None
    args: Any = node.args
    if name == _GRAD:
        _, inner, *operands = args
        return _Block(None, inner, operands)
    device, dtype, enabled, _, inner, *operands = args
    return _Block(_Autocast(device, dtype, enabled), inner, operands)


def _copied(
    module: GraphModule, path: str, operands: Sequence[Any], autocast: _Autocast | None
) -> Any:
    """The results of the graph at that path, its nodes copied to where nodes are inserted."""
    inner: Any = module.get_submodule(path)
    given = iter(operands)
    made: dict[Node, Any] = {}
    for node in inner.graph.nodes:
        if node.op == "placeholder":
            made[node] = next(given)
        elif node.op == "output":
            return map_arg(node.args[0], made.__getitem__)
        elif node.op == "get_attr" and not any(map(_block, node.users)):
            made[node] = module.graph.get_attr(f"{path}.{node.target}")
            made[node].meta = dict(node.meta)
        elif node.op == "get_attr":
            continue  # a graph within this one
        elif (block := _block(node)) is not None:
            results = [made[n] if isinstance(n, Node) else n for n in block.operands]
            nested = f"{path}.{block.inner.target}"
            made[node] = _copied(module, nested, results, block.autocast or autocast)
        elif node.target is operator.getitem and isinstance(made[node.args[0]], tuple | list):
            made[node] = made[node.args[0]][node.args[1]]
        else:
            casts = dict(_casts(node, autocast)) if autocast and autocast.enabled else {}
            ready = {
                n: _cast(module, made[n], casts[n]) if n in casts else made[n]
                for n in node.all_input_nodes
            }
            made[node] = module.graph.node_copy(node, ready.__getitem__)
    raise AssertionError("a graph without an output")


def _cast(module: GraphModule, node: Any, dtype: torch.dtype) -> Any:
    cast = module.graph.call_function(torch.ops.aten.to.dtype, (node, dtype))
    value = node.meta["val"]
    with value.fake_mode:
        cast.meta["val"] = value.to(dtype)
    return cast


def _casts(node: Node, autocast: _Autocast) -> Iterator[tuple[Node, torch.dtype]]:
    """The inputs that autocast casts before this operation, found by trying."""
    if not is_operator(node.target):
        return
    inputs = [n for n in node.all_input_nodes if isinstance(n.meta.get("val"), Tensor)]
    if inputs:
        plain, cast = _tried(node, None), _tried(node, autocast)
        for n in inputs:
            key = id(n.meta["val"])
            if key in cast and plain.get(key) != cast[key]:
                yield n, cast[key]


def _tried(node: Node, autocast: _Autocast | None) -> dict[int, torch.dtype]:
    """To which types the operation, run on stand-ins, casts its inputs first."""
    values: list[Any] = [n.meta["val"] for n in node.all_input_nodes]
    mode = next(v.fake_mode for v in values if hasattr(v, "fake_mode"))
    args = map_arg(node.args, lambda n: n.meta["val"])
    named = map_arg(node.kwargs, lambda n: n.meta["val"])
    seen = _FirstCasts()
    device = autocast.device if autocast else "cpu"
    dtype = autocast.dtype if autocast else None
    with (
        mode,
        seen,
        torch.no_grad(),
        torch.autocast(device, dtype, enabled=autocast is not None, cache_enabled=False),
    ):
        node.target(*args, **named)  # type: ignore[operator]
    return seen.casts


class _FirstCasts(TorchDispatchMode):
    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.casts: dict[int, torch.dtype] = {}

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        result = func(*args, **(kwargs or {}))
        if func is torch.ops.aten._to_copy.default:
            self.casts.setdefault(id(args[0]), result.dtype)
        return result
