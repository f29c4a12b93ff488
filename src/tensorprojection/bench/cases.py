"""The cases: the layers of the paper's three studies, and a wide one."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn

import tensorprojection as tp

Shape3 = tuple[int, int, int]

FORMATS = {"NCHW": torch.contiguous_format, "NHWC": torch.channels_last}


@dataclass(frozen=True)
class Case:
    """A layer from (batch, *source) to (batch, *target), and what stood in its place."""

    name: str
    batch: int
    source: Shape3
    target: Shape3
    replaces: Callable[[], nn.Module] | None = None
    replaced: str = ""

    @property
    def transposed(self) -> bool:
        return self.target > self.source

    def layer(self) -> tp.TensorProjection | tp.TransposeTensorProjection:
        if self.transposed:
            return tp.TransposeTensorProjection(self.source, self.target)
        return tp.TensorProjection(self.source, self.target)

    def input(self, memory_format: str) -> Tensor:
        x = torch.randn(self.batch, *self.source)
        return x.to(memory_format=FORMATS[memory_format]).requires_grad_()


def _pool(size: int) -> Callable[[], nn.Module]:
    return lambda: nn.MaxPool2d(size)


def _up(channels: int) -> Callable[[], nn.Module]:
    return lambda: nn.ConvTranspose2d(channels, channels, 2, 2)


CASES = [
    Case("OCT-1", 300, (32, 12, 12), (32, 6, 6), _pool(2), "MaxPool2d"),
    Case("OCT-2", 300, (32, 12, 12), (20, 6, 6)),
    Case("chest", 64, (1024, 5, 5), (64, 5, 5), lambda: nn.Conv2d(1024, 64, 1), "Conv2d 1×1"),
    Case("Kvasir-16", 50, (128, 16, 16), (128, 8, 8), _pool(2), "MaxPool2d"),
    Case("Kvasir-64", 50, (512, 16, 16), (512, 8, 8), _pool(2), "MaxPool2d"),
    Case("Kvasir-64 aggressive", 50, (512, 16, 16), (512, 4, 4), _pool(4), "MaxPool2d"),
    Case("wide", 32, (256, 28, 28), (64, 14, 14)),
    Case("Kvasir-16 up", 50, (128, 8, 8), (128, 16, 16), _up(128), "ConvTranspose2d"),
    Case("Kvasir-64 up", 50, (512, 8, 8), (512, 16, 16), _up(512), "ConvTranspose2d"),
]
