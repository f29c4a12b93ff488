"""One job: set up, trained epoch by epoch, validated.

:func:`set_up` returns a :class:`Training`, :func:`train_epoch` and :func:`validate` advance it, and
:func:`train` is all of it. Nothing here reads or writes files: an epoch's event has the files, and
its receiver saves them.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import torch
from torch import Tensor, nn

from ..config import RunConfig, code_version
from ..errors import StudyError
from ..inputs import Data, Rows, Split
from ..network_file import About, Keep, encode_network, score
from ..results import BY_CLASS, COUNTS, NOT_METRICS, TEST, TEST_IMAGES, EpochRow, Saved
from ..study import Metrics, Study
from . import checkpoint
from .checkpoint import JobState
from .job import Emit, Epoch, Job, Step
from .observer import Observer, encode_observed, matrices
from .seeds import batch_order, init_seed

T = TypeVar("T")

FIRST = 256  # training images from which a network may be initialized
STEP_SECONDS = 0.5  # the least time between two events within an epoch


@dataclass(frozen=True)
class Training:
    """A job that is being trained: its network and optimizer, and the rows of its sets."""

    job: Job
    study: Study[Any]
    config: RunConfig
    data: Data
    rows: Split
    network: nn.Module
    optimizer: torch.optim.Optimizer
    class_names: Sequence[str] = ()


def train(
    job: Job,
    study: Study[Any],
    config: RunConfig,
    data: Data,
    emit: Emit,
    state: JobState | None = None,
    keep: Keep = "none",
    class_names: Sequence[str] = (),
) -> None:
    """Train the job to its last epoch, and emit every epoch with what is to be saved of it.

    Unless the learning rate has a schedule, no epoch depends on how many are to come, so that more
    can be asked for later.

    Args:
        job: the network and the trial.
        study: its study.
        config: the run's settings.
        data: the samples.
        emit: called with every event.
        state: the state to continue from; default: before the first epoch.
        keep: the network to save: of the epoch with the lowest validation loss, the last, or none.
        class_names: those of the run's images, for metrics by class and the saved network.
    """
    state = state or JobState()
    now = set_up(job, study, config, data)
    now = replace(now, class_names=class_names)
    start = matrices(now.network, "start")  # before a checkpoint is restored
    counts = count_originals(now)
    if state.checkpoint is not None:
        path = Path("trials") / f"{job.trial + 1:03d}" / f"{job.model}.pt"
        checkpoint.restore(state.checkpoint, path, now.network, now.optimizer, config.device)
    lowest = min(map(score, state.rows), default=math.inf)
    lowest_saved = lowest if state.network else math.inf
    for epoch in range(len(state.rows) + 1, config.epochs + 1):
        started = time.perf_counter()
        loss = train_epoch(now, epoch, emit)
        seconds = time.perf_counter() - started
        observer = Observer()
        measured = validate(now, now.rows.validation, observer)
        row: EpochRow = {"epoch": epoch, "train_loss": loss, **measured}
        if len(now.rows.test) and score(row) < lowest:
            measured = validate(now, now.rows.test)
            row |= {f"{TEST}{name}": value for name, value in measured.items()}
        # A score may be undefined: the AUC of a validation set of one class.
        wrong = [n for n, value in row.items() if "loss" in n and not math.isfinite(value)]
        if wrong:
            raise diverged(now, f"{wrong[0]} is {row[wrong[0]]} after epoch {epoch}")
        row |= {"seconds": seconds, **counts, "code": code_version(study)}
        network = None
        if keep == "last" or (keep == "best" and score(row) < lowest_saved):
            network = network_file(now, row, keep)
            lowest_saved = score(row)
        lowest = min(lowest, score(row))
        predicted = observer.arrays(data, now.rows.validation, class_names)
        observed = {**start, **matrices(now.network, "U"), **predicted}
        saved = Saved(
            checkpoint.take(now.network, now.optimizer, epoch, config.device),
            network,
            encode_observed(epoch, observed),
        )
        emit(Epoch(job, row, saved))


def set_up(job: Job, study: Study[Any], config: RunConfig, data: Data) -> Training:
    """Return the job before its first epoch; it depends on the run's seed, the trial and the model.

    Its networks share the trial's split, their common initial values and the order of batches.
    """
    rows = Split(*data.split(job.trial))
    torch.manual_seed(init_seed(config.seed, job.trial))
    drawn = batch_order(config.seed, job.trial, 0, len(rows.train))  # may be sorted by class
    first, _ = data.batch(rows.train[drawn[:FIRST]])
    network = study.network(config, job.model, first)
    if not isinstance(network, nn.Module):
        raise StudyError(
            f"{job}: Expected an nn.Module from the study's network, got {type(network).__name__}."
        )
    network.to(config.device)
    if study.sees_images and study.frozen(config) is None:
        network.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    if not any(p.requires_grad for p in network.parameters()):
        raise StudyError(f"{job}: Expected a network with parameters to train, got none.")
    optimizer = study.optimizer(network, config)
    return Training(job, study, config, data, rows, network, optimizer)


def count_originals(now: Training) -> dict[str, int]:
    """Return how many images train, validate and test, augmented copies not counted.

    A study's data with copies has ``count_originals(rows)``; without it every row is an original.
    """
    count = getattr(now.data, "count_originals", len)
    names = (*COUNTS, TEST_IMAGES) if len(now.rows.test) else COUNTS
    return {name: count(rows) for name, rows in zip(names, now.rows, strict=False)}


def train_epoch(now: Training, epoch: int, emit: Emit = lambda event: None) -> float:
    """Make one pass over the training set, in that epoch's order; return the mean loss."""
    config, count = now.config, len(now.rows.train)
    order = now.rows.train[batch_order(config.seed, now.job.trial, epoch, count)]
    for group in now.optimizer.param_groups:
        group["lr"] = learning_rate(config, epoch)
    loss, images, emitted, last = 0.0, 0, 0, time.monotonic()
    now.network.train()
    for x, y in batches(now.data, order, config):
        value = train_step(now, x, y)
        if not math.isfinite(value):
            raise diverged(now, f"the training loss is {value} in epoch {epoch}")
        loss += value * len(x)
        images += len(x)
        # There can be hundreds of steps per second, and hundreds of workers.
        if images == count or time.monotonic() - last > STEP_SECONDS:
            more, emitted, last = images - emitted, images, time.monotonic()
            emit(Step(now.job, epoch, more, more / count / config.epochs))
    return loss / count


def learning_rate(config: RunConfig, epoch: int) -> float:
    """Return the learning rate of an epoch, counted from 1."""
    if config.schedule == "constant":
        return config.learning_rate
    return config.learning_rate * 0.5 * (1 + math.cos(math.pi * (epoch - 1) / config.epochs))


def train_step(now: Training, x: Tensor, y: Tensor) -> float:
    """Train on one batch; return the loss without penalty, and stop before a step if it is NaN."""
    now.optimizer.zero_grad()
    output = output_of(now.network, x, now.config)
    value = _measured(now, now.study.loss, output, y)
    if math.isfinite(loss := value.item()):
        penalty = now.study.penalty(now.network)
        (value if penalty is None else value + penalty).backward()
        now.optimizer.step()
    return loss


def validate(now: Training, rows: Rows, observer: Observer | None = None) -> dict[str, float]:
    """Return the study's metrics on these rows, also by class if it has them."""
    now.network.eval()
    metrics = now.study.metrics()
    with torch.inference_mode():
        for x, y in batches(now.data, rows, now.config):
            output = output_of(now.network, x, now.config)
            _measured(now, metrics.update, output, y)
            if observer is not None:
                observer.update(output, y)
    return computed(metrics, now.class_names)


def computed(metrics: Metrics, class_names: Sequence[str]) -> dict[str, float]:
    """Return the metrics by name; those by class have the class in their name."""
    by_class: dict[str, list[float]] = getattr(metrics, "by_class", dict)()
    return metrics.compute() | {
        f"{name}{BY_CLASS}{of}": value
        for name, values in by_class.items()
        for of, value in zip(class_names, values, strict=False)
    }


def output_of(network: nn.Module, x: Tensor, config: RunConfig) -> Tensor:
    """Return the network's output; with bf16-mixed computed in bfloat16 where that is safe.

    Parameters, their gradients, the optimizer and the output stay in float32.
    """
    mixed = config.precision == "bf16-mixed"
    with torch.autocast(x.device.type, torch.bfloat16) if mixed else nullcontext():
        output = network(x)
    if not isinstance(output, Tensor):
        raise StudyError(f"Expected a tensor from the network, got {type(output).__name__}.")
    return output.float() if mixed else output


def batches(data: Data, rows: Rows, config: RunConfig) -> Iterator[tuple[Tensor, Tensor]]:
    """Yield the samples of these rows in batches, on the device; the last may be smaller."""
    for chosen in np.split(rows, range(config.batch, len(rows), config.batch)):
        x, y = data.batch(chosen)
        yield x.to(config.device), y.to(config.device)


def network_file(now: Training, row: EpochRow, keep: Keep) -> bytes:
    """Return the network as a file, with its settings and results in the header."""
    about = About(
        config=now.config.as_settings(),
        model=now.job.model,
        trial=now.job.trial + 1,
        epoch=row["epoch"],
        metrics={k: v for k, v in row.items() if k not in ("epoch", TEST_IMAGES, *NOT_METRICS)},
        class_names=tuple(now.class_names),
        code=str(row["code"]),
        keep=keep,
    )
    return encode_network(about, now.network.state_dict())


def diverged(now: Training, what: str) -> StudyError:
    """Return an error that names the first parameter that is not finite."""
    wrong = (n for n, p in now.network.named_parameters() if not bool(p.isfinite().all()))
    name = next(wrong, None)
    where = "all parameters are finite" if name is None else f"{name} is not finite"
    return StudyError(
        f"{now.job}: {what}: training has diverged; {where}. A smaller --learning-rate may help."
    )


def _measured(now: Training, measure: Callable[..., T], output: Tensor, y: Tensor) -> T:
    """Call a loss or a metric; an output that it does not take is reported with its shape."""
    try:
        return measure(output, y)
    except (RuntimeError, ValueError, IndexError, TypeError) as error:
        if isinstance(error, torch.OutOfMemoryError) or "allocate memory" in str(error):
            raise
        first = (str(error).splitlines() or [type(error).__name__])[0]
        raise StudyError(
            f"{now.job}: The network's output of shape {tuple(output.shape)} does not fit targets "
            f"of shape {tuple(y.shape)}: {first}"
        ) from error
