"""Run, trace and edit models: what `replace` and `fold_projections` share."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch
from torch import Tensor, fx, nn
from torch.fx.node import map_aggregate

from ..errors import ProjectionValueError
from ..nn.frozen import FrozenProjection
from ..nn.layers import TensorProjection, TransposeTensorProjection

PROJECTIONS = (TensorProjection, TransposeTensorProjection, FrozenProjection)
IDENTITIES = (nn.Identity, nn.Dropout, nn.Dropout1d, nn.Dropout2d, nn.Dropout3d)


def eval_copy(model: Any) -> Any:
    """Return a deep copy in eval mode: running it changes neither the model nor a BatchNorm."""
    return copy.deepcopy(model).eval()


def run(model: nn.Module, args: Any, expected: str = "a model that runs on example_input") -> Any:
    """Return the model's outputs, without gradients and without an autocast block around it."""
    args = map_tensors(torch.clone, args)  # a layer such as ReLU(inplace=True) may write into them
    device = next((x.device.type for x in tensors_in(args) if not x.is_meta), "cpu")
    try:
        with torch.no_grad(), torch.autocast(device, enabled=False):
            return model(*args)
    except Exception as error:
        raise ProjectionValueError(
            f"Expected {expected}, got {type(error).__name__}: {error}"
        ) from error


Calls = dict[str, list[tuple[Any, Any]]]


def record_calls(model: nn.Module, names: Iterable[str], args: Any, **expected: str) -> Calls:
    """Run the model; by module name, return the first argument and the output of each call."""
    calls: Calls = {name: [] for name in names}
    handles = []
    for name in calls:

        def record(_: nn.Module, inputs: Any, named: Any, z: Any, name: str = name) -> None:
            calls[name].append(((*inputs, *named.values())[0], z))

        hook = model.get_submodule(name).register_forward_hook
        handles.append(hook(record, prepend=True, with_kwargs=True))
    run(model, args, **expected)
    for handle in handles:
        handle.remove()
    return calls


def map_tensors(function: Callable[[Tensor], Any], value: Any) -> Any:
    """Apply ``function`` to every tensor in nested tuples, lists and dicts."""
    return map_aggregate(value, lambda x: function(x) if isinstance(x, Tensor) else x)


def tensors_in(value: Any) -> list[Tensor]:
    found: list[Tensor] = []
    map_tensors(found.append, value)
    return found


def parameter_count(module: nn.Module) -> int:
    """Return the number of parameters; those of uninitialized lazy modules do not count."""
    return sum(p.numel() for p in module.parameters() if not nn.parameter.is_lazy(p))


def set_module(root: nn.Module, name: str, module: nn.Module) -> nn.Module:
    """Put a module in the place of this name; return the root, which for "" is the module."""
    if not name:
        return module
    parent, _, last = name.rpartition(".")
    setattr(root.get_submodule(parent), last, module)
    return root


def has_hooks(module: nn.Module) -> bool:
    return bool(module._forward_hooks or module._forward_pre_hooks)


def table(*lines: Sequence[str]) -> str:
    """Return a table as text: left-aligned columns, two spaces apart."""
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    rows = ([cell.ljust(w) for cell, w in zip(line, widths, strict=True)] for line in lines)
    return "\n".join("  ".join(row).rstrip() for row in rows)


# Tracing


class TraceError(Exception):
    """torch.fx cannot follow the model's own forward, or its graph gives other outputs."""


class _Tracer(fx.Tracer):
    """Records projections, and modules that torch.fx cannot follow, as single calls."""

    def is_leaf_module(self, m: nn.Module, module_qualified_name: str) -> bool:
        if type(m) in PROJECTIONS:
            return not has_hooks(m)  # hooks are traced, since the layer is replaced
        return super().is_leaf_module(m, module_qualified_name)

    def call_module(self, m: nn.Module, forward: Any, args: Any, kwargs: Any) -> Any:
        before = len(self.graph.nodes)
        try:
            return super().call_module(m, forward, args, kwargs)
        except Exception:
            for node in reversed([*self.graph.nodes][before:]):
                self.graph.erase_node(node)
            return self.create_proxy("call_module", self.path_of_module(m), args, kwargs)


def trace(model: nn.Module) -> fx.GraphModule:
    """Return the model as a graph; a module that torch.fx cannot follow is one call in it."""
    try:
        return as_module(model, _Tracer().trace(model))
    except Exception as error:
        kind = type(model).__name__
        raise TraceError(f"torch.fx cannot follow {kind}.forward: {error}") from error


def as_module(root: nn.Module, graph: fx.Graph) -> fx.GraphModule:
    """Return a module that holds what the graph uses, without a reference to the tracer."""
    plain = fx.Graph()
    plain.output(plain.graph_copy(graph, {}))
    return fx.GraphModule(root, plain, class_name=type(root).__name__)


def called_module(root: nn.Module, node: fx.Node | None) -> nn.Module | None:
    if node is None or node.op != "call_module":
        return None
    return root.get_submodule(str(node.target))


def is_plain(module: nn.Module | None, *kinds: type[nn.Module]) -> bool:
    """Return True for a module of exactly one of these types, without hooks."""
    return module is not None and type(module) in kinds and not has_hooks(module)


def own_layer(root: fx.GraphModule, node: Any, *kinds: type[nn.Module]) -> Any:
    """Return the plain module that a node calls, None if the graph uses its weights elsewhere."""
    module: Any = called_module(root, node)
    if not is_plain(module, *kinds):
        return None
    mine = f"{node.target}."
    others = (n for n in root.graph.nodes if n is not node and n.op in ("call_module", "get_attr"))
    # Another node uses the layer, its weight or a module around it.
    if any(mine.startswith(o := f"{n.target}.") or o.startswith(mine) for n in others):
        return None
    every = [p.data_ptr() for _, p in root.named_parameters(remove_duplicate=False)]
    return module if all(every.count(p.data_ptr()) == 1 for p in module.parameters()) else None


def flatten_axes(root: nn.Module, node: fx.Node | None) -> Any:
    """Return the first and last axis that a node flattens, None for any other node."""
    module: Any = called_module(root, node)
    if is_plain(module, nn.Flatten):
        return module.start_dim, module.end_dim
    calls = ("call_function", "call_method")
    if node is not None and node.op in calls and node.target in (torch.flatten, "flatten"):
        named = {"start_dim": 0, "end_dim": -1, **node.kwargs}
        return (*node.args[1:], *[*named.values()][len(node.args) - 1 :])
    return None
