"""Put projections in place of a model's pooling layers and convolutions."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Any, NamedTuple, TypeAlias

import torch
from torch import Tensor, nn

from ..errors import ProjectionTypeError, ProjectionValueError
from ..init import AUTO_LOCAL, AUTO_SCALE
from ..nn.layers import TensorProjection, TransposeTensorProjection
from ..shapes import Shape, complete, read_shape
from . import graph
from .fold import largest_difference

Selector: TypeAlias = str | nn.Module | type[nn.Module] | Callable[[str, nn.Module], bool]
Projection: TypeAlias = TensorProjection | TransposeTensorProjection

_KINDS = ("MaxPool", "AvgPool", "AdaptiveMaxPool", "AdaptiveAvgPool", "Conv", "ConvTranspose")
# The layers that can be replaced, with the number of their spatial axes.
_SPATIAL_AXES = {getattr(nn, f"{kind}{d}d"): d for kind in _KINDS for d in (1, 2, 3)}
_CONVS = tuple(kind for kind in _SPATIAL_AXES if "Conv" in kind.__name__)
_AVERAGES = tuple(kind for kind in _SPATIAL_AXES if "Avg" in kind.__name__)


@dataclass(frozen=True)
class Replacement:
    """One module that was replaced."""

    name: str
    was: str
    in_shape: Shape
    out_shape: Shape
    parameters_before: int
    parameters_after: int
    note: str = ""


@dataclass(frozen=True)
class ReplaceReport:
    """The changes that :func:`replace` made; ``print`` shows them as a table."""

    changes: tuple[Replacement, ...]
    skipped: dict[str, str]  # the reason by the name of a layer that cannot be replaced
    parameters_before: int  # of the whole model
    parameters_after: int

    def __str__(self) -> str:
        rows = []
        for c in self.changes:
            shapes = f"{c.in_shape} -> {c.out_shape}"
            counts = f"{c.parameters_before:,} -> {c.parameters_after:,}"
            rows.append([c.name or "(the model)", c.was, shapes, counts, c.note])
        counts = f"{self.parameters_before:,} -> {self.parameters_after:,}"
        return "\n".join(
            [
                graph.table(["replaced", "was", "shapes", "parameters", ""], *rows),
                *(f"kept {name}: {reason}" for name, reason in self.skipped.items()),
                f"parameters of the model: {counts}",
            ]
        )


class ReplaceResult(NamedTuple):
    """The new model and the report."""

    model: nn.Module
    report: ReplaceReport


def replace(
    model: nn.Module,
    what: Selector | Sequence[Selector],
    out_shape: Sequence[int | None] | None = None,
    *,
    example_input: Tensor | Sequence[Any],
    **options: Any,
) -> ReplaceResult:
    """Return a copy of the model with projections in place of pooling layers or convolutions.

    >>> network = nn.Sequential(nn.Conv2d(3, 8, 3), nn.MaxPool2d(2), nn.ConvTranspose2d(8, 8, 2, 2))
    >>> x = torch.randn(1, 3, 14, 14)
    >>> new, report = replace(network, nn.MaxPool2d, example_input=x)
    >>> print(report)
    replaced  was        shapes                    parameters
    1         MaxPool2d  (8, 12, 12) -> (8, 6, 6)  0 -> 144
    parameters of the model: 488 -> 632

    Several layers at once, here one by name and one by type; a transposed convolution becomes a
    transposed projection:

    >>> new, _ = replace(network, ["1", nn.ConvTranspose2d], example_input=x)
    >>> new[2]
    TransposeTensorProjection((8, 6, 6) -> (8, 12, 12), ...)

    An average pool of a trained network is replaced without a change of the outputs. A projection
    with ``init="block"`` averages equal windows that do not overlap, up to a factor. The factor is
    multiplied into the weight of the next convolution or linear layer if that layer alone uses the
    average. Otherwise a fixed scale follows. For other windows (overlapping, padded, of several
    sizes) and other options the report says that the outputs change.

    >>> trained = nn.Sequential(nn.AvgPool2d(2), nn.Flatten(), nn.Linear(48, 5))
    >>> x = torch.randn(1, 3, 8, 8)
    >>> new, report = replace(trained, nn.AvgPool2d, example_input=x)
    >>> report.changes[0].note
    'same outputs: the factor 0.5 is in the weight of 2'
    >>> torch.allclose(new(x), trained(x), atol=1e-5)
    True

    Max, average and adaptive pools, strided convolutions, 1×1 convolutions and transposed
    convolutions can be replaced, with one to three spatial axes. A convolution's weight and bias
    are gone, and so are a replaced module's hooks; the report says so. The new model keeps its mode
    (train or eval), device and dtype. It takes inputs of the example's size only.

    Args:
        model: any module; it is not changed.
        what: the layers to replace: a name (``"features.pool1"``), a pattern of names
            (``"features.*.pool"``), a module of the model, a type, a function of name and module
            that returns True, or a list of these. Layers that no projection can replace are
            skipped, and the report says why.
        out_shape: the projections' output shape without the batch axis; None for a mode that keeps
            its size. A :class:`Suggestion` can be passed. Default: each replaced layer's own output
            shape, so that the following layers fit. A smaller shape can serve as
            well: 16 × 3 × 3 in place of a max pool to 32 × 6 × 6 left a fifth of a CNN's parameters
            and had a lower test loss on retinal images, in 18 of 20 trials.
        example_input: a tensor, or a tuple of the model's arguments; the batch may be small.
        options: further arguments of the projections: ``init``, ``eps``, ``eps_mode``,
            ``init_scale``. By default channels are initialized with ``"normal"`` and spatial axes
            with ``"block"`` and ``init_scale=3``, as with ``init="auto"``.
    """
    if taken := sorted({"device", "dtype"} & {*options}):
        raise ProjectionTypeError(
            f"`{taken[0]}` cannot be passed: replaced layers take device and dtype from the model."
        )
    args = tuple(example_input) if isinstance(example_input, list | tuple) else (example_input,)
    target = None if out_shape is None else read_shape("out_shape", out_shape, none_allowed=True)
    selected = _select(model, what)
    calls = graph.record_calls(graph.eval_copy(model), selected, args)
    new = copy.deepcopy(model)
    layers: dict[str, Projection] = {}
    skipped: dict[str, str] = {}
    for name, module in selected.items():
        layer = _projection(model, name, calls[name], target, options)
        if not isinstance(layer, str):
            layers[name] = layer.train(module.training)
            new = graph.set_module(new, name, layer)
        else:
            skipped[name] = layer
    if not layers:
        reasons = "; ".join(f"{name}: {reason}" for name, reason in skipped.items())
        raise ProjectionValueError(f"None of the selected layers can be replaced. {reasons}.")
    # The layers after a projection must accept its output; lazy layers take their shape from it.
    modes = {module: module.training for module in new.modules()}
    fits = "an out_shape that the layers after the projection can take"
    called = graph.record_calls(new.eval(), layers, args, expected=fits)
    for module, training in modes.items():
        module.training = training
    changes = []
    for name, layer in layers.items():
        was, notes = selected[name], []
        if isinstance(was, _AVERAGES):
            new, note = _scaled(new, name, _factor(was, layer), args)
            notes.append(note)
        if getattr(was, "bias", None) is not None:
            notes.append("its bias is dropped")
        if graph.has_hooks(was) or was._backward_hooks:
            notes.append("its hooks are dropped")
        if not called[name]:
            notes.append("the model never calls it: it calls the old module, held elsewhere too")
        counts = graph.parameter_count(was), graph.parameter_count(layer)
        shapes = layer.in_shape, layer.out_shape
        changes.append(Replacement(name, type(was).__name__, *shapes, *counts, ", ".join(notes)))
    counts = graph.parameter_count(model), graph.parameter_count(new)
    return ReplaceResult(new, ReplaceReport(tuple(changes), skipped, *counts))


def _select(model: nn.Module, what: Any) -> dict[str, nn.Module]:
    """Return the selected layers by name."""
    every = dict(model.named_modules(remove_duplicate=False))
    found = {name: every[name] for name in every if isinstance(every[name], tuple(_SPATIAL_AXES))}
    selected: set[str] = set()
    unmatched = []
    for entry in what if isinstance(what, list | tuple) else [what]:
        names = [name for name, m in found.items() if _matches(entry, name, m)]
        selected.update(names)
        if not names and not isinstance(entry, type):
            unmatched.append(entry)
    if unmatched or not selected:
        there = ", ".join(map(repr, [*found][:8])) + (" and others" if len(found) > 8 else "")
        raise ProjectionValueError(
            "No pooling layer or convolution of the model matches "
            f"{', '.join(map(repr, unmatched)) or repr(what)}. There are: {there or 'none'}. Pass "
            "a name, a pattern, a module of the model, a type, a function of name and module, or a "
            "list of these. A pool that is called as a function is not a module and is not found."
        )
    return {name: m for name, m in found.items() if name in selected}


def _matches(entry: Any, name: str, module: nn.Module) -> bool:
    if isinstance(entry, str):
        return fnmatchcase(name, entry)
    if isinstance(entry, type):
        return isinstance(module, entry)
    if isinstance(entry, nn.Module):
        return module is entry
    return callable(entry) and bool(entry(name, module))


def _projection(
    model: nn.Module, name: str, calls: list[tuple[Any, Any]], target: Any, options: dict[str, Any]
) -> Projection | str:
    """Return the projection that replaces a layer, or the reason why there is none."""
    module: Any = model.get_submodule(name)
    names = [n for n, m in model.named_modules(remove_duplicate=False) if m is module]
    if len(names) > 1:
        return f"it is one module under several names ({', '.join(names)}); give each place its own"
    grows = getattr(module, "transposed", False)  # all convolutions have this attribute
    is_conv = isinstance(module, _CONVS) and not grows
    if is_conv and max(module.stride) == 1 < max(module.kernel_size):
        size = "×".join(map(str, module.kernel_size))
        return f"only strided and 1×1 convolutions can be replaced; this one is {size}, stride 1"
    if not calls:
        return "the example does not reach it"
    if not all(isinstance(value, Tensor) for call in calls for value in call):
        return "it returns more than one tensor"
    order = 1 + next(d for kind, d in _SPATIAL_AXES.items() if isinstance(module, kind))
    shapes = {(tuple(x.shape[-order:]), tuple(z.shape[-order:])) for x, z in calls}
    if len(shapes) > 1:
        several = ", ".join(str(in_shape) for in_shape, _ in sorted(shapes, reverse=True))
        return f"it is called with several shapes ({several}); give each place its own module"
    ((in_shape, out_shape),) = shapes
    if target is not None:
        out_shape = complete(in_shape, target, transposed=grows)
    maps = f"({in_shape} -> {out_shape})"
    if in_shape == out_shape:
        return f"there is nothing to {'enlarge' if grows else 'shrink'} {maps}"
    if any(q < p if grows else q > p for p, q in zip(in_shape, out_shape, strict=True)):
        cannot = "a transposed projection cannot shrink" if grows else "a projection cannot enlarge"
        return f"{cannot} a mode {maps}"
    x = calls[0][0]
    dtypes = [p.dtype for p in (*module.parameters(), *model.parameters())] or [x.dtype]
    dtype = x.dtype if x.dtype in dtypes else dtypes[0]  # not that of an autocast block
    if "init" not in options:  # channels come first, with any number of spatial axes
        inits = ("normal", *[AUTO_LOCAL] * (order - 1))
        scales = (1.0, *[AUTO_SCALE] * (order - 1))
        options = {"init": inits, "init_scale": scales, **options}
    kind = TransposeTensorProjection if grows else TensorProjection
    return kind(in_shape, out_shape, device=x.device, dtype=dtype, **options)


# Average pools


class Scale(nn.Module):
    """Multiplies its input by a fixed factor."""

    def __init__(self, factor: float) -> None:
        super().__init__()
        self.factor = factor

    def forward(self, x: Tensor) -> Tensor:
        return self.factor * x


def _factor(pool: nn.Module, layer: Projection) -> float | None:
    """Return the factor from a projection's outputs to a pool's, None if there is none."""
    W = next(layer.parameters())
    if W.is_meta:
        return None
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(4, *layer.in_shape, generator=generator, dtype=torch.float64)
    layer = copy.deepcopy(layer).to("cpu", torch.float64)
    with torch.no_grad():
        z, expected = layer(x), pool.forward(x)  # without hooks
    if z.shape != expected.shape:
        return None
    factor = (z * expected).sum() / z.square().sum()
    rounding = 1e-5 * float(expected.abs().max())
    return float(factor) if torch.allclose(factor * z, expected, rtol=0, atol=rounding) else None


def _scaled(
    new: nn.Module, name: str, factor: float | None, args: tuple[Any, ...]
) -> tuple[nn.Module, str]:
    """Multiply a projection's output by a factor: in the next layer's weight if that is safe.

    A graph of torch.fx may have another branch than the one that runs, so the result is compared
    with that of a `Scale` behind the projection.
    """
    if factor is None:
        return new, "outputs change: only equal windows that do not overlap are averages of a block"
    after = {_layer_after(new, name, training) for training in (True, False)}
    layer = new.get_submodule(name)
    pair = nn.Sequential(layer, Scale(factor)).train(layer.training)
    if len(after) == 1 and (target := after.pop()) is not None:
        scaled = graph.set_module(graph.eval_copy(new), name, copy.deepcopy(pair).eval())
        weight: Any = new.get_submodule(target).weight
        before = weight.detach().clone()
        with torch.no_grad():
            weight.mul_(factor)
        try:
            largest_difference(scaled, graph.eval_copy(new), args)
            return new, f"same outputs: the factor {factor:.4g} is in the weight of {target}"
        except graph.TraceError:
            with torch.no_grad():
                weight.copy_(before)
    return graph.set_module(new, name, pair), f"same outputs: a scale of {factor:.4g} follows"


def _layer_after(model: nn.Module, name: str, training: bool) -> str | None:
    """Return the next convolution or linear layer, if it alone uses a module's output."""
    try:
        root = graph.trace(copy.deepcopy(model).train(training))
    except graph.TraceError:
        return None
    calls = [n for n in root.graph.nodes if n.op == "call_module" and n.target == name]
    node = calls[0] if len(calls) == 1 else None
    while node is not None and len(node.users) == 1:
        node = next(iter(node.users))
        if graph.own_layer(root, node, nn.Linear, *_CONVS):
            return str(node.target)
        module = graph.called_module(root, node)
        linear = graph.is_plain(module, *graph.IDENTITIES, *graph.PROJECTIONS, *_AVERAGES)
        if not linear and graph.flatten_axes(root, node) is None:
            return None
    return None
