"""Pixels in [0, 1] as a network wants them, as layers, so that they are exported with it."""

from __future__ import annotations

import torch
from torch import Tensor, nn


class Repeated(nn.Module):
    """Gray as three equal channels; colour as it is."""

    def forward(self, x: Tensor) -> Tensor:
        return x.expand(-1, 3, -1, -1)


class Normalise(nn.Module):
    """Subtracts a mean from each channel and divides by a standard deviation.

    >>> Normalise((0.5,), (0.25,))(torch.ones(1, 1, 1, 1)).item()
    2.0
    """

    mean: Tensor
    std: Tensor

    def __init__(self, mean: tuple[float, ...], std: tuple[float, ...]) -> None:
        super().__init__()
        self.register_buffer("mean", torch.tensor(mean)[:, None, None])
        self.register_buffer("std", torch.tensor(std)[:, None, None])

    def forward(self, x: Tensor) -> Tensor:
        return (x - self.mean) / self.std
