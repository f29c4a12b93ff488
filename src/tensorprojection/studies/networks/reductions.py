"""Reductions of features (C, H, W): the layers in which the networks of a study differ.

A reduction is found by its name. Besides those that a study lists there are reductions to any size,
with the size in the name: ``tpl-16x3x3``, ``max-16x3x3`` and ``avg-16x3x3`` give 16 channels of
3 × 3; ``tpl-16``, ``conv-16`` and ``tcl-16`` give 16 channels and leave height and width alone.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch
from torch import nn

from tensorprojection import TensorProjection
from tensorprojection.init import InitName

from ..errors import StudyError
from .layers import Contraction

Shape = tuple[int, int, int]  # channels, height, width
Layers = dict[str, nn.Module]

SIZED = re.compile(r"(tpl|max|avg|conv|tcl)-([1-9]\d{0,5})(?:x([1-9]\d{0,5})x([1-9]\d{0,5}))?")
TITLES = {
    "tpl": "TensorProjection",
    "max": "MaxPooling",
    "avg": "AveragePooling",
    "conv": "1×1 convolution",
    "tcl": "contraction, unconstrained,",
}
POOLS: dict[str, type[nn.Module]] = {"max": nn.AdaptiveMaxPool2d, "avg": nn.AdaptiveAvgPool2d}


@dataclass(frozen=True)
class Reduction:
    """A title, and a function that makes the layers, by name, from the shape of their input."""

    title: str
    make: Callable[[Shape], Layers]


def halved(shape: Shape, channels: int | None = None) -> Shape:
    return channels or shape[0], shape[1] // 2, shape[2] // 2


def projection(
    title: str,
    channels: int | None = None,
    init: InitName = "normal",
    init_scale: float | None = None,
) -> Reduction:
    """Return a TensorProjection to half the height and width; ``init`` is that of these two."""

    def make(shape: Shape) -> Layers:
        layer = TensorProjection(
            shape,
            halved(shape, channels),
            init=("normal", init, init),  # channels have no order that a pooling could use
            init_scale=None if init_scale is None else (1.0, init_scale, init_scale),
        )
        return {"projection": layer}

    return Reduction(title, make)


def to_size(name: str) -> Reduction:
    """Return the reduction to the size in that name, such as ``tpl-16x3x3`` or ``conv-16``.

    >>> to_size("avg-16x3x3").title
    'AveragePooling to 16 × 3 × 3'
    >>> list(to_size("avg-16x3x3").make((32, 12, 12)))
    ['pool', 'reduce']
    """
    found = SIZED.fullmatch(name)
    assert found is not None
    kind, *sizes = found.groups()
    wanted = [int(size) for size in sizes if size is not None]

    def make(shape: Shape) -> Layers:
        out = (wanted[0], *(wanted[1:] or shape[1:]))
        if any(q > p for p, q in zip(shape, out, strict=True)):
            most = "x".join(map(str, shape if wanted[1:] else shape[:1]))
            raise StudyError(f"Expected at most {kind}-{most} for these images, got {name}.")
        return _layers(kind, shape, out)

    return Reduction(f"{TITLES[kind]} to {' × '.join(map(str, wanted))}", make)


def _layers(kind: str, shape: Shape, out: Shape) -> Layers:
    if kind == "tpl":
        return {"projection": TensorProjection(shape, out)}
    if kind == "tcl":
        return {"contraction": Contraction(shape, out)}
    if kind == "conv":
        return {"conv": nn.Conv2d(shape[0], out[0], 1)}
    layers = {"pool": POOLS[kind](out[1:])}
    if out[0] < shape[0]:
        layers["reduce"] = nn.Conv2d(shape[0], out[0], 1)
    return layers


GLOBAL_AVERAGE = Reduction(
    "global average pooling", lambda shape: {"pool": nn.AdaptiveAvgPool2d(1)}
)


def find_reduction(known: Mapping[str, Reduction], sized: str, name: str) -> Reduction:
    """Return a known reduction, or the one of a size, if its name is like one of ``sized``.

    ``sized`` lists the kinds that a study has, such as ``"tpl-CxHxW, conv-C"``.
    """
    if name in known:
        return known[name]
    if (match := SIZED.fullmatch(name)) is not None:
        like = f"{match[1]}-C" if match[3] is None else f"{match[1]}-CxHxW"
        if like in sized.split(", "):
            return to_size(name)
    raise StudyError(f"Expected models of {', '.join(known)}, {sized}, got {name}.")


def add_layers(network: nn.Sequential, layers: Layers, shape: Shape, after: str = "") -> Shape:
    """Add the layers, with ``after`` behind their names, and return the shape that they give."""
    features = torch.zeros(1, *shape)
    for name, layer in layers.items():
        network.add_module(name + after, layer)
        with torch.no_grad():
            features = layer(features)
    _, channels, height, width = features.shape
    return channels, height, width
