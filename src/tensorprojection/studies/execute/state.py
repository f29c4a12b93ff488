"""What is kept of a unit, as its files hold it: for a process that has no access to them."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from ..files import write_whole
from ..results import UnitFiles
from ..trial import checkpoint
from ..trial.checkpoint import DamagedError
from ..trial.unit import Notice, Unit


@dataclass(frozen=True)
class State:
    """The lines of a unit's epochs, and its checkpoint after the last; both empty before it.

    With them the network that is kept, and what was observed, where there are such files.
    """

    lines: bytes = b""
    checkpoint: bytes | None = None
    network: bytes | None = None
    observed: bytes | None = None


def read_state(unit: Unit, files: UnitFiles) -> tuple[State, list[Notice]]:
    """What is kept, and what there is to say about it; what is damaged is trained anew."""
    there = files.read().rows
    try:
        kept = checkpoint.read(files.checkpoint)
    except DamagedError as error:
        files.checkpoint.unlink(missing_ok=True)
        return State(), [Notice(unit, f"{error} and removed; trained anew from epoch 1.")]
    if kept is None and there:
        return State(), [Notice(unit, f"{files.checkpoint} is gone; trained anew from epoch 1.")]
    return State(files.lines.read_bytes() if there else b"", kept, *_beside(files)), []


def state_of(files: UnitFiles) -> State:
    """What the files hold after an epoch, just written."""
    return State(files.lines.read_bytes(), files.checkpoint.read_bytes(), *_beside(files))


def _beside(files: UnitFiles) -> tuple[bytes | None, bytes | None]:
    return _content(files.network), _content(files.observed)


def _content(file: Path) -> bytes | None:
    return file.read_bytes() if file.exists() else None


def write_state(files: UnitFiles, state: State) -> None:
    """Keep it; see Note [Rows and checkpoint] for the order.

    What is beside comes first: see Note [Observed before the checkpoint].
    """
    files.lines.parent.mkdir(parents=True, exist_ok=True)
    for file, content in ((files.network, state.network), (files.observed, state.observed)):
        if content is not None:
            write_whole(file, content)
    if state.checkpoint is not None:
        write_whole(files.checkpoint, state.checkpoint)
    if state.lines:
        write_whole(files.lines, state.lines)
