"""The cases: the layers of the paper's three studies, other sizes, and other kinds of input."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, cast

import torch
from torch import Tensor, nn

import tensorprojection as tp

Shape = tuple[int, ...]

FORMATS = {"NCHW": torch.contiguous_format, "NHWC": torch.channels_last}
# By the number of modes: tokens, images, volumes.
BY_ORDER = {
    2: {"tokens": torch.contiguous_format},
    3: FORMATS,
    4: {"NCDHW": torch.contiguous_format, "NDHWC": torch.channels_last_3d},
}
AUTOCAST = "bfloat16 autocast"


@dataclass(frozen=True)
class Case:
    """A layer from (batch, *source) to (batch, *target), and what stood in its place."""

    name: str
    batch: int
    source: Shape
    target: Shape
    replaces: Callable[[], nn.Module] | None = None
    replaced: str = ""
    precision: str = "float32"  # or "float64", or AUTOCAST

    @property
    def transposed(self) -> bool:
        return self.target > self.source

    @property
    def formats(self) -> dict[str, torch.memory_format]:
        return BY_ORDER[len(self.source)]

    @property
    def dtype(self) -> torch.dtype:
        return torch.float64 if self.precision == "float64" else torch.float32

    @property
    def shapes(self) -> str:
        source, target = ("×".join(map(str, shape)) for shape in (self.source, self.target))
        return f"{source} → {target}"

    def layer(self) -> tp.TensorProjection | tp.TransposeTensorProjection:
        cls = tp.TransposeTensorProjection if self.transposed else tp.TensorProjection
        return cls(self.source, self.target, dtype=self.dtype)

    def other(self, memory_format: str) -> nn.Module | None:
        """Return the layer that this one replaces."""
        if self.replaces is None:
            return None
        module: Any = self.replaces().to(self.dtype)
        return cast(nn.Module, module.to(memory_format=self.formats[memory_format]))

    def input(self, memory_format: str) -> Tensor:
        # What the layer before returns: under autocast, a bfloat16 tensor.
        dtype = torch.bfloat16 if self.precision == AUTOCAST else self.dtype
        x = torch.randn(self.batch, *self.source, dtype=dtype)
        return x.to(memory_format=self.formats[memory_format]).requires_grad_()

    def context(self) -> AbstractContextManager[Any]:
        return (
            torch.autocast("cpu", torch.bfloat16) if self.precision == AUTOCAST else nullcontext()
        )


def _pooling(name: str, batch: int, source: Shape, size: int = 2) -> Case:
    target = (source[0], *(n // size for n in source[1:]))
    kind: Any = nn.MaxPool3d if len(source) == 4 else nn.MaxPool2d
    return Case(name, batch, source, target, partial(kind, size), kind.__name__)


def _up(name: str, channels: int) -> Case:
    source, target = (channels, 8, 8), (channels, 16, 16)
    other = partial(nn.ConvTranspose2d, channels, channels, 2, 2)
    return Case(name, 50, source, target, other, "ConvTranspose2d")


OCT = _pooling("OCT-1", 300, (32, 12, 12))
CHEST = Case("chest", 64, (1024, 5, 5), (64, 5, 5), partial(nn.Conv2d, 1024, 64, 1), "Conv2d 1×1")
KVASIR = _pooling("Kvasir-16", 50, (128, 16, 16))
# Of the paper, and a wide one. Only these are compared with other libraries.
CASES = [
    OCT,
    Case("OCT-2", 300, (32, 12, 12), (20, 6, 6)),
    CHEST,
    KVASIR,
    _pooling("Kvasir-64", 50, (512, 16, 16)),
    _pooling("Kvasir-64 aggressive", 50, (512, 16, 16), 4),
    Case("wide", 32, (256, 28, 28), (64, 14, 14)),
    _up("Kvasir-16 up", 128),
    _up("Kvasir-64 up", 512),
]
SIDES = [
    _pooling("side 7", 64, (512, 7, 7)),
    _pooling("side 20", 50, (128, 20, 20)),
    _pooling("side 24", 50, (128, 24, 24)),
    _pooling("side 28", 50, (64, 28, 28)),
]
SMALL = [
    replace(case, name=f"{case.name}, batch {batch}", batch=batch)
    for case in (OCT, KVASIR, SIDES[-1])
    for batch in (1, 8)
]
OTHERS = [
    Case("sequence", 16, (128, 768), (128, 256), partial(nn.Linear, 768, 256), "Linear"),
    _pooling("volume", 16, (16, 16, 16, 16)),
]
LARGE = [_pooling("side 56", 8, (64, 56, 56)), _pooling("side 112", 8, (32, 112, 112))]
TYPES = [
    replace(case, name=f"{case.name}, {precision}", precision=precision)
    for case in (OCT, CHEST, KVASIR)
    for precision in (AUTOCAST, "float64")
]
TRAIN, INFER = "training", "inference"
SUITES: dict[str, Sequence[tuple[str, Sequence[Case]]]] = {
    "train": [(TRAIN, [*CASES, *SIDES, *SMALL, *OTHERS])],
    "infer": [(INFER, [OCT, CHEST, KVASIR, *SIDES, *SMALL, *OTHERS])],
    "types": [(TRAIN, TYPES), (INFER, TYPES)],
    "large": [(TRAIN, [SIDES[-1], *LARGE]), (INFER, [SIDES[-1], *LARGE])],
}
