"""The rules for shapes, and the errors that state them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from numbers import Integral
from typing import Any

import numpy as np

from .errors import ProjectionTypeError, ProjectionValueError

Shape = tuple[int, ...]


def read_shape(name: str, shape: Sequence[int | None], *, none_allowed: bool) -> tuple[Any, ...]:
    """Return a feature shape as a tuple of positive ints, and of None if that is allowed."""
    if isinstance(shape, np.ndarray) and shape.ndim == 1:
        shape = shape.tolist()
    if isinstance(shape, int | str) or not isinstance(shape, Sequence):
        raise ProjectionTypeError(
            f"Expected {name} to be a sequence with one entry per mode, such as (32, 12, 12) or "
            f"(128,), got {shape!r}."
        )
    if len(shape) == 0:
        raise ProjectionValueError(f"Expected {name} to have at least one mode, got {shape!r}.")
    for size in shape:
        if size is None and none_allowed:
            continue
        if isinstance(size, bool) or not isinstance(size, Integral):
            raise ProjectionTypeError(
                f"Expected {name} to hold integers{' or None' if none_allowed else ''}, "
                f"got {size!r} in {tuple(shape)}."
            )
        if size < 1:
            raise ProjectionValueError(
                f"Expected {name} to hold sizes of at least 1, got {size} in {tuple(shape)}."
            )
    return tuple(None if size is None else int(size) for size in shape)


def complete(
    in_shape: Shape, out_shape: Sequence[int | None], *, transposed: bool
) -> tuple[int, ...]:
    """Return out_shape with None filled in; raise if a mode grows (transposed: shrinks)."""
    if len(in_shape) != len(out_shape):
        raise ProjectionValueError(
            f"Expected in_shape and out_shape to have one entry per mode each, got {in_shape} "
            f"({len(in_shape)} modes) and {tuple(out_shape)} ({len(out_shape)} modes)."
        )
    full = tuple(p if q is None else q for p, q in zip(in_shape, out_shape, strict=True))
    for k, (p, q) in enumerate(zip(in_shape, full, strict=True), start=1):
        if not transposed and q > p:
            raise ProjectionValueError(
                f"Expected a projection to shrink every mode or leave it alone, got {p} -> {q} in "
                f"mode {k} ({in_shape} -> {full}). To enlarge it: TransposeTensorProjection."
            )
        if transposed and q < p:
            raise ProjectionValueError(
                f"Expected a transposed projection to enlarge every mode or leave it alone, got "
                f"{p} -> {q} in mode {k} ({in_shape} -> {full}). To shrink it: TensorProjection."
            )
    return full


def per_mode(name: str, value: Any, order: int) -> tuple[Any, ...]:
    """Return one value per mode, from one for all modes or a sequence."""
    if isinstance(value, Sequence) and not isinstance(value, str):
        if len(value) != order:
            raise ProjectionValueError(
                f"Expected {name} to be one value or one per mode ({order}), got {len(value)}: "
                f"{value!r}."
            )
        return tuple(value)
    return (value,) * order


def check_shape(shape: Sequence[int | None], in_shape: Sequence[int | None]) -> None:
    """Raise an error unless shape ends in in_shape; None in either stands for any size."""
    order = len(in_shape)
    tail = tuple(shape[len(shape) - order :]) if len(shape) >= order else ()
    if tail == in_shape or (
        len(tail) == order
        and all(n == p or n is None or p is None for n, p in zip(tail, in_shape, strict=True))
    ):
        return
    expected = ", ".join(map(str, ("...", *in_shape)))
    raise ProjectionValueError(
        f"Expected an input of shape ({expected}), got {tuple(shape)}"
        f"{_hint(tuple(shape), tuple(in_shape))}"
    )


def not_floating(name: str, dtype: object) -> ProjectionTypeError:
    """Return the error for a tensor of integers, booleans or complex numbers."""
    return ProjectionTypeError(f"Expected {name} to be a real floating-point tensor, got {dtype}.")


def _hint(shape: tuple[int | None, ...], in_shape: tuple[int | None, ...]) -> str:
    order = len(in_shape)
    if len(shape) < order:
        return f": it has {len(shape)} axes, the layer has {order} modes."
    got = shape[len(shape) - order :]
    if Counter(got) == Counter(in_shape):
        moved = [str(k) for k in range(1, order + 1) if got[k - 1] != in_shape[k - 1]]
        return (
            f": modes {' and '.join(moved)} look swapped. "
            f"Pass data of this layout as in_shape={got} with one init per mode, or permute it."
        )
    wrong = [str(k) for k in range(1, order + 1) if got[k - 1] != in_shape[k - 1]]
    plural = "s differ" if len(wrong) > 1 else " differs"
    return f": the size{plural} in mode{'s' if len(wrong) > 1 else ''} {', '.join(wrong)}."
