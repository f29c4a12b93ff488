"""Which modules of a model are meant, and which of them a projection can stand in for."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import TypeAlias

from torch import Tensor, nn

from ..errors import ProjectionTypeError, ProjectionValueError
from ..shapes import Shape
from .run import Call

What: TypeAlias = (
    str
    | nn.Module
    | type[nn.Module]
    | tuple[type[nn.Module], ...]
    | Callable[[str, nn.Module], bool]
)

# By the number of spatial axes.
_POOLS = {
    1: (nn.MaxPool1d, nn.AvgPool1d, nn.AdaptiveAvgPool1d, nn.AdaptiveMaxPool1d),
    2: (nn.MaxPool2d, nn.AvgPool2d, nn.AdaptiveAvgPool2d, nn.AdaptiveMaxPool2d),
    3: (nn.MaxPool3d, nn.AvgPool3d, nn.AdaptiveAvgPool3d, nn.AdaptiveMaxPool3d),
}
_CONVS = {1: nn.Conv1d, 2: nn.Conv2d, 3: nn.Conv3d}


def poolings_and_convolutions(model: nn.Module) -> dict[str, nn.Module]:
    """Every pooling layer and convolution of the model, by name, also those of several names."""
    return {
        name: module
        for name, module in model.named_modules(remove_duplicate=False)
        if _spatial_axes(module)
    }


def choose(model: nn.Module, what: What) -> tuple[dict[str, nn.Module], bool]:
    """The pools and convolutions that ``what`` means, and whether it named exactly one."""
    found = poolings_and_convolutions(model)
    if isinstance(what, nn.Module):
        what = _name_of(model, what)
    if isinstance(what, str) and what in dict(model.named_modules(remove_duplicate=False)):
        if what not in found:
            raise ProjectionValueError(
                f"Expected a pooling layer or a convolution, got {what!r}: "
                f"{type(model.get_submodule(what)).__name__}. {_there_are(found)}"
            )
        return {what: found[what]}, True
    chosen = {name: module for name, module in found.items() if _means(what, name, module)}
    if not chosen:
        raise ProjectionValueError(
            f"Expected what to choose a pooling layer or a convolution, got {what!r}. "
            f"{_there_are(found)} A pool that is called as a function cannot be found."
        )
    return chosen, False


def _name_of(model: nn.Module, what: nn.Module) -> str:
    names: list[str] = [
        name for name, m in model.named_modules(remove_duplicate=False) if m is what
    ]
    if names:
        return names[0]
    kind = type(what).__name__
    raise ProjectionValueError(
        f"Expected a module of the model itself, got {what!r}, which is another one. For all "
        f"modules of its kind, give the type: {kind}, not {kind}(…)."
    )


def _means(what: What, name: str, module: nn.Module) -> bool:
    if isinstance(what, str):
        return fnmatchcase(name, what)
    kinds = what if isinstance(what, tuple) else (what,)
    if kinds and all(isinstance(kind, type) for kind in kinds):
        return isinstance(module, kinds)  # type: ignore[arg-type]
    if callable(what):
        return bool(what(name, module))
    raise ProjectionTypeError(
        "Expected what to be a module of the model or its name, a pattern of names such as "
        "'features.*.pool', a type, a tuple of types or a function of name and module, "
        f"got {what!r}."
    )


def _there_are(found: dict[str, nn.Module]) -> str:
    if not found:
        return "The model has none as a module."
    names = [f"{name!r}" for name in found]
    more = f" and {len(names) - 8} more" if len(names) > 8 else ""
    return f"There are {', '.join(names[:8])}{more}."


@dataclass(frozen=True)
class Place:
    """A module that a projection can stand in for, and the shapes there, without the batch."""

    in_shape: Shape
    out_shape: Shape
    like: Tensor  # a tensor of the place's type, on its device


def place_of(name: str, model: nn.Module, calls: list[Call]) -> Place | str:
    """The place, or the reason why there is none."""
    module = model.get_submodule(name)
    names = [other for other, m in poolings_and_convolutions(model).items() if m is module]
    if len(names) > 1:
        return f"it is one module under several names ({', '.join(names)}); give each place its own"
    axes = _spatial_axes(module) + 1
    weight = None
    if isinstance(module, nn.Conv1d | nn.Conv2d | nn.Conv3d):
        weight = module.weight
        if max(module.stride) == 1 and max(module.kernel_size) > 1:
            kernel = "×".join(map(str, module.kernel_size))
            return (
                f"only strided and 1×1 convolutions can be replaced; this one is {kernel}, stride 1"
            )
    if not calls:
        return "the example does not reach it"
    if not all(isinstance(call.x, Tensor) and isinstance(call.z, Tensor) for call in calls):
        return "it returns more than one tensor"
    shapes = {(tuple(call.x.shape[-axes:]), tuple(call.z.shape[-axes:])) for call in calls}
    if len(shapes) > 1:
        several = ", ".join(str(in_shape) for in_shape, _ in sorted(shapes, reverse=True))
        return f"it is called with several shapes ({several}); give each place its own module"
    ((in_shape, out_shape),) = shapes
    if weight is None:
        # Where autocast is on, x has its type, which is not one to keep parameters in.
        weight = calls[0].x.float() if calls[0].autocast else calls[0].x
    return Place(in_shape, out_shape, weight)


def refusal(in_shape: Shape, out_shape: Shape) -> str | None:
    """Why no projection leads from one shape to the other, if none does."""
    if any(q > p for p, q in zip(in_shape, out_shape, strict=True)):
        return f"a projection cannot enlarge a mode ({in_shape} -> {out_shape})"
    if in_shape == out_shape:
        return f"there is nothing to shrink ({in_shape} -> {out_shape})"
    return None


def _spatial_axes(module: nn.Module) -> int:
    """1, 2 or 3 for a pooling layer or a convolution, 0 for any other module."""
    for d, pools in _POOLS.items():
        if isinstance(module, (*pools, _CONVS[d])):
            return d
    return 0
