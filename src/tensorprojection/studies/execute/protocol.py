"""What every executor has in common: its arguments, its events, and how a unit is trained.

An executor is a function ``run_units(units, jobs, task)`` that trains the units, up to ``jobs`` of
them at once, wherever it likes, and yields events as they happen. Every unit ends with
:class:`Done` or :class:`Failed`. Closing the generator (``close``, or an exception) stops the
training; what was kept by then stays.

In each process that trains, a :class:`UnitTrainer` does the work.
"""

from __future__ import annotations

import traceback
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import torch
from filelock import FileLock, Timeout

from tensorprojection.errors import ProjectionError

from ..code_version import code_version
from ..config import RunConfig
from ..data.stored import open_stored
from ..errors import StudyError
from ..inputs import Data, RunInputs
from ..network_file import Keep
from ..registry import config_of, find_study
from ..results import UnitFiles
from ..trial.keeper import Keeper
from ..trial.train import Way, train
from ..trial.unit import Epoch, Notice, Say, Step, Unit

STRAGGLER_SECONDS = 60
# A unit that kills its process this often without finishing an epoch is given up.
ATTEMPTS = 3


@dataclass(frozen=True)
class Done:
    """The unit has finished."""

    unit: Unit


@dataclass(frozen=True)
class Restarted:
    """The unit's process was killed; another goes on from its checkpoint."""

    unit: Unit
    how: str


@dataclass(frozen=True)
class Failed:
    """The unit cannot go on; with ``stop`` none of the others could either."""

    unit: Unit
    why: str
    stop: bool = False


Event = Step | Epoch | Notice | Done | Restarted | Failed


@dataclass(frozen=True)
class Task:
    """What all units of a run share; it can be pickled."""

    config: RunConfig
    inputs: RunInputs
    run: Path
    code: str
    keep: Keep = "none"

    def __reduce__(self) -> tuple[Any, ...]:
        # By its settings, as the configuration's class may be in a user's file.
        return _task, (self.config.as_settings(), self.inputs, self.run, self.code, self.keep)


def _task(settings: dict[str, Any], *others: Any) -> Task:
    return Task(config_of(settings), *others)


class Executor(Protocol):
    """Trains units, and yields what happens."""

    def __call__(self, units: Sequence[Unit], jobs: int, task: Task, /) -> Iterator[Event]: ...


class UnitTrainer:
    """In a process that trains: one unit after the other, each to its end or to its error.

    It holds a lock on its unit, so that a second run waits for a straggler of the first and the two
    never write at the same time.

    Args:
        task: what all units share.
        way: how they are trained; by default on one device.
    """

    def __init__(self, task: Task, way: Way | None = None) -> None:
        torch.set_num_threads(task.config.threads)
        self.task = task
        self.study = find_study(task.config.study)
        self.data: Data | None = None
        self.way = way

    def __call__(self, unit: Unit, say: Say) -> Done | Failed:
        """Train the unit; ``say`` is called with its events."""
        try:
            self._train(unit, say)
        except _CodeChangedError as error:
            return Failed(unit, str(error), stop=True)
        except (StudyError, ProjectionError) as error:
            return Failed(unit, str(error))
        except Timeout:
            return Failed(unit, "another process still trains it. Run again when that has ended.")
        except OSError as error:
            where = error.filename or self.task.run
            return Failed(unit, f"could not read or write {where}: {error.strerror}.", stop=True)
        except Exception as error:
            return Failed(unit, _too_little_memory(error) or traceback.format_exc())
        return Done(unit)

    def _train(self, unit: Unit, say: Say) -> None:
        task = self.task
        _check_code(task)
        self.data = self.data or self.study.open(task.config, task.inputs)
        lock = UnitFiles.of(task.run, unit.trial, unit.model).lock
        lock.parent.mkdir(parents=True, exist_ok=True)
        keeper = Keeper(task.keep, task.run, task.config, unit, self._class_names())
        with FileLock(lock, timeout=STRAGGLER_SECONDS):
            train(unit, self.study, task.config, self.data, task.run, say, self.way, keeper)
        lock.unlink(missing_ok=True)

    def _class_names(self) -> tuple[str, ...]:
        """Of the images that are trained on; a file of them may have names of its own."""
        if "images" not in self.task.inputs.folders:
            return self.study.images.class_names
        return open_stored(self.task.inputs.folders["images"]).class_names


class _CodeChangedError(StudyError):
    """This process has other code than the one that started it."""


def _check_code(task: Task) -> None:
    """A process that starts later must not bring newer code into the run."""
    now = code_version(task.config.study)
    if now != task.code:
        raise _CodeChangedError(
            f"the code was changed while the run went on: it was {task.code}, now {now}. Run again "
            "with the code as it was, or with `mix_versions`."
        )


def _too_little_memory(error: Exception) -> str | None:
    """What to do about it, where that is what the error says."""
    lacks = isinstance(error, MemoryError | torch.OutOfMemoryError)
    if not (lacks or "allocate memory" in str(error)):  # torch's own on a CPU is a RuntimeError
        return None
    return (
        "it needs more memory than there is. Run again with a smaller `batch` or `size`, or "
        "fewer `jobs`: what was computed is kept."
    )
