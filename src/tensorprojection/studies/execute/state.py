"""What is kept of a unit, as its two files hold it: for whoever trains without those files."""

from __future__ import annotations

from dataclasses import dataclass

from ..files import write_whole
from ..results import UnitFiles
from ..trial import checkpoint
from ..trial.checkpoint import DamagedError
from ..trial.unit import Notice, Unit


@dataclass(frozen=True)
class State:
    """The lines of a unit's epochs, and its checkpoint after the last; both empty before it."""

    lines: bytes = b""
    checkpoint: bytes | None = None


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
    return State(files.lines.read_bytes() if there else b"", kept), []


def write_state(files: UnitFiles, state: State) -> None:
    """Keep it; see Note [Rows and checkpoint] for the order."""
    files.lines.parent.mkdir(parents=True, exist_ok=True)
    if state.checkpoint is not None:
        write_whole(files.checkpoint, state.checkpoint)
    if state.lines:
        write_whole(files.lines, state.lines)
