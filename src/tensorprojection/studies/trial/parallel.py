"""One training on several devices, through Lightning Fabric: the curve of one device.

Each process has a share of every batch. The loss is that of the whole batch, from the outputs of
all: a Dice loss is no mean over samples. BatchNorm and dropout see the whole batch as well
(shared_layers.py), and the metrics the whole validation set. So the number of devices changes
nothing but the order of sums, and a checkpoint can be continued on another number of them.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import nullcontext
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from ..inputs import Rows
from .group import Group
from .seeds import batch_order
from .shared_layers import share_layers
from .train import Training
from .unit import Say, Step

if TYPE_CHECKING:
    from lightning_fabric import Fabric


class Parallel:
    """How a unit is trained in one of several processes; all of them call the same in turn."""

    def __init__(self, fabric: Fabric) -> None:
        self.fabric = fabric
        self.group = Group(fabric.global_rank, fabric.world_size)
        self.network: Any = None
        self.optimizer: Any = None

    def begin(self, state: Training) -> None:
        """Wrap the network and the optimizer; both stay what is restored and kept."""
        share_layers(state.network, self.group)
        self.network, self.optimizer = self.fabric.setup(state.network, state.optimizer)

    def train_epoch(self, state: Training, epoch: int, say: Say) -> float:
        """One pass over the training set, in that epoch's order; returns the mean loss."""
        config, count = state.config, len(state.training)
        order = state.training[batch_order(config.seed, state.unit.trial, epoch, count)]
        loss = 0.0
        self.network.train()
        for size, x, y in self._batches(state, order):
            loss += self._step(state, x, y) * size
            say(Step(state.unit, epoch, size, size / count / config.epochs))
        return loss / count

    def _step(self, state: Training, x: Tensor, y: Tensor) -> float:
        self.optimizer.zero_grad()
        value = state.study.loss(self.group.gather(self.network(x)), self.group.gather(y))
        penalty = state.study.penalty(state.network)
        self.fabric.backward(value if penalty is None else value + penalty)
        self.optimizer.step()
        return value.item()

    def validate(self, state: Training) -> dict[str, float]:
        """The study's metrics on the whole validation set, in every process."""
        self.network.eval()
        metrics, observer = state.study.metrics(), state.observer
        alone = self.group.size == 1  # else this process's network sees a part of the images
        with torch.no_grad(), nullcontext() if observer is None else observer.looking(alone):
            for _, x, y in self._batches(state, state.validation):
                output, target = self.group.gather(self.network(x)), self.group.gather(y)
                metrics.update(output, target)
                if observer is not None:
                    observer.update(output, target)
        return metrics.compute()

    def _batches(self, state: Training, rows: Rows) -> Iterator[tuple[int, Tensor, Tensor]]:
        """The size of each batch, and this process's share of it on its device."""
        batch = state.config.batch
        for chosen in np.split(rows, range(batch, len(rows), batch)):
            x, y = state.data.batch(self.group.share(chosen))
            yield len(chosen), x.to(self.fabric.device), y.to(self.fabric.device)
