"""Trace a model with torch.fx, and ask about the layers in its graph."""

from __future__ import annotations

from typing import Any

import torch
from torch import fx, nn

from ..nn.frozen import FrozenProjection
from ..nn.layers import TensorProjection, TransposeTensorProjection

PROJECTIONS = (TensorProjection, TransposeTensorProjection, FrozenProjection)
IDENTITIES = (nn.Identity, nn.Dropout, nn.Dropout1d, nn.Dropout2d, nn.Dropout3d)


def has_hooks(module: nn.Module) -> bool:
    return bool(module._forward_hooks or module._forward_pre_hooks)


class TraceError(Exception):
    """torch.fx cannot follow the model's own forward."""


class _OpaqueError(Exception):
    """torch.fx cannot follow the forward of the module of this name."""


class _Tracer(fx.Tracer):
    """Records projections, and modules that torch.fx cannot follow, as single calls."""

    def __init__(self, opaque: set[str]) -> None:
        super().__init__()
        self.opaque = opaque

    def is_leaf_module(self, m: nn.Module, module_qualified_name: str) -> bool:
        if type(m) in PROJECTIONS:
            return not has_hooks(m)  # hooks are traced, since the layer is replaced
        leaf = super().is_leaf_module(m, module_qualified_name)
        return leaf or module_qualified_name in self.opaque

    def call_module(self, m: nn.Module, forward: Any, args: Any, kwargs: Any) -> Any:
        try:
            return super().call_module(m, forward, args, kwargs)
        except _OpaqueError:
            raise
        except Exception as error:
            raise _OpaqueError(self.path_of_module(m)) from error


def trace(model: nn.Module) -> fx.GraphModule:
    """Return the model as a graph; a module that torch.fx cannot follow is one call in it."""
    if has_hooks(model):
        raise TraceError("torch.fx does not follow the hooks of the whole model")
    opaque: set[str] = set()
    while True:
        try:
            return as_module(model, _Tracer(opaque).trace(model))
        except _OpaqueError as error:
            if str(error) in opaque:
                raise TraceError(f"torch.fx cannot call {error}") from error
            opaque.add(str(error))
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


def owns_weights(root: fx.GraphModule, node: fx.Node) -> bool:
    """Return True if a node calls a plain layer, and its weights are used for nothing else."""
    module: Any = called_module(root, node)
    # A subclass or a parametrized layer is of another class than torch's own.
    if type(module) is not getattr(nn, type(module).__name__, None) or has_hooks(module):
        return False
    for other in root.graph.nodes:
        if other is not node and other.op in ("call_module", "get_attr"):
            paths = f"{node.target}.", f"{other.target}."
            if paths[0].startswith(paths[1]) or paths[1].startswith(paths[0]):
                return False  # the layer, its weight or a module around it is used elsewhere
            if called_module(root, other) is module:
                return False
    every = [p.data_ptr() for _, p in root.named_parameters(remove_duplicate=False)]
    return all(every.count(p.data_ptr()) == 1 for p in module.parameters())


def flatten_axes(root: nn.Module, node: fx.Node | None) -> Any:
    """Return the first and last axis that a node flattens, None for any other node."""
    module = called_module(root, node)
    if module is not None and type(module) is nn.Flatten and not has_hooks(module):
        return module.start_dim, module.end_dim
    if node is not None and node.target in (torch.flatten, "flatten"):
        named = {"start_dim": 0, "end_dim": -1, **node.kwargs}
        return (*node.args[1:], *[*named.values()][len(node.args) - 1 :])
    return None
