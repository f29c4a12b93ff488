"""Merge a model's projections into its other layers, for deployment."""

from __future__ import annotations

import copy
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import count
from math import prod
from typing import Any, NamedTuple

import torch
from torch import Tensor, fx, nn
from torch.testing import assert_close

from ..errors import ProjectionValueError
from ..nn.frozen import FrozenProjection
from ..shapes import Shape
from . import graph
from .graph import PROJECTIONS

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
    """The changes that :func:`fold_projections` made; ``print`` shows them as a table."""

    steps: tuple[FoldStep, ...]
    parameters_before: int
    parameters_after: int  # the constants U included
    difference: float  # the largest, of the outputs for the example
    needs_package: bool  # True if the folded model still needs this package
    reason: str  # why layers were frozen and not folded; empty if all were folded

    def __str__(self) -> str:
        rows = [[s.name, f"{s.in_shape} -> {s.out_shape}", s.became] for s in self.steps]
        counts = f"{self.parameters_before:,} -> {self.parameters_after:,}"
        needs = "this package" if self.needs_package else "torch only"
        return "\n".join(
            [
                graph.table(["folded", "shapes", "became"], *rows),
                f"parameters of the model, then with constants U in place of W: {counts}",
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
    parameters of the model, then with constants U in place of W: 256 -> 112
    largest difference of the example's outputs: ...
    the folded model needs torch only
    >>> torch.allclose(folded(x), network.eval()(x), atol=1e-5)
    True

    The model is traced with ``torch.fx``. A projection in the graph is merged into the convolution
    directly before or after it (its channels), or into the linear layer directly before it (its
    last mode) or after it (also with Flatten in between). What remains becomes matrix products
    with constants. A layer is merged only if that saves parameters, if the layer has no groups,
    hooks, parametrization or shared weights, and if nothing else uses the tensor in between.

    If ``torch.fx`` cannot follow a module (because it branches on values, for example), the module
    stays as it is, with the projections in it frozen. If that module is the model itself, or if the
    outputs differ, nothing is merged. The report then says that this package is still needed.

    The result computes what the model computes in eval mode, and does not learn. The outputs are
    compared on the example, on its first sample and on an empty batch. Export the result, or save
    it with ``torch.save`` and load it with ``torch.load(file, weights_only=False)``.

    Args:
        model: any module; it is not changed.
        example_input: a tensor, or a tuple of the model's arguments; axis 0 is the batch.
    """
    args = tuple(example_input) if isinstance(example_input, list | tuple) else (example_input,)
    original = graph.eval_copy(model)
    if any(map(nn.parameter.is_lazy, original.parameters())):
        graph.run(original, args)
    if isinstance(original, PROJECTIONS):
        original = nn.Sequential(original)  # torch.fx does not trace a leaf alone
    layers = [name for name, m in original.named_modules() if isinstance(m, PROJECTIONS)]
    calls = graph.record_calls(graph.eval_copy(original), layers, args)
    dtypes = {name: z.dtype for name, found in calls.items() for _, z in found}
    if not dtypes:
        raise ProjectionValueError("Expected a model with a projection to fold, got none in use.")
    reason = ""
    try:
        folded, steps = _merged(graph.eval_copy(original), dtypes)
        difference = largest_difference(original, folded, args)
        if names := [step.name for step in steps if step.became == _FROZEN]:
            reason = f"torch.fx cannot follow the module that calls {names[0]}"
    except graph.TraceError as error:
        folded, reason = graph.eval_copy(original), " ".join(str(error).split())[:200]
        steps = list(_freeze(folded))
        try:
            difference = largest_difference(original, folded, args)
        except graph.TraceError as mismatch:
            raise ProjectionValueError(
                f"The folded model does not give the model's outputs for example_input. {mismatch} "
                "Does the model give the same outputs if run twice?"
            ) from error
    folded.eval().requires_grad_(False)
    frozen = [m for m in folded.modules() if isinstance(m, FrozenProjection)]
    constants = sum(U.numel() for m in frozen for U in m.buffers())
    counts = graph.parameter_count(model), graph.parameter_count(folded) + constants
    classes = {kind for m in folded.modules() for kind in type(m).__mro__}
    package = __package__.partition(".")[0]
    needs = any(kind.__module__.partition(".")[0] == package for kind in classes)
    used = tuple(step for step in steps if step.name in dtypes)
    return FoldResult(folded, FoldReport(used, *counts, difference, needs, reason))


def _freeze(model: nn.Module, prefix: str = "") -> Iterator[FoldStep]:
    """Freeze all projections in place; subclasses and layers with hooks stay as they are."""
    for name, layer in list(model.named_modules(remove_duplicate=False)):
        if isinstance(layer, PROJECTIONS):
            plain = graph.is_plain(layer, *PROJECTIONS)
            if plain and not isinstance(layer, FrozenProjection):
                graph.set_module(model, name, layer.freeze())
            became = _FROZEN if plain else _LEFT
            yield FoldStep(f"{prefix}{name}", layer.in_shape, layer.out_shape, became)


# Comparing


def largest_difference(model: nn.Module, other: nn.Module, args: tuple[Any, ...]) -> float:
    """Return the largest difference of two models' outputs, or raise a TraceError.

    The models run on the example, on its first sample and on no sample, unless the first model
    cannot run them. An output may differ by 1e-5 of its own scale, or more in types coarser than
    float32.
    """
    model, other, largest = graph.eval_copy(model), graph.eval_copy(other), 0.0
    for example in (args, _first_samples(args, 1), _first_samples(args, 0)):
        try:
            outputs = graph.tensors_in(graph.run(model, example))
        except ProjectionValueError:
            continue
        try:
            for z, x in zip(graph.tensors_in(graph.run(other, example)), outputs, strict=True):
                rounding = torch.finfo(x.dtype).eps if x.is_floating_point() else 0.0
                atol = max(1e-5, 16 * rounding) * _largest(x)
                assert_close(z, x, rtol=0, atol=atol, equal_nan=True)
                largest = max(largest, _largest(_to_float64(z) - _to_float64(x)))
        except (AssertionError, ValueError) as error:
            raise graph.TraceError(str(error)) from error
    return largest


def _largest(x: Tensor) -> float:
    """Return the largest absolute value of x without NaN and infinity, 0 if x is empty."""
    finite = _to_float64(x).nan_to_num(0.0, 0.0, 0.0).abs()
    return finite.max().item() if x.numel() else 0.0


def _first_samples(args: tuple[Any, ...], n: int) -> Any:
    """Return the example with n samples: axis 0 of all tensors as long as the first tensor."""
    sizes = [a.shape[0] for a in graph.tensors_in(args) if a.ndim]
    return graph.map_tensors(lambda a: a[:n] if a.ndim and a.shape[0] == sizes[0] else a, args)


def _to_float64(x: Tensor) -> Tensor:
    return x.detach().cpu().double()  # not every device has float64


# Merging


def _merged(model: nn.Module, dtypes: dict[str, torch.dtype]) -> tuple[nn.Module, list[FoldStep]]:
    """Trace the model, and merge its projections or replace them by plain operations."""
    traced = graph.trace(model)
    for node in list(traced.graph.nodes):
        if graph.is_plain(graph.called_module(traced, node), *graph.IDENTITIES):
            node.replace_all_uses_with((*node.args, *node.kwargs.values())[0])
            traced.graph.erase_node(node)
    steps: list[FoldStep] = []
    for node in list(traced.graph.nodes):
        module, name = graph.called_module(traced, node), str(node.target)
        if isinstance(module, PROJECTIONS):
            became = _Site(traced, node, module, dtypes.get(name, torch.float32)).fold()
            steps.append(FoldStep(name, module.in_shape, module.out_shape, became))
        elif module is not None:
            steps += _freeze(module, f"{name}.")
    return graph.as_module(traced, traced.graph), steps


class _Site:
    """One call of a projection in the graph.

    A merged layer is a new module in the old one's place. So the old one must not be called
    anywhere else, and nothing else may read its weights. A layer after the projection reads the
    projection's input later than the projection did. It must follow at once, so that nothing can
    write to that input in between.
    """

    def __init__(self, root: fx.GraphModule, node: fx.Node, layer: Any, dtype: Any) -> None:
        self.root, self.node, self.dtype = root, node, dtype
        self.x: Any = (*node.args, *node.kwargs.values())[0]
        self.in_shape, self.out_shape = layer.in_shape, layer.out_shape
        self.order = len(layer.in_shape)
        if isinstance(layer, FrozenProjection):
            Us = [getattr(layer, f"U{k}") for k in range(1, self.order + 1)]
        else:
            Us = layer.projections(torch.float64)
        self.device = next((U.device for U in Us if U is not None), None)
        # By mode, counted from 0; each A maps in_shape[k] to out_shape[k].
        wide = {k: _to_float64(U) for k, U in enumerate(Us) if U is not None}
        self.As = {k: U.mT if layer.transposed else U for k, U in wide.items()}

    def fold(self) -> str:
        """Merge or replace the projection, and return what it became."""
        became = []
        with self.root.graph.inserting_before(self.node):
            if not self.As:
                self.x = self._insert(torch.clone, self.x)  # the output is a tensor of its own
                became.append("nothing: no mode changes its size")
            for merge in (self._into_layer_before, self._into_layer_after, self._as_products):
                if self.As and (text := merge()):
                    became.append(text)
        self.node.replace_all_uses_with(self.x)
        self.root.graph.erase_node(self.node)
        return ", ".join(became)

    def _into_layer_before(self) -> str | None:
        layer = self._layer(self.x)
        mode = self.order - 1 if isinstance(layer, nn.Linear) else 0
        if layer is None or mode not in self.As or len(self.x.users) > 1:
            return None
        A, bias = self.As[mode], layer.bias
        bias = None if bias is None else _product(bias, A, 0)
        return self._merge(self.x, "before", _product(layer.weight, A, 0), bias, [mode])

    def _into_layer_after(self) -> str | None:
        node, modes = self._only_and_next_user(self.node), range(self.order - 1, self.order)
        if graph.flatten_axes(self.root, node) in [(1, -1), (-self.order, -1)]:
            node, modes = self._only_and_next_user(node), range(self.order)
        elif isinstance(self._layer(node), _CONVS):
            modes = range(1)
        layer: Any = self._layer(node)
        sizes = self.out_shape[modes.start : modes.stop]  # of the modes that the layer sums over
        if layer is None or layer.weight.shape[1] != prod(sizes) or not {*self.As} <= {*modes}:
            return None
        weight = layer.weight.detach().unflatten(1, sizes)
        for k, A in self.As.items():
            weight = _product(weight, A.mT, 1 + k - modes.start)
        return self._merge(node, "after", weight.flatten(1, len(sizes)), layer.bias, [*self.As])

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
        layer = graph.own_layer(self.root, node, *_CONVS, nn.Linear)
        if isinstance(layer, _CONVS) and (layer.groups > 1 or layer.weight.ndim != self.order + 1):
            return None
        return layer

    def _only_and_next_user(self, node: Any) -> Any:
        """Return the node that alone uses this one, if it follows at once."""
        return node.next if node is not None and [*node.users] == [node.next] else None

    def _merge(
        self, node: fx.Node, where: str, weight: Tensor, bias: Tensor | None, modes: list[int]
    ) -> str | None:
        """Replace a layer by one with these weights, if that saves parameters."""
        old: Any = graph.called_module(self.root, node)
        size = weight.numel() + (0 if bias is None else bias.numel())
        if size >= graph.parameter_count(old) + sum(self.As[k].numel() for k in modes):
            return None
        new = copy.deepcopy(old)
        new.weight = _fixed(weight.to(old.weight))
        new.bias = None if bias is None else _fixed(bias.to(old.weight))
        names = "features" if isinstance(old, nn.Linear) else "channels"
        setattr(new, f"out_{names}", weight.shape[0])
        setattr(new, f"in_{names}", weight.shape[1])
        graph.set_module(self.root, str(node.target), new)
        self.As = {k: A for k, A in self.As.items() if k not in modes}
        return f"part of {node.target}, the {type(old).__name__} {where} it"

    def _insert(self, function: Any, *args: Any) -> fx.Node:
        return self.root.graph.call_function(function, args)

    def _constant(self, matrix: Tensor) -> fx.Node:
        path = str(self.node.target).replace(".", "_")
        name = next(n for k in count(1) if not hasattr(self.root, n := f"{path}_folded{k}"))
        self.root.register_parameter(name, _fixed(matrix.to(self.dtype).to(self.device)))
        return self.root.graph.get_attr(name)


def _fixed(values: Tensor) -> nn.Parameter:
    return nn.Parameter(values.detach().contiguous(), requires_grad=False)


def _product(x: Tensor, A: Tensor, axis: int) -> Tensor:
    """Multiply ``axis`` of x by A, in float64."""
    moved: Tensor = torch.tensordot(_to_float64(x), A, dims=([axis], [0]))
    return moved.movedim(-1, axis)
