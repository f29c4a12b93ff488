"""One network of one trial: set up, trained epoch by epoch, validated, kept.

Each step is a function of its own, so that it can be called in another way: :func:`set_up` gives a
:class:`Training`, :func:`train_epoch` and :func:`validate` carry it on, and :func:`train` is all of
it, with the checkpoints of a run.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor, nn

from tensorprojection import DivergedError

from ..code_version import code_version
from ..config import RunConfig
from ..errors import StudyError
from ..inputs import Data, Rows
from ..results import EpochRow, UnitFiles
from ..study import Study
from . import checkpoint
from .checkpoint import Checkpoint, DamagedError
from .keeper import Keeper
from .observer import Observer
from .precision import output_of
from .seeds import batch_order, start_seed
from .unit import Epoch, Notice, Say, Step, Unit

# Training images that a network may look at to start from them.
FIRST = 256


@dataclass(frozen=True)
class Training:
    """A unit that is being trained: its network and optimizer, its training and validation rows.

    Its observer, where it has one, looks on while it is validated.
    """

    unit: Unit
    study: Study[Any]
    config: RunConfig
    data: Data
    training: Rows
    validation: Rows
    network: nn.Module
    optimizer: torch.optim.Optimizer
    observer: Observer | None = None


class Way(Protocol):
    """How an epoch is trained and validated: :class:`OneDevice`, or as in parallel.py."""

    def begin(self, state: Training) -> None:
        """The network is as it starts; what is kept of it is restored after this."""

    def train_epoch(self, state: Training, epoch: int, say: Say) -> float: ...

    def validate(self, state: Training) -> dict[str, float]: ...


class OneDevice:
    """In one process, on one device."""

    def begin(self, state: Training) -> None:
        pass

    def train_epoch(self, state: Training, epoch: int, say: Say) -> float:
        return train_epoch(state, epoch, say)

    def validate(self, state: Training) -> dict[str, float]:
        return validate(state)


def train(
    unit: Unit,
    study: Study[Any],
    config: RunConfig,
    data: Data,
    run: Path,
    say: Say,
    way: Way | None = None,
    keeper: Keeper | None = None,
) -> None:
    """Train the unit to its last epoch, from its checkpoint where it has one.

    Every epoch ends with a checkpoint; a process that is killed loses the epoch that it was in. No
    epoch depends on how many are to come, so that more can be asked for later.
    """
    way = way or OneDevice()
    files = UnitFiles.of(run, unit.trial, unit.model)
    there = files.read()
    if len(there.rows) >= config.epochs:  # by a process that was killed before it could say so
        return
    kept = _kept(unit, files, len(there.rows), say)
    state = set_up(unit, study, config, data)
    observer = Observer(state.network, files.observed)  # of the start, whatever is restored
    state = replace(state, observer=observer)
    way.begin(state)
    rows: list[EpochRow] = []
    if kept is not None:
        rows = _restored(kept, state, files)
        if rows != there.rows:  # see Note [Rows and checkpoint]
            files.write(rows)
    for epoch in range(len(rows) + 1, config.epochs + 1):
        started = time.perf_counter()
        with _naming(unit):
            loss = way.train_epoch(state, epoch, say)
            seconds = time.perf_counter() - started
            row: EpochRow = {"epoch": epoch, "train_loss": loss, **way.validate(state)}
        _check_finite(unit, row)
        rows.append(row | {"seconds": seconds, "code": code_version(config.study)})
        if keeper is not None:
            keeper.take(state.network, rows[-1])
        observer.keep(epoch, data, state.validation)  # see Note [Observed before the checkpoint]
        taken = checkpoint.take(state.network, state.optimizer, rows, config.device)
        checkpoint.save(taken, files.checkpoint)
        files.write(rows)
        say(Epoch(unit, rows[-1]))


def set_up(unit: Unit, study: Study[Any], config: RunConfig, data: Data) -> Training:
    """The unit before its first epoch; it depends on the run's seed, the trial and the model."""
    training, validation = data.sides(unit.trial)
    torch.manual_seed(start_seed(config.seed, unit.trial))
    drawn = batch_order(config.seed, unit.trial, 0, len(training))  # rows may be sorted by class
    first, _ = data.batch(training[drawn[:FIRST]])
    network = study.network(config, unit.model, first).to(config.device)
    if study.channels_last:
        network.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    optimizer = torch.optim.Adam(network.parameters(), lr=config.learning_rate)
    return Training(unit, study, config, data, training, validation, network, optimizer)


def train_epoch(state: Training, epoch: int, say: Say = lambda event: None) -> float:
    """One pass over the training set, in that epoch's order; returns the mean loss."""
    config, count = state.config, len(state.training)
    order = state.training[batch_order(config.seed, state.unit.trial, epoch, count)]
    loss = 0.0
    state.network.train()
    for x, y in batches(state.data, order, config):
        loss += train_step(state, x, y) * len(x)
        say(Step(state.unit, epoch, len(x), len(x) / count / config.epochs))
    return loss / count


def train_step(state: Training, x: Tensor, y: Tensor) -> float:
    """One batch: the loss, its gradients, an optimizer step; returns the loss without penalty."""
    state.optimizer.zero_grad()
    value = state.study.loss(output_of(state.network, x, state.config), y)
    penalty = state.study.penalty(state.network)
    (value if penalty is None else value + penalty).backward()
    state.optimizer.step()
    return value.item()


def validate(state: Training) -> dict[str, float]:
    """The study's metrics on the validation set."""
    state.network.eval()
    metrics, observer = state.study.metrics(), state.observer
    with torch.inference_mode(), nullcontext() if observer is None else observer.looking():
        for x, y in batches(state.data, state.validation, state.config):
            output = output_of(state.network, x, state.config)
            metrics.update(output, y)
            if observer is not None:
                observer.update(output, y)
    return metrics.compute()


def batches(data: Data, rows: Rows, config: RunConfig) -> Iterator[tuple[Tensor, Tensor]]:
    """The samples of these rows, batch by batch, on the device; the last batch may be smaller."""
    for chosen in np.split(rows, range(config.batch, len(rows), config.batch)):
        x, y = data.batch(chosen)
        yield x.to(config.device), y.to(config.device)


def _kept(unit: Unit, files: UnitFiles, epochs: int, say: Say) -> Checkpoint | None:
    """The unit's checkpoint; where it is lost, the unit is trained again, with a notice."""
    try:
        kept = checkpoint.load(files.checkpoint)
    except DamagedError as error:
        say(Notice(unit, f"{error} and removed; trained anew from epoch 1."))
        files.checkpoint.unlink(missing_ok=True)
        return None
    if kept is None and epochs:
        say(Notice(unit, f"{files.checkpoint} is gone; trained anew from epoch 1."))
    return kept


def _restored(kept: Checkpoint, state: Training, files: UnitFiles) -> list[EpochRow]:
    try:
        return checkpoint.restore(kept, state.network, state.optimizer, state.config.device)
    except (RuntimeError, ValueError, KeyError) as error:  # of another version of the network
        first = str(error).splitlines()[0]
        raise StudyError(
            f"{files.checkpoint} is not of this network ({first}). Remove it, and the same command "
            "trains the network anew."
        ) from error


@contextmanager
def _naming(unit: Unit) -> Iterator[None]:
    """A projection notices by itself that training has diverged; the unit's name is added here."""
    try:
        yield
    except DivergedError as error:
        raise StudyError(f"{unit}: {error} A smaller learning_rate may help.") from error


def _check_finite(unit: Unit, row: EpochRow) -> None:
    wrong = [name for name, value in row.items() if not math.isfinite(value)]
    if wrong:
        raise StudyError(
            f"{unit}: {wrong[0]} is {row[wrong[0]]} after epoch {row['epoch']}: training has "
            "diverged. A smaller learning_rate may help."
        )
