"""One network of one trial: train, validate, keep what is needed to go on."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn

from tensorprojection import DivergedError

from . import checkpoint
from .checkpoint import Row
from .config import RunConfig
from .errors import StudyError
from .results import UnitFiles
from .seeds import batch_order, start_seed
from .study import Data, Rows, Study

# Training images that a network may look at to start from them.
FIRST = 256


@dataclass(frozen=True, order=True)
class Unit:
    """What is trained by one process at a time: a model in a trial."""

    trial: int
    model: str

    def __str__(self) -> str:
        return f"trial {self.trial + 1} {self.model}"


@dataclass(frozen=True)
class Step:
    """So many more training images are done, and that share of all epochs of the unit."""

    unit: Unit
    epoch: int
    images: int
    share: float

    def after(self, other: Step) -> Step:
        """Both steps as one."""
        both = self.images + other.images, self.share + other.share
        return Step(self.unit, self.epoch, *both)


@dataclass(frozen=True)
class Epoch:
    """An epoch is done and kept."""

    unit: Unit
    row: Row


Report = Callable[[Step | Epoch], None]


def train(unit: Unit, study: Study, config: RunConfig, data: Data, run: Path, say: Report) -> None:
    """Train the unit to its last epoch, from its checkpoint where it has one.

    Every epoch ends with a checkpoint; a process that is killed loses the epoch that it was in.
    """
    files = UnitFiles.of(run, unit.trial, unit.model)
    if files.finished.exists():  # by a process that was killed before it could say so
        return
    training, validation = data.sides(unit.trial)
    torch.manual_seed(start_seed(config.seed, unit.trial))
    drawn = batch_order(config.seed, unit.trial, 0, len(training))  # rows may be sorted by class
    first, _ = data.batch(training[drawn[:FIRST]])
    network = study.network(config, unit.model, first).to(config.device)
    if study.channels_last:
        network.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    optimizer = torch.optim.Adam(network.parameters(), lr=config.learning_rate)
    rows: list[Row] = []
    if (kept := checkpoint.load(files.checkpoint)) is not None:
        rows = checkpoint.restore(kept, network, optimizer, config.device)
    for epoch in range(len(rows) + 1, config.epochs + 1):
        started = time.perf_counter()
        order = training[batch_order(config.seed, unit.trial, epoch, len(training))]
        loss = 0.0
        network.train()
        with _naming(unit):
            for x, y in batches(data, order, config):
                optimizer.zero_grad()
                value = study.loss(network(x), y)
                penalty = study.penalty(network)
                (value if penalty is None else value + penalty).backward()
                optimizer.step()
                loss += value.item() * len(x)
                say(Step(unit, epoch, len(x), len(x) / len(training) / config.epochs))
            seconds = time.perf_counter() - started
            row = {"epoch": epoch, "train_loss": loss / len(training)}
            row |= validate(network, study, config, data, validation)
        _check_finite(unit, row)
        rows.append(row | {"seconds": seconds})
        state = checkpoint.take(network, optimizer, rows, config.device)
        checkpoint.save(state, files.checkpoint)
        say(Epoch(unit, rows[-1]))
    files.finish(rows)


def validate(
    network: nn.Module, study: Study, config: RunConfig, data: Data, rows: Rows
) -> dict[str, float]:
    """The study's metrics on these rows."""
    network.eval()
    metrics = study.metrics()
    with torch.inference_mode():
        for x, y in batches(data, rows, config):
            metrics.update(network(x), y)
    return metrics.compute()


def batches(data: Data, rows: Rows, config: RunConfig) -> Iterator[tuple[Tensor, Tensor]]:
    """The samples of these rows, batch by batch, on the device; the last batch may be smaller."""
    for chosen in np.split(rows, range(config.batch, len(rows), config.batch)):
        x, y = data.batch(chosen)
        yield x.to(config.device), y.to(config.device)


@contextmanager
def _naming(unit: Unit) -> Iterator[None]:
    """A projection finds out by itself that training has diverged, but not whose it is."""
    try:
        yield
    except DivergedError as error:
        raise StudyError(f"{unit}: {error} A smaller learning_rate may help.") from error


def _check_finite(unit: Unit, row: Row) -> None:
    wrong = [name for name, value in row.items() if not math.isfinite(value)]
    if wrong:
        raise StudyError(
            f"{unit}: {wrong[0]} is {row[wrong[0]]} after epoch {row['epoch']}: training has "
            "diverged. A smaller learning_rate may help."
        )
