"""One network of one trial: train, validate, keep what is needed to go on."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn

from tensorprojection import DivergedError

from . import checkpoint
from .checkpoint import Checkpoint, DamagedError
from .code_version import code_version
from .config import RunConfig
from .errors import StudyError
from .kept.networks import Keep, Keeper
from .kept.observed import observed_file
from .kept.observer import Observer
from .results import Row, UnitFiles
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


@dataclass(frozen=True)
class Notice:
    """Something that whoever started the run should know of the unit."""

    unit: Unit
    text: str


Report = Callable[[Step | Epoch | Notice], None]


def train(
    unit: Unit,
    study: Study,
    config: RunConfig,
    data: Data,
    run: Path,
    say: Report,
    keep: Keep = "none",
) -> None:
    """Train the unit to its last epoch, from its checkpoint where it has one.

    Every epoch ends with a checkpoint; a process that is killed loses the epoch that it was in. No
    epoch depends on how many are to come, so that more can be asked for later.
    """
    files = UnitFiles.of(run, unit.trial, unit.model)
    there = files.read()
    if len(there.rows) >= config.epochs:  # by a process that was killed before it could say so
        return
    kept = _kept(unit, files, len(there.rows), say)
    training, validation = data.sides(unit.trial)
    torch.manual_seed(start_seed(config.seed, unit.trial))
    drawn = batch_order(config.seed, unit.trial, 0, len(training))  # rows may be sorted by class
    first, _ = data.batch(training[drawn[:FIRST]])
    network = study.network(config, unit.model, first).to(config.device)
    if study.channels_last:
        network.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    keeper = Keeper(keep, run, config, unit.trial, unit.model)
    observer = Observer(network, observed_file(run, unit.trial, unit.model))
    optimizer = torch.optim.Adam(network.parameters(), lr=config.learning_rate)
    rows: list[Row] = []
    if kept is not None:
        rows = _restored(kept, network, optimizer, config.device, files)
        if rows != there.rows:  # see Note [Rows and checkpoint]
            files.write(rows)
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
            row: Row = {"epoch": epoch, "train_loss": loss / len(training)}
            row |= validate(network, study, config, data, validation, observer)
        _check_finite(unit, row)
        rows.append(row | {"seconds": seconds, "code": code_version()})
        keeper.take(network, rows[-1])
        observer.keep(epoch, data, validation)  # see Note [Observed before the checkpoint]
        state = checkpoint.take(network, optimizer, rows, config.device)
        checkpoint.save(state, files.checkpoint)
        files.write(rows)
        say(Epoch(unit, rows[-1]))


def _kept(unit: Unit, files: UnitFiles, epochs: int, say: Report) -> Checkpoint | None:
    """The unit's checkpoint; where it is lost, the unit is trained anew, and that is said."""
    try:
        kept = checkpoint.load(files.checkpoint)
    except DamagedError as error:
        say(Notice(unit, f"{error} and removed; trained anew from epoch 1."))
        files.checkpoint.unlink(missing_ok=True)
        return None
    if kept is None and epochs:
        say(Notice(unit, f"{files.checkpoint} is gone; trained anew from epoch 1."))
    return kept


def _restored(
    kept: Checkpoint,
    network: nn.Module,
    optimizer: torch.optim.Optimizer,
    device: str,
    files: UnitFiles,
) -> list[Row]:
    try:
        return checkpoint.restore(kept, network, optimizer, device)
    except (RuntimeError, ValueError, KeyError) as error:  # of another version of the network
        first = str(error).splitlines()[0]
        raise StudyError(
            f"{files.checkpoint} is not of this network ({first}). Remove it, and the same command "
            "trains the network anew."
        ) from error


def validate(
    network: nn.Module,
    study: Study,
    config: RunConfig,
    data: Data,
    rows: Rows,
    observer: Observer | None = None,
) -> dict[str, float]:
    """The study's metrics on these rows; an observer looks on."""
    network.eval()
    metrics = study.metrics()
    with torch.inference_mode(), nullcontext() if observer is None else observer.looking():
        for x, y in batches(data, rows, config):
            output = network(x)
            metrics.update(output, y)
            if observer is not None:
                observer.update(output, y)
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
