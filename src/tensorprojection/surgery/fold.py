"""Merge a model's projections into its other layers, for deployment."""

from __future__ import annotations

import copy
from collections.abc import Container, Iterator, Sequence
from dataclasses import dataclass
from itertools import count
from math import prod
from typing import Any, NamedTuple

import torch
from torch import Tensor, fx, nn

from ..errors import ProjectionValueError
from ..nn.frozen import FrozenProjection
from ..nn.hope import HOPE
from ..nn.layers import TensorProjection, TransposeTensorProjection
from ..shapes import Shape
from .example import (
    OutputMismatchError,
    Reference,
    eval_copy,
    flat,
    parameter_count,
    read_arguments,
    record_calls,
    run,
    set_module,
    table,
    to_float64,
)
from .trace import (
    IDENTITIES,
    PROJECTIONS,
    TraceError,
    as_module,
    called_module,
    flatten_axes,
    has_hooks,
    owns_weights,
    trace,
)

_FROZEN, _LEFT = "frozen: U is a constant", "left as it is"
_CONVS = (nn.Conv1d, nn.Conv2d, nn.Conv3d)


@dataclass(frozen=True)
class FoldStep:
    """One call of a projection, and what became of it."""

    name: str
    in_shape: Shape
    out_shape: Shape
    became: str


@dataclass(frozen=True)
class FoldReport:
    """The changes that :func:`fold_projections` made; ``print`` shows them as a table.

    Args:
        steps: one per call of a projection.
        parameters_before: of the model.
        parameters_after: of the folded model, the projections' constants included.
        difference: the largest difference of the outputs for the example.
        needs_package: True if the folded model still needs this package.
        reason: the reason why layers were frozen and not folded; empty if all were folded.
    """

    steps: tuple[FoldStep, ...]
    parameters_before: int
    parameters_after: int
    difference: float
    needs_package: bool
    reason: str

    def __str__(self) -> str:
        rows = [[s.name, f"{s.in_shape} -> {s.out_shape}", s.became] for s in self.steps]
        needs = "this package" if self.needs_package else "torch only"
        left = [step.name for step in self.steps if step.became == _LEFT]
        but = f", except in {', '.join(left)}" if left else ""
        return "\n".join(
            [
                table(["folded", "shapes", "became"], rows),
                f"parameters of the model: {self.parameters_before:,} -> {self.parameters_after:,}",
                f"the projections' parameters W are gone{but}: U is part of a weight or a constant",
                f"largest difference of the example's outputs: {self.difference:.1e}",
                f"the folded model needs {needs}{self.reason and f': {self.reason}'}",
            ]
        )


class FoldResult(NamedTuple):
    """The folded model and the report."""

    model: nn.Module
    report: FoldReport


def fold_projections(model: nn.Module, example_input: Tensor | Sequence[Any]) -> FoldResult:
    """Return a copy of the model for deployment: plain torch, no decomposition, fewer parameters.

    >>> import tensorprojection as tp
    >>> network = nn.Sequential(nn.Conv2d(3, 8, 3), tp.TensorProjection((8, 6, 6), (4, None, None)))
    >>> x = torch.randn(2, 3, 8, 8)
    >>> folded, report = fold_projections(network, x)
    >>> print(report)
    folded  shapes                  became
    1       (8, 6, 6) -> (4, 6, 6)  part of 0, the Conv2d before it
    parameters of the model: 256 -> 112
    the projections' parameters W are gone: U is part of a weight or a constant
    largest difference of the example's outputs: ...
    the folded model needs torch only
    >>> torch.allclose(folded(x), network.eval()(x), atol=1e-5)
    True

    The model is traced with ``torch.fx``. A projection in the graph is merged into the convolution
    directly before or after it (its channels), or into the linear layer directly before it (its
    last mode) or after it (also with Flatten in between). What remains becomes matrix products
    with constants. A :class:`HOPE` becomes a convolution or a linear layer.

    A layer is merged only if that saves parameters, if the layer is an ``nn.Conv*d`` without groups
    or an ``nn.Linear`` that is called once and has no hooks, no parametrization and no shared
    weights, and if nothing else uses the tensor in between.

    A module that ``torch.fx`` cannot follow (for example, with branches on values) stays as it is,
    with the projections in it frozen. If ``torch.fx`` cannot follow the model's own ``forward``, or
    if the result differs from the model, all projections are frozen and nothing is merged. The
    report then says that this package is still needed.

    The result computes what the model computes in eval mode, and does not learn. It is compared
    with the model on the example, on its first sample and on an empty batch; only differences of
    rounding are accepted. Export the result (``torch.export``, ``torch.onnx.export``) or save it::

        torch.save(folded, "folded.pt")
        folded = torch.load("folded.pt", weights_only=False)  # a pickle: from trusted sources only

    Args:
        model: any module; it is not changed.
        example_input: a tensor, or a tuple of the model's arguments; axis 0 is the batch.
    """
    args = read_arguments(model, example_input)
    tensors = [*model.parameters(), *model.buffers(), *flat(args)]
    if any(isinstance(t, Tensor) and t.is_meta for t in tensors):
        raise ProjectionValueError(
            "Expected a model and an example with values, got tensors on the meta device."
        )
    devices = {t.device.type for t in tensors if isinstance(t, Tensor)}
    if any(map(torch.is_autocast_enabled, devices)):
        raise ProjectionValueError(
            "fold_projections was called inside an autocast block, where layers compute in other "
            "types. Call it outside of the block; the folded model can run inside."
        )
    original = eval_copy(model)
    if any(map(nn.parameter.is_lazy, original.parameters())):
        run(original, args)
    if isinstance(original, (*PROJECTIONS, HOPE)):
        original = nn.Sequential(original)  # torch.fx does not trace a leaf alone
    layers = [n for n, m in original.named_modules() if isinstance(m, (*PROJECTIONS, HOPE))]
    calls = record_calls(eval_copy(original), layers, args)
    called = {
        name: getattr(found[0].z, "dtype", torch.float32) for name, found in calls.items() if found
    }
    if not called:
        raise ProjectionValueError("Expected a model with a projection to fold, got none in use.")
    reference, reason = Reference(original, args), ""
    try:
        folded, steps = _merged(eval_copy(original), called)
        off = reference.difference(folded)
        if frozen := [step.name for step in steps if step.became == _FROZEN]:
            reason = f"torch.fx cannot follow the module that calls {frozen[0]}"
    except (TraceError, OutputMismatchError) as error:
        folded, reason = eval_copy(original), " ".join(str(error).split())[:200]
        steps = list(_freeze(folded, called))
        try:
            off = reference.difference(folded)
        except OutputMismatchError as mismatch:
            raise ProjectionValueError(
                "Expected the folded model to give the model's outputs for example_input, "
                f"{mismatch}. Does the model give the same outputs if run twice?"
            ) from error
    folded.eval().requires_grad_(False)
    modules = list(folded.modules())
    constants = [U for m in modules if isinstance(m, FrozenProjection) for U in m.buffers()]
    counts = parameter_count(model), parameter_count(folded) + sum(U.numel() for U in constants)
    needs = any(type(m).__module__.startswith(__package__.partition(".")[0]) for m in modules)
    return FoldResult(folded, FoldReport(tuple(steps), *counts, off, needs, reason))


def _freeze(model: nn.Module, called: Container[str], prefix: str = "") -> Iterator[FoldStep]:
    """Freeze all projections in place; subclasses, layers with hooks and HOPE stay as they are."""
    for name, layer in list(model.named_modules(remove_duplicate=False)):
        if isinstance(layer, (*PROJECTIONS, HOPE)):
            became = _LEFT
            if type(layer) in PROJECTIONS and not has_hooks(layer):
                became = _FROZEN
                if isinstance(layer, TensorProjection | TransposeTensorProjection):
                    set_module(model, name, layer.freeze())
            if (full := f"{prefix}{name}".rstrip(".")) in called:
                yield FoldStep(full, layer.in_shape, layer.out_shape, became)


# Merging


def _merged(model: nn.Module, called: dict[str, torch.dtype]) -> tuple[nn.Module, list[FoldStep]]:
    """Trace the model, and merge its projections or replace them by plain operations."""
    steps = [step for step in _replace_hopes(model) if step.name in called]
    traced = trace(model)
    for node in list(traced.graph.nodes):
        module = called_module(traced, node)
        if module is not None and type(module) in IDENTITIES and not has_hooks(module):
            node.replace_all_uses_with((*node.args, *node.kwargs.values())[0])
            traced.graph.erase_node(node)
    for node in list(traced.graph.nodes):
        module, name = called_module(traced, node), str(node.target)
        if isinstance(module, PROJECTIONS):
            if name not in called:
                raise TraceError(f"the forward method of {name} is called directly")
            became = _Site(traced, node, module, called[name]).fold()
            steps.append(FoldStep(name, module.in_shape, module.out_shape, became))
        elif module is not None:
            steps += _freeze(module, called, f"{name}.")
    return as_module(traced, traced.graph), steps


def _replace_hopes(model: nn.Module) -> Iterator[FoldStep]:
    """Replace every HOPE by torch's own layers."""
    for name, layer in list(model.named_modules()):
        if type(layer) is not HOPE or has_hooks(layer):
            continue
        new: nn.Module
        if layer.patch is None:
            order = len(layer.in_shape)
            # A row of U is Fortran-ordered, a flattened tensor is C-ordered.
            rows = layer.columns().mT.reshape(-1, *reversed(layer.in_shape))
            linear = nn.Linear(prod(layer.in_shape), layer.features, bias=False)
            linear.weight = _fixed(rows.permute(0, *range(order, 0, -1)).flatten(1))
            new, became = nn.Sequential(nn.Flatten(-order), linear), "a linear layer"
        else:
            stride: Any = layer.stride
            sizes = layer.in_shape[0], layer.features
            new = nn.Conv2d(*sizes, layer.patch, stride=stride, bias=False)
            new.weight, became = _fixed(layer.filters()), "a convolution"
        set_module(model, name, new)
        yield FoldStep(name, layer.in_shape, layer.out_shape, became)


class _Site:
    """One call of a projection in the graph.

    Note [When a neighbour is merged]
        A merged layer is a new module in the old one's place. So the old one must not be called
        anywhere else, and nothing else may read its weights. A layer after the projection reads
        the projection's input later than the projection did. It must follow at once, so that
        nothing can write to that input in between.
    """

    def __init__(self, root: fx.GraphModule, node: fx.Node, layer: Any, dtype: torch.dtype) -> None:
        self.root, self.graph, self.node, self.dtype = root, root.graph, node, dtype
        self.x: Any = (*node.args, *node.kwargs.values())[0]
        self.in_shape, self.out_shape = layer.in_shape, layer.out_shape
        self.order = len(layer.in_shape)
        if isinstance(layer, FrozenProjection):
            Us = [getattr(layer, f"U{k}") for k in range(1, self.order + 1)]
        else:
            Us = layer.projections(torch.float64)
        self.device = next((U.device for U in Us if U is not None), None)
        # By mode, counted from 0; each A maps in_shape[k] to out_shape[k].
        wide = {k: to_float64(U.detach()) for k, U in enumerate(Us) if U is not None}
        self.As = {k: U.mT if layer.transposed else U for k, U in wide.items()}

    def fold(self) -> str:
        """Merge or replace the projection, and return what it became."""
        became = []
        if not self.As:
            self.x = self._insert(torch.clone, self.x)  # the layer's output is a tensor of its own
            became.append("nothing: no mode changes its size")
        for merge in (self._into_linear_after, self._into_layer_before, self._into_conv_after):
            if self.As and (text := merge()):
                became.append(text)
        if self.As:
            became.append(self._as_products())
        self.node.replace_all_uses_with(self.x)
        self.graph.erase_node(self.node)
        return ", ".join(became)

    def _into_layer_before(self) -> str | None:
        before = self._layer(self.x)
        mode = self.order - 1 if isinstance(before, nn.Linear) else 0
        if before is None or mode not in self.As or len(self.x.users) > 1:
            return None
        A, bias = self.As[mode], before.bias
        bias = None if bias is None else _product(bias, A, 0)
        if not self._replace(self.x, before, _product(before.weight, A, 0), bias, [A]):
            return None
        del self.As[mode]
        return f"part of {self.x.target}, the {type(before).__name__} before it"

    def _into_conv_after(self) -> str | None:
        node = self._only_and_next_user(self.node)
        after = self._layer(node)
        if not isinstance(after, _CONVS) or [*self.As] != [0]:
            return None
        return self._into_layer_after(node, after, _product(after.weight, self.As[0].mT, 1))

    def _into_linear_after(self) -> str | None:
        node, shape = self._only_and_next_user(self.node), self.out_shape[-1:]
        if flatten_axes(self.root, node) in [(1, -1), (-self.order, -1)]:
            node, shape = self._only_and_next_user(node), self.out_shape
        after = self._layer(node)
        first = self.order - len(shape)  # the first mode that the linear layer takes
        if not isinstance(after, nn.Linear) or after.in_features != prod(shape):
            return None
        if min(self.As) < first:
            return None
        weight = after.weight.detach().unflatten(1, shape)
        for k, A in self.As.items():
            weight = _product(weight, A.mT, 1 + k - first)
        return self._into_layer_after(node, after, weight.flatten(1))

    def _into_layer_after(self, node: Any, after: Any, weight: Tensor) -> str | None:
        if not self._replace(node, after, weight, after.bias, [*self.As.values()]):
            return None
        self.As.clear()
        return f"part of {node.target}, the {type(after).__name__} after it"

    def _as_products(self) -> str:
        sizes = [n if k in self.As else self.out_shape[k] for k, n in enumerate(self.in_shape)]
        # The mode that shrinks most comes first; among equals the last, which is one large product.
        order = sorted(self.As, key=lambda k: (self.As[k].shape[1] / self.As[k].shape[0], -k))
        for k in order:
            A = self.As[k]
            sizes[k], axis = A.shape[1], k - self.order
            if axis == -1:
                self.x = self._insert(torch.matmul, self.x, self._constant(A))
                continue
            if axis < -2:
                self.x = self._insert(torch.flatten, self.x, axis + 1, -1)
            self.x = self._insert(torch.matmul, self._constant(A.mT), self.x)
            if axis < -2:
                self.x = self._insert(torch.unflatten, self.x, -1, tuple(sizes[k + 1 :]))
        return "matrix products with constants"

    def _layer(self, node: Any) -> Any:
        """Return the convolution or linear layer that a node calls, if it may be merged."""
        module: Any = called_module(self.root, node)
        if isinstance(module, _CONVS) and (module.groups, module.weight.ndim) != (
            1,
            self.order + 1,
        ):
            return None
        mergeable = isinstance(module, (*_CONVS, nn.Linear)) and owns_weights(self.root, node)
        return module if mergeable else None

    def _only_and_next_user(self, node: fx.Node | None) -> fx.Node | None:
        """Return the node that alone uses this one, if it follows at once."""
        return node.next if node is not None and [*node.users] == [node.next] else None

    def _replace(
        self, node: fx.Node, old: Any, weight: Tensor, bias: Tensor | None, As: list[Tensor]
    ) -> bool:
        """Replace a layer by one with other weights, if that saves parameters."""
        size = weight.numel() + (0 if bias is None else bias.numel())
        if size >= parameter_count(old) + sum(A.numel() for A in As):
            return False
        new = copy.deepcopy(old)
        new.weight = _fixed(weight.to(old.weight))
        new.bias = None if bias is None else _fixed(bias.to(old.weight))
        names = ("features" if isinstance(old, nn.Linear) else "channels",) * 2
        setattr(new, f"out_{names[0]}", weight.shape[0])
        setattr(new, f"in_{names[1]}", weight.shape[1])
        set_module(self.root, str(node.target), new)
        return True

    def _insert(self, function: Any, *args: Any) -> fx.Node:
        with self.graph.inserting_before(self.node):
            return self.graph.call_function(function, args)

    def _constant(self, matrix: Tensor) -> fx.Node:
        path = str(self.node.target).replace(".", "_")
        name = next(n for k in count(1) if not hasattr(self.root, n := f"{path}_folded{k}"))
        self.root.register_parameter(name, _fixed(matrix.to(self.dtype).to(self.device)))
        with self.graph.inserting_before(self.node):
            return self.graph.get_attr(name)


def _fixed(values: Tensor) -> nn.Parameter:
    return nn.Parameter(values.detach().contiguous(), requires_grad=False)


def _product(x: Tensor, A: Tensor, axis: int) -> Tensor:
    """Multiply ``axis`` of x by A, in float64."""
    moved: Tensor = torch.tensordot(to_float64(x.detach()), A, dims=([axis], [0]))
    return moved.movedim(-1, axis)
