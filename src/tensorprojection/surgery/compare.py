"""Whether a folded model gives what its model gives, to rounding."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor, nn

from ..engine.dtypes import has_float64, in_float64
from ..engine.torch_private import tree_leaves, tree_map
from ..errors import ProjectionValueError
from .run import duplicate, run


def difference(got: Any, expected: Any, eps: float, rounding: Callable[[], list[float]]) -> float:
    """The largest difference of the outputs; an error where it is more than rounding.

    ``eps`` is that of the coarsest type in use. ``rounding`` gives, for each output, the rounding
    error of the model itself; it is called only where the outputs differ by more than their size
    explains, as they do where large values cancel.
    """
    ours, theirs = tree_leaves(got), tree_leaves(expected)
    if list(map(_kind, ours)) != list(map(_kind, theirs)):
        raise ProjectionValueError(
            "Expected the folded model to give outputs like the model's for example_input, got "
            f"{_kinds(ours)} for {_kinds(theirs)}."
        )
    largest = 0.0
    for k, (a, b) in enumerate(zip(ours, theirs, strict=True)):
        if not isinstance(b, Tensor) or not b.is_floating_point() or not b.numel():
            continue
        off = _off(a, b)
        allowed = max(1e-5, 16 * eps) * max(1.0, _scale(b))
        if not off <= allowed:
            allowed = max(allowed, 8 * rounding()[k])
        if not off <= allowed:  # so that NaN is refused
            raise ProjectionValueError(
                "Expected the folded model to give the same outputs for example_input, got a "
                f"difference of {off:.1e}. Does the model give the same outputs if run twice?"
            )
        largest = max(largest, off)
    return largest


def own_rounding(model: nn.Module, args: tuple[Any, ...], expected: Any) -> list[float]:
    """How far each output is from what the model gives in float64; 0 where that cannot be told."""
    outputs = tree_leaves(expected)
    nothing = [0.0] * len(outputs)
    what = "a model that gives the same outputs twice, and runs in float64"
    try:
        again = tree_leaves(run(duplicate(model), args, what))
        if not all(_same(a, b) for a, b in zip(again, outputs, strict=True)):
            return nothing
        wide = tree_leaves(run(_double_model(duplicate(model)), tree_map(_double, args), what))
        return list(_offs(outputs, wide))
    except (ProjectionValueError, ValueError, RuntimeError):
        return nothing


def _offs(outputs: list[Any], wide: list[Any]) -> Iterator[float]:
    for a, b in zip(outputs, wide, strict=True):
        tensors = isinstance(a, Tensor) and isinstance(b, Tensor) and a.is_floating_point()
        yield _off(a, b) if tensors and a.numel() else 0.0


def _double_model(model: nn.Module) -> nn.Module:
    tensors = [*model.parameters(), *model.buffers()]
    return (model if all(map(has_float64, tensors)) else model.cpu()).double()


def _double(a: Any) -> Any:
    if not isinstance(a, Tensor):
        return a
    if a.is_floating_point():
        return in_float64(a)
    return a if has_float64(a) else a.cpu()


def _off(a: Tensor, b: Tensor) -> float:
    a, b = in_float64(a), in_float64(b)
    equal = (a == b) | (a.isnan() & b.isnan())  # infinities too
    return (a - b).abs().masked_fill(equal, 0).max().item()


def _scale(b: Tensor) -> float:
    return in_float64(b).abs().nan_to_num(posinf=0.0).max().item()


def _same(a: Any, b: Any) -> bool:
    if isinstance(a, Tensor) and isinstance(b, Tensor):
        return torch.equal(a.nan_to_num(), b.nan_to_num())
    return bool(a == b)


def _kind(a: Any) -> Any:
    return (a.dtype, tuple(a.shape)) if isinstance(a, Tensor) else type(a)


def _kinds(outputs: list[Any]) -> str:
    return ", ".join(
        f"{tuple(a.shape)} of {a.dtype}" if isinstance(a, Tensor) else repr(a) for a in outputs
    )
