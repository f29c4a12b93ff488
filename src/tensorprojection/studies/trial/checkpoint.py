"""What a trial needs to go on after its process was killed, or for more epochs than before."""

from __future__ import annotations

import hashlib
import io
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn

from ..files import write_whole
from ..results import EpochRow

# After the file that torch writes, which torch.load reads as if it were not there.
MARK = b"\nsha256 "
TRAILER = len(MARK) + 64


class DamagedError(Exception):
    """A checkpoint is not what was written."""


@dataclass(frozen=True)
class Checkpoint:
    """The state after an epoch: network, optimizer, random numbers, and the epochs' results."""

    network: dict[str, Any]
    optimizer: dict[str, Any]
    rng: dict[str, Any]
    rows: list[EpochRow]


def take(
    network: nn.Module, optimizer: torch.optim.Optimizer, rows: list[EpochRow], device: str
) -> Checkpoint:
    """The state as it is now."""
    rng: dict[str, Any] = {"cpu": torch.get_rng_state()}
    if device.startswith("cuda"):
        rng["cuda"] = torch.cuda.get_rng_state(device)
    return Checkpoint(network.state_dict(), optimizer.state_dict(), rng, rows)


def restore(
    checkpoint: Checkpoint, network: nn.Module, optimizer: torch.optim.Optimizer, device: str
) -> list[EpochRow]:
    """Puts network, optimizer and random numbers back; returns the rows so far."""
    network.load_state_dict(checkpoint.network)
    optimizer.load_state_dict(checkpoint.optimizer)
    torch.set_rng_state(checkpoint.rng["cpu"])
    if device.startswith("cuda"):
        torch.cuda.set_rng_state(checkpoint.rng["cuda"], device)
    return list(checkpoint.rows)


def save(checkpoint: Checkpoint, path: Path) -> None:
    """Write it whole: tensors and plain values only, as ``torch.load`` reads them anywhere."""
    # Through memory: torch's own writer turns a full disk into an error that does not say so.
    buffer = io.BytesIO()
    torch.save(vars(checkpoint), buffer)
    buffer.write(MARK + hashlib.sha256(buffer.getbuffer()).hexdigest().encode())
    write_whole(path, buffer.getvalue())


def load(path: Path) -> Checkpoint | None:
    """The checkpoint of that file, None where there is none; see :func:`read`."""
    content = read(path)
    if content is None:
        return None
    return Checkpoint(**torch.load(io.BytesIO(content), map_location="cpu", weights_only=True))


def read(path: Path) -> bytes | None:
    """The file as it was written, None where there is none, ``DamagedError`` where it is damaged.

    torch would notice little: the tensors in its files have checksums that it does not look at.
    """
    try:
        content = path.read_bytes()
    except FileNotFoundError:
        return None
    whole = memoryview(content)
    expected = MARK + hashlib.sha256(whole[:-TRAILER]).hexdigest().encode()
    if whole[-TRAILER:] != expected:
        raise DamagedError(f"{path} is damaged")
    return content
