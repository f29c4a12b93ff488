"""The state of a job from which it continues after a kill, or for more epochs than before."""

from __future__ import annotations

import hashlib
import io
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn

from ..errors import StudyError
from ..results import EpochRow, JobFiles
from .job import Job, Notice

# After the file that torch writes, which torch.load reads as if it were not there.
MARK = b"\nsha256 "
TRAILER = len(MARK) + 64


class CorruptError(Exception):
    """A checkpoint is not as it was written."""


@dataclass(frozen=True)
class Checkpoint:
    """Network, optimizer and random numbers after an epoch."""

    epoch: int
    network: dict[str, Any]
    optimizer: dict[str, Any]
    rng: dict[str, Any]


@dataclass(frozen=True)
class JobState:
    """The state that a job continues from: the content of its files, all of one epoch."""

    rows: tuple[EpochRow, ...] = ()
    checkpoint: bytes | None = None
    network: bytes | None = None


def resume(job: Job, files: JobFiles) -> tuple[JobState, list[Notice]]:
    """Return the state to continue from, and drop lines that are after its checkpoint.

    Without a checkpoint that fits the lines the job is trained again from its first epoch. See Note
    [Rows before the checkpoint].
    """
    rows, problem = files.read()
    try:
        content = _content(files.checkpoint)
        epoch = 0 if content is None else load(content, files.checkpoint).epoch
        if content is None and rows:
            problem = problem or f"{files.checkpoint} is missing"
        elif epoch > len(rows):
            problem = problem or f"{files.lines} lacks epochs of its checkpoint"
    except CorruptError as error:
        content, epoch, problem = None, 0, str(error)
    if epoch > len(rows):
        content, epoch = None, 0
    notices = []
    if problem is not None:
        again = f"{problem}: it continues after epoch {epoch}." if epoch else f"{problem}."
        notices.append(Notice(job, again if epoch else f"{again} It is trained from epoch 1 on."))
    files.write(rows[:epoch])
    if content is None:
        return JobState(), notices
    return JobState(tuple(rows[:epoch]), content, _content(files.network)), notices


def take(network: nn.Module, optimizer: torch.optim.Optimizer, epoch: int, device: str) -> bytes:
    """Return the checkpoint as a file: tensors and plain values only, and a checksum."""
    rng: dict[str, Any] = {"cpu": torch.get_rng_state()}
    if device.startswith("cuda"):
        rng["cuda"] = torch.cuda.get_rng_state(device)
    taken = Checkpoint(epoch, network.state_dict(), optimizer.state_dict(), rng)
    # Through memory: torch's own writer turns a full disk into an error that does not say so.
    buffer = io.BytesIO()
    torch.save(vars(taken), buffer)
    buffer.write(MARK + hashlib.sha256(buffer.getbuffer()).hexdigest().encode())
    return buffer.getvalue()


def load(content: bytes, path: Path) -> Checkpoint:
    """Return the checkpoint; ``CorruptError`` names its path if the checksum does not fit.

    torch would notice little: it does not look at the checksums of the tensors in its files.
    """
    whole = memoryview(content)
    expected = MARK + hashlib.sha256(whole[:-TRAILER]).hexdigest().encode()
    if whole[-TRAILER:] != expected:
        raise CorruptError(f"{path} is corrupted")
    return Checkpoint(**torch.load(io.BytesIO(content), map_location="cpu", weights_only=True))


def restore(
    content: bytes, path: Path, network: nn.Module, optimizer: torch.optim.Optimizer, device: str
) -> None:
    """Put network, optimizer and random numbers back."""
    taken = load(content, path)
    try:
        network.load_state_dict(taken.network)
        optimizer.load_state_dict(taken.optimizer)
    except (RuntimeError, ValueError, KeyError) as error:  # of another version of the network
        first = str(error).splitlines()[0]
        raise StudyError(
            f"{path} is not of this network ({first}). Remove it, and the same command trains the "
            "network again."
        ) from error
    torch.set_rng_state(taken.rng["cpu"])
    if device.startswith("cuda"):
        torch.cuda.set_rng_state(taken.rng["cuda"], device)


def _content(path: Path) -> bytes | None:
    try:
        return path.read_bytes()
    except FileNotFoundError:
        return None
