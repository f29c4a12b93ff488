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
from .example import (
    Call,
    eval_copy,
    parameter_count,
    read_arguments,
    record_calls,
    set_module,
    table,
)
from .trace import (
    IDENTITIES,
    TraceError,
    called_module,
    flatten_axes,
    has_hooks,
    owns_weights,
    trace,
)

Layers: TypeAlias = (
    str
    | nn.Module
    | Sequence[str]
    | type[nn.Module]
    | tuple[type[nn.Module], ...]
    | Callable[[str, nn.Module], bool]
)
Projection: TypeAlias = TensorProjection | TransposeTensorProjection

_POOLS = ("MaxPool", "AvgPool", "AdaptiveMaxPool", "AdaptiveAvgPool")
# The layers that can be replaced, with the number of their spatial axes.
_SPATIAL_AXES: dict[type, int] = {
    getattr(nn, f"{kind}{d}d"): d for kind in (*_POOLS, "Conv", "ConvTranspose") for d in (1, 2, 3)
}
_WEIGHTED = (nn.Linear, *(kind for kind in _SPATIAL_AXES if "Conv" in kind.__name__))


@dataclass(frozen=True)
class Replacement:
    """One module that was replaced."""

    name: str
    was: str
    now: str
    in_shape: Shape
    out_shape: Shape
    parameters_before: int
    parameters_after: int
    note: str = ""


@dataclass(frozen=True)
class SkippedModule:
    """One module that was selected but cannot be replaced, and the reason."""

    name: str
    reason: str


@dataclass(frozen=True)
class ReplaceReport:
    """The changes that :func:`replace` made; ``print`` shows them as a table.

    The counts of parameters are those of the whole model.
    """

    changes: tuple[Replacement, ...]
    skipped: tuple[SkippedModule, ...]
    parameters_before: int
    parameters_after: int

    def __str__(self) -> str:
        rows = [
            [
                change.name or "(the model)",
                change.was,
                f"{change.in_shape} -> {change.out_shape}",
                f"{change.parameters_before:,} -> {change.parameters_after:,}",
                change.note,
            ]
            for change in self.changes
        ]
        parts = [table(["replaced", "was", "shapes", "parameters", ""], rows)]
        parts += [f"kept {skip.name}: {skip.reason}" for skip in self.skipped]
        parts.append(
            f"parameters of the model: {self.parameters_before:,} -> {self.parameters_after:,}"
        )
        return "\n".join(parts)


class ReplaceResult(NamedTuple):
    """The new model and the report."""

    model: nn.Module
    report: ReplaceReport


def replace(
    model: nn.Module,
    what: Layers,
    out_shape: Sequence[int | None] | None = None,
    *,
    example_input: Tensor | Sequence[Any],
    exact: bool = False,
    **options: Any,
) -> ReplaceResult:
    """Return a copy of the model with projections in place of pooling layers or convolutions.

    >>> import torch
    >>> network = nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten())
    >>> x = torch.randn(1, 3, 14, 14)
    >>> new, report = replace(network, nn.MaxPool2d, example_input=x)
    >>> print(report)
    replaced  was        shapes                    parameters
    2         MaxPool2d  (8, 12, 12) -> (8, 6, 6)  0 -> 144
    parameters of the model: 224 -> 368
    >>> new[2].init
    ('normal', 'block', 'block')
    >>> network[2]  # the model is not changed
    MaxPool2d(kernel_size=2, stride=2, padding=0, dilation=1, ceil_mode=False)

    Max, average and adaptive pools, strided convolutions, 1×1 convolutions and transposed
    convolutions can be replaced, with one to three spatial axes. A projection in place of a
    convolution reduces channels and spatial axes at once. The convolution's weight and bias are
    gone, and so are a replaced module's hooks; the report says so. The new model keeps its mode
    (train or eval), device and dtype. It takes inputs of the example's size only.

    A pool that the model calls as a function (``F.max_pool2d``) is not a module and is not found.

    Args:
        model: any module; it is not changed.
        what: the layers to replace: a name (``"features.pool1"``), a pattern of names
            (``"features.*.pool"``), a list of names and patterns, a module of the model, a type, a
            tuple of types, or a function of name and module that returns True. A layer given by
            its name or as a module must be replaceable. Layers that only match are skipped if no
            projection can replace them, and the report says why.
        out_shape: the projections' output shape without the batch axis; None for a mode that keeps
            its size. A :class:`Suggestion` can be passed. Default: each replaced layer's own output
            shape, so that the following layers fit.
        example_input: a tensor, or a tuple of the model's arguments; the batch may be small.
        exact: True to keep the outputs of a trained model. Only average pools with equal windows
            that do not overlap can be replaced. Their projections have ``init="block"``. The factor
            between an average and an orthonormal projection is multiplied into the weight of the
            next convolution or linear layer, or else a fixed factor follows the projection.
        options: further arguments of the projections: ``init``, ``eps``, ``eps_mode``,
            ``init_scale``. By default channels are initialized with ``"normal"`` and spatial axes
            with ``"block"`` and ``init_scale=3``, as with ``init="auto"``.
    """
    args = read_arguments(model, example_input)
    if taken := sorted({"device", "dtype"} & {*options}):
        raise ProjectionTypeError(
            f"`{taken[0]}` cannot be passed: replaced layers take device and dtype from their "
            "input."
        )
    if exact:
        options = {"init": "block", **options}
    target = None if out_shape is None else read_shape("out_shape", out_shape, none_allowed=True)
    selected, named = _select(model, what)
    calls = record_calls(eval_copy(model), selected, args)
    new = copy.deepcopy(model)
    layers: dict[str, Projection] = {}
    factors: dict[str, float] = {}
    skipped = []
    for name, module in selected.items():
        layer = _projection(model, name, calls[name], target, options)
        if exact and not isinstance(layer, str):
            factors[name] = _factor(module, layer)
            layer = layer if factors[name] else "no projection gives the same outputs"
        if not isinstance(layer, str):
            layers[name] = layer.train(module.training)
            new = _put(new, name, layer)
        elif name in named:
            raise ProjectionValueError(f"{name!r} cannot be replaced: {layer}.")
        else:
            skipped.append(SkippedModule(name, layer))
    if not layers:
        reasons = "; ".join(f"{skip.name}: {skip.reason}" for skip in skipped)
        raise ProjectionValueError(f"None of the selected layers can be replaced. {reasons}.")
    # The layers after a projection must accept its output; lazy layers take their shape from it.
    modes = {module: module.training for module in new.modules()}
    fits = "an out_shape that the layers after the projection can take"
    called = record_calls(new.eval(), layers, args, fits)
    for module, training in modes.items():
        module.training = training
    changes = []
    for name, layer in layers.items():
        new, notes = _apply_factor(new, name, factors[name]) if exact else (new, [])
        changes.append(_change(name, selected[name], layer, bool(called[name]), notes))
    counts = parameter_count(model), parameter_count(new)
    return ReplaceResult(new, ReplaceReport(tuple(changes), tuple(skipped), *counts))


# Selection


def _select(model: nn.Module, what: Layers) -> tuple[dict[str, nn.Module], set[str]]:
    """Return the selected layers by name, and the names that were given exactly."""
    modules = dict(model.named_modules(remove_duplicate=False))
    found: dict[str, nn.Module] = {name: m for name, m in modules.items() if _spatial_axes(m)}
    if isinstance(what, nn.Module):
        what = _name_of(what, modules)
    many = isinstance(what, list | tuple) and all(isinstance(entry, str) for entry in what)
    selected: dict[str, nn.Module] = {}
    for entry in what if many and what else [what]:  # type: ignore[union-attr]
        if isinstance(entry, str) and entry in modules:
            if entry not in found:
                raise ProjectionValueError(
                    f"{entry!r} is a {type(modules[entry]).__name__}, not a pooling layer or a "
                    f"convolution. {_listed(found)}"
                )
            matches = {entry: found[entry]}
        else:
            matches = {name: m for name, m in found.items() if _matches(entry, name, m)}
        if not matches:
            raise ProjectionValueError(
                f"No pooling layer or convolution matches {entry!r}. {_listed(found)} A pool that "
                "is called as a function is not a module and is not found."
            )
        selected |= matches
    named = {what} if isinstance(what, str) else {*what} if many else set()  # type: ignore[misc]
    in_order = {name: m for name, m in found.items() if name in selected}
    return in_order, {name for name in named if name in modules}


def _spatial_axes(module: nn.Module) -> int:
    """Return 1, 2 or 3 for a layer that can be replaced, 0 for any other module."""
    return next((d for kind, d in _SPATIAL_AXES.items() if isinstance(module, kind)), 0)


def _name_of(module: nn.Module, modules: dict[str, nn.Module]) -> str:
    for name, candidate in modules.items():
        if candidate is module:
            return name
    kind = type(module).__name__
    raise ProjectionValueError(
        f"{module!r} is not a module of this model. To replace all modules of its type, pass the "
        f"type: {kind}, not {kind}(…)."
    )


def _matches(what: Any, name: str, module: nn.Module) -> bool:
    if isinstance(what, str):
        return fnmatchcase(name, what)
    kinds = what if isinstance(what, tuple) else (what,)
    if kinds and all(isinstance(kind, type) for kind in kinds):
        return isinstance(module, kinds)
    if callable(what):
        return bool(what(name, module))
    raise ProjectionTypeError(
        "Expected what to be a name, a pattern such as 'features.*.pool', a list of names, a "
        "module of the model, a type, a tuple of types or a function of name and module, "
        f"got {what!r}."
    )


def _listed(found: dict[str, nn.Module]) -> str:
    if not found:
        return "The model has none as a module."
    names = [f"{name!r}" for name in found]
    more = f" and {len(names) - 8} more" if len(names) > 8 else ""
    return f"There are {', '.join(names[:8])}{more}."


# Replacing


def _projection(
    model: nn.Module, name: str, calls: list[Call], target: Any, options: dict[str, Any]
) -> Projection | str:
    """Return the projection that replaces a layer, or the reason why there is none."""
    module: Any = model.get_submodule(name)
    names = [n for n, m in model.named_modules(remove_duplicate=False) if m is module]
    if len(names) > 1:
        return f"it is one module under several names ({', '.join(names)}); give each place its own"
    if isinstance(module, nn.Conv1d | nn.Conv2d | nn.Conv3d) and max(module.stride) == 1 < max(
        module.kernel_size
    ):
        kernel = "×".join(map(str, module.kernel_size))
        return f"only strided and 1×1 convolutions can be replaced; this one is {kernel}, stride 1"
    if not calls:
        return "the example does not reach it"
    if not all(isinstance(call.x, Tensor) and isinstance(call.z, Tensor) for call in calls):
        return "it returns more than one tensor"
    order = 1 + _spatial_axes(module)
    shapes = {(tuple(call.x.shape[-order:]), tuple(call.z.shape[-order:])) for call in calls}
    if len(shapes) > 1:
        several = ", ".join(str(in_shape) for in_shape, _ in sorted(shapes, reverse=True))
        return f"it is called with several shapes ({several}); give each place its own module"
    ((in_shape, out_shape),) = shapes
    enlarges = getattr(module, "transposed", False)  # of all convolutions
    if target is not None:
        out_shape = complete(in_shape, target, transposed=enlarges)
    if in_shape == out_shape:
        return (
            f"there is nothing to {'enlarge' if enlarges else 'shrink'} ({in_shape} -> {out_shape})"
        )
    if any((q < p) if enlarges else (q > p) for p, q in zip(in_shape, out_shape, strict=True)):
        verb = (
            "a transposed projection cannot shrink" if enlarges else "a projection cannot enlarge"
        )
        return f"{verb} a mode ({in_shape} -> {out_shape})"
    like = getattr(module, "weight", None)
    if like is None:  # autocast's type is not one for parameters
        like = calls[0].x.float() if calls[0].autocast else calls[0].x
    kind: type[Projection] = TransposeTensorProjection if enlarges else TensorProjection
    if "init" not in options:  # channels come first, with any number of spatial axes
        spatial = order - 1
        inits, scales = ("normal", *[AUTO_LOCAL] * spatial), (1.0, *[AUTO_SCALE] * spatial)
        options = {"init": inits, "init_scale": scales, **options}
    return kind(in_shape, out_shape, device=like.device, dtype=like.dtype, **options)


def _put(model: nn.Module, name: str, module: nn.Module) -> nn.Module:
    if not name:
        return module
    set_module(model, name, module)
    return model


class Scale(nn.Module):
    """Multiplies its input by a fixed factor."""

    def __init__(self, factor: float) -> None:
        super().__init__()
        self.factor = factor

    def forward(self, x: Tensor) -> Tensor:
        return self.factor * x

    def extra_repr(self) -> str:
        return f"{self.factor:.4g}"


def _factor(module: nn.Module, layer: Projection) -> float:
    """Return the factor between a layer's outputs and its projection's, 0 if there is none."""
    W: Any = next(layer.parameters())
    x = torch.rand(4, *layer.in_shape, device=W.device, dtype=W.dtype)
    with torch.no_grad():
        expected, z = eval_copy(module)(x), eval_copy(layer)(x)
    if z.shape != expected.shape:
        return 0.0
    factor = expected.sum() / z.sum()
    rounding = max(1e-5, 16 * torch.finfo(W.dtype).eps)
    return float(factor) if torch.allclose(factor * z, expected, rtol=rounding) else 0.0


def _apply_factor(new: nn.Module, name: str, factor: float) -> tuple[nn.Module, list[str]]:
    """Multiply a projection's output by a factor: in the next layer's weight if there is one."""
    try:
        root = trace(eval_copy(new))
        calls = [n for n in root.graph.nodes if (n.op, str(n.target)) == ("call_module", name)]
    except TraceError:
        calls = []
    node = calls[0] if len(calls) == 1 else None
    while node is not None and len(node.users) == 1:
        node = next(iter(node.users))
        after: Any = called_module(root, node)
        if isinstance(after, _WEIGHTED) and owns_weights(root, node):
            layer: Any = new.get_submodule(str(node.target))
            with torch.no_grad():
                layer.weight.mul_(factor)
            return new, [f"the factor {factor:.4g} is in the weight of {node.target}"]
        passes = type(after) in IDENTITIES and not has_hooks(after)
        if not passes and flatten_axes(root, node) is None:
            break
    pair = nn.Sequential(new.get_submodule(name), Scale(factor)).train(new.training)
    return _put(new, name, pair), [f"a fixed factor of {factor:.4g} follows"]


def _change(
    name: str, was: nn.Module, layer: Projection, is_called: bool, notes: list[str]
) -> Replacement:
    if getattr(was, "bias", None) is not None:
        notes.append("its bias is dropped")
    if was._forward_hooks or was._forward_pre_hooks or was._backward_hooks:
        notes.append("its hooks are dropped")
    if not is_called:
        notes.append(
            "the model never calls it: the model holds the old module elsewhere too (for example "
            "in a plain list) and calls that"
        )
    return Replacement(
        name,
        type(was).__name__,
        str(layer),
        layer.in_shape,
        layer.out_shape,
        parameter_count(was),
        parameter_count(layer),
        ", ".join(notes),
    )
