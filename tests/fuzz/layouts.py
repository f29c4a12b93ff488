"""Memory layouts of a tensor of a given shape and type, as lines of Python.

Each takes the numbers from `normal(*shape)`, float64, and casts before it takes views: a cast
would give a tensor that lies as torch likes it.
"""

from __future__ import annotations

import random
from math import prod

LAYOUTS = (
    "contiguous",
    "permuted",
    "sliced",
    "expanded",
    "expanded twice",
    "channels last",
    "offset",
    "negated",
    "imaginary part",
    "overlapping",
    "scalar",
)


def fits(layout: str, shape: tuple[int, ...], dtype: str) -> bool:
    """Whether a tensor of this shape and type can lie so."""
    if layout == "channels last":
        return len(shape) in (4, 5)
    if layout == "imaginary part":
        return dtype in ("float32", "float64")
    return True


def expression(layout: str, shape: tuple[int, ...], dtype: str, twist: int) -> str:
    """A tensor that lies so; ``twist`` chooses among the ways to do it."""
    choose = random.Random(twist)
    axes = list(range(len(shape)))
    cast = f".to(torch.{dtype})"
    if not axes or layout == "contiguous":
        return _normal(shape) + cast
    if layout == "permuted":
        order = choose.sample(axes, len(axes))
        back = [order.index(a) for a in axes]
        return f"{_normal([shape[a] for a in order])}{cast}.permute({_list(back)})"
    if layout == "sliced":
        axis, step, start = choose.choice(axes), choose.choice([1, 2, 3]), choose.choice([0, 1])
        size = shape[axis] * step + start
        wide = [size if a == axis else n for a, n in enumerate(shape)]
        end = f"{start}:{start + shape[axis] * step}:{step}"
        return f"{_normal(wide)}{cast}[{', '.join([':'] * axis + [end])}]"
    if layout.startswith("expanded"):
        once = choose.sample(axes, min(2 if layout == "expanded twice" else 1, len(axes)))
        thin = [1 if a in once else n for a, n in enumerate(shape)]
        return f"{_normal(thin)}{cast}.expand({_list(shape)})"
    if layout == "channels last":
        form = "channels_last" if len(shape) == 4 else "channels_last_3d"
        return f"{_normal(shape)}{cast}.contiguous(memory_format=torch.{form})"
    if layout == "offset":
        start = choose.choice([1, 3, 5])
        return f"{_normal([prod(shape) + start])}{cast}[{start}:].view({_list(shape)})"
    if layout == "negated":
        return f"torch._neg_view({_normal(shape)}{cast})"
    if layout == "imaginary part":
        return f"torch.complex({_normal(shape)}{cast}, {_normal(shape)}{cast}).conj().imag"
    if layout == "overlapping":
        strides = [choose.choice([0, 1, 1, 2]) for _ in axes]
        size = 1 + sum(max(n - 1, 0) * stride for n, stride in zip(shape, strides, strict=True))
        return f"{_normal([size])}{cast}.as_strided({shape}, {tuple(strides)})"
    assert layout == "scalar"  # as the gradient of a sum is
    return f"{_normal(())}{cast}.expand({_list(shape)})"


def _normal(shape: list[int] | tuple[int, ...]) -> str:
    return f"normal({_list(shape)})"


def _list(numbers: list[int] | tuple[int, ...]) -> str:
    return ", ".join(map(str, numbers))
