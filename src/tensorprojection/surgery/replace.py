"""replace: projections in place of a model's pooling layers and convolutions."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Any, NamedTuple

from torch import Tensor, nn

from ..errors import ProjectionTypeError, ProjectionValueError
from ..nn.layers import TensorProjection
from ..shapes import complete, read_shape
from .choose import Place, What, choose, place_of, refusal
from .reports import Replacement, ReplaceReport, SkippedModule
from .run import arguments, check_model, count, run, watch


class ReplaceResult(NamedTuple):
    """A new model, and what was replaced in it."""

    model: nn.Module
    report: ReplaceReport


def replace(
    model: nn.Module,
    what: What,
    out_shape: Sequence[int | None] | None = None,
    *,
    example_input: Tensor | Sequence[Any],
    **options: Any,
) -> ReplaceResult:
    """A copy of ``model`` with projections where pooling layers or convolutions stood.

    >>> import torch
    >>> network = nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten())
    >>> new, report = replace(network, nn.MaxPool2d, example_input=torch.randn(1, 3, 14, 14))
    >>> print(report)
    replaced  was        shapes                    parameters
    2         MaxPool2d  (8, 12, 12) -> (8, 6, 6)  0 -> 144
    parameters of the model: 224 -> 368
    >>> new[2]
    TensorProjection((8, 12, 12) -> (8, 6, 6), eps=0.001, init='normal', 144 parameters)
    >>> network[2]  # as it was: to undo, go on with this one
    MaxPool2d(kernel_size=2, stride=2, padding=0, dilation=1, ceil_mode=False)

    Max, average and adaptive pools can be replaced, and convolutions that are strided or 1×1, of
    one to three spatial axes. In a convolution's place the projection does both its jobs, fewer
    channels and a smaller map; what it had learned, and its bias, are gone. So are hooks that were
    registered on a replaced module; the report says so. The model keeps its
    mode (train or eval), device and type. It is tied to the example's size from then on, as a
    projection is.

    A pool that the model calls as a function (``F.max_pool2d``) is no module and cannot be found.

    Args:
        model: stays as it is, buffers included.
        what: a module's name (``"features.transition1.pool"``) or the module itself
            (``model.features.transition1.pool``), a pattern of names (``"features.*.pool"``), a
            type or a tuple of types, or a function of name and module that says whether this one is
            meant. Modules that a pattern, type or function chooses but that no projection can
            replace are kept, and the report says why. A single module, given by itself or by its
            name, is replaced, or an error says why not.
        out_shape: what the projections give, without the batch axis; None for an axis left alone.
            A :class:`Suggestion` will do. Default: what each replaced module gives for the example,
            so that the layers after it fit.
        example_input: a tensor, or a tuple of the model's arguments; its batch may be small.
        options: further arguments of :class:`TensorProjection`: ``init``, ``eps``, ``eps_mode``.
            In place of pooling, begin with ``init="block"``: the default, the paper's start,
            overfits some thousand images; this one had a lower loss than MaxPooling there.

    Returns:
        The new model and the report, as a named tuple.
    """
    check_model(model)
    args = arguments(example_input)
    target = None if out_shape is None else read_shape("out_shape", out_shape, none_allowed=True)
    chosen, by_name = choose(model, what)
    calls = watch(model, chosen, args)

    new = copy.deepcopy(model)
    changes, skipped = [], []
    for name, module in chosen.items():
        place = _fitting(place_of(name, model, calls[name]), target)
        if isinstance(place, str):
            if by_name:
                raise ProjectionValueError(f"Expected a module to replace, got {name!r}: {place}.")
            skipped.append(SkippedModule(name, place))
            continue
        layer = _projection(place, options).train(module.training)
        new = _put(new, name, layer)
        changes.append(_change(name, module, layer))
    if not changes:
        reasons = "; ".join(f"{skip.name}: {skip.reason}" for skip in skipped)
        raise ProjectionValueError(f"Expected at least one module to replace, got none. {reasons}.")
    _check_run(new, args)
    report = ReplaceReport(tuple(changes), tuple(skipped), count(model), count(new))
    return ReplaceResult(new, report)


def _fitting(place: Place | str, target: Sequence[int | None] | None) -> Place | str:
    """The place with the wanted output shape, or the reason why a projection does not fit."""
    if isinstance(place, str):
        return place
    out_shape = place.out_shape
    if target is not None:
        # A shape that fits no module is the caller's mistake; complete says so.
        out_shape = complete(place.in_shape, target, transposed=False)
    return refusal(place.in_shape, out_shape) or Place(place.in_shape, out_shape, place.like)


def _projection(place: Place, options: dict[str, Any]) -> TensorProjection:
    where: dict[str, Any] = {"device": place.like.device, "dtype": place.like.dtype}
    if taken := sorted({*where} & {*options}):
        raise ProjectionTypeError(
            f"Expected options for the projections only, got {' and '.join(taken)}: these are "
            "those of the tensor that comes in."
        )
    return TensorProjection(place.in_shape, place.out_shape, **where, **options)


def _put(model: nn.Module, name: str, layer: nn.Module) -> nn.Module:
    if not name:
        return layer
    parent, _, last = name.rpartition(".")
    setattr(model.get_submodule(parent), last, layer)
    return model


def _change(name: str, was: nn.Module, layer: TensorProjection) -> Replacement:
    dropped = []
    if getattr(was, "bias", None) is not None:
        dropped.append("its bias is dropped")
    if was._forward_hooks or was._forward_pre_hooks or was._backward_hooks:
        dropped.append("its hooks are dropped")
    return Replacement(
        name,
        type(was).__name__,
        str(layer),
        layer.in_shape,
        layer.out_shape,
        count(was),
        count(layer),
        ", ".join(dropped),
    )


def _check_run(new: nn.Module, args: tuple[Any, ...]) -> None:
    """The layers after a projection must take its output; lazy ones take their shape from it."""
    modes = {module: module.training for module in new.modules()}
    run(new.eval(), args, "an out_shape that the layers after the projection can take")
    for module, training in modes.items():
        module.training = training
