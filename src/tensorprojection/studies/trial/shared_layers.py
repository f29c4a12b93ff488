"""Layers that depend on the whole batch, for a batch that is divided among processes.

Each does what it would do in one process with the whole batch. torch's own SyncBatchNorm does so
for GPUs only, and its dropout draws other random numbers in every process.
"""

from __future__ import annotations

from typing import TypeVar

import torch
from torch import Tensor, nn

from .group import Group

M = TypeVar("M", bound=nn.Module)


class SharedBatchNorm2d(nn.BatchNorm2d):
    """BatchNorm with the statistics of the whole batch, and the other's parameters and buffers."""

    def __init__(self, other: nn.BatchNorm2d, group: Group) -> None:
        super().__init__(other.num_features, other.eps, other.momentum, other.affine)
        self.weight, self.bias = other.weight, other.bias
        self.running_mean, self.running_var = other.running_mean, other.running_var
        self.num_batches_tracked = other.num_batches_tracked
        self.group = group

    def forward(self, x: Tensor) -> Tensor:
        if not self.training:
            return super().forward(x)
        # In the parameters' type also where the input is in half precision, as torch's own.
        with torch.autocast(x.device.type, enabled=False):
            return self._normalized(x.to(self.weight.dtype)).to(x.dtype)

    def _normalized(self, x: Tensor) -> Tensor:
        over = (0, 2, 3)
        count = self.group.batch * x.shape[2] * x.shape[3]
        mean = self.group.total(x.sum(over)) / count
        centred = x - mean[:, None, None]
        variance = self.group.total(centred.square().sum(over)) / count
        self._keep(mean.detach(), variance.detach() * (count / max(1, count - 1)))
        scale = (variance + self.eps).rsqrt() * self.weight
        return centred * scale[:, None, None] + self.bias[:, None, None]

    def _keep(self, mean: Tensor, variance: Tensor) -> None:
        assert self.running_mean is not None
        assert self.running_var is not None
        assert self.num_batches_tracked is not None
        assert self.momentum is not None
        self.num_batches_tracked.add_(1)
        self.running_mean.lerp_(mean, self.momentum)
        self.running_var.lerp_(variance, self.momentum)


class SharedDropout(nn.Dropout):
    """Each process draws the dropout of the whole batch, and applies its own part of it.

    So the random numbers are those of one process, and stay the same in all.
    """

    def __init__(self, other: nn.Dropout, group: Group) -> None:
        super().__init__(other.p)
        self.group = group

    def forward(self, x: Tensor) -> Tensor:
        if not self.training:
            return x
        whole = x.new_ones((self.group.batch, *x.shape[1:]))
        return x * nn.functional.dropout(whole, self.p)[self.group.bounds]


def share_layers(network: M, group: Group) -> M:
    """Replace such layers in the network; names, parameters and buffers stay."""
    for parent in list(network.modules()):
        for name, child in list(parent.named_children()):
            if isinstance(child, SharedBatchNorm2d | SharedDropout):
                continue
            if isinstance(child, nn.BatchNorm2d):
                setattr(parent, name, SharedBatchNorm2d(child, group))
            elif isinstance(child, nn.Dropout):
                setattr(parent, name, SharedDropout(child, group))
            elif isinstance(child, nn.modules.batchnorm._BatchNorm | nn.modules.dropout._DropoutNd):
                raise TypeError(
                    f"Expected layers that can be shared by several devices, got {child} as {name}."
                )
    return network
