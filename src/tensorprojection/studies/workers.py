"""Processes that train: handed one unit after the other, replaced when they are killed.

Each is started anew, not forked, which torch's threads would not survive. A process ends when its
parent does, however that ends; until then it holds a lock on its unit, so that a second run waits
for a straggler of the first and never writes beside it.
"""

from __future__ import annotations

import multiprocessing
import time
import traceback
from collections import Counter, deque
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from pathlib import Path

from filelock import FileLock, Timeout

from tensorprojection.errors import ProjectionError

from .code_version import code_version
from .config import RunConfig
from .errors import StudyError
from .kept.networks import Keep
from .processes import end_with_parent, settings_to_inherit
from .results import UnitFiles
from .study import Prepared
from .training import Epoch, Notice, Step, Unit, train

# A unit that kills its process this often without finishing an epoch is given up.
ATTEMPTS = 3
STRAGGLER_SECONDS = 60
SAY_SECONDS = 0.1


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
    """What all units of a run share."""

    config: RunConfig
    prepared: Prepared
    run: Path
    code: str
    keep: Keep = "none"


# In the parent


@dataclass
class _Worker:
    process: BaseProcess
    link: Connection
    unit: Unit


def run_units(units: Sequence[Unit], jobs: int, task: Task) -> Iterator[Event]:
    """Train these units in so many processes, and pass on what they say."""
    waiting = deque(units)
    deaths: Counter[Unit] = Counter()
    workers: list[_Worker] = []
    try:
        while waiting or workers:
            while waiting and len(workers) < jobs:
                workers.append(_start(task, waiting.popleft()))
            ready = wait([worker.link for worker in workers])
            for worker in [worker for worker in workers if worker.link in ready]:
                event = _hear(worker)
                if event is None:
                    workers.remove(worker)
                    yield _mourn(worker, deaths, waiting)
                    continue
                if isinstance(event, Epoch):
                    deaths.pop(worker.unit, None)
                yield event
                if isinstance(event, Done | Failed) and not _hand(worker, waiting):
                    workers.remove(worker)
    finally:
        for worker in workers:
            worker.process.kill()
            worker.process.join()


def _hear(worker: _Worker) -> Event | None:
    """What the worker says; None where it is gone."""
    try:
        event: Event = worker.link.recv()
        return event
    except (EOFError, OSError):
        worker.process.join()
        return None


def _hand(worker: _Worker, waiting: deque[Unit]) -> bool:
    """Give the worker the next unit; without one it goes home."""
    unit = waiting.popleft() if waiting else None
    with suppress(OSError):  # it may have been killed since; if so, it is heard no more
        worker.link.send(unit)
    if unit is None:
        worker.process.join()
        return False
    worker.unit = unit
    return True


def _mourn(worker: _Worker, deaths: Counter[Unit], waiting: deque[Unit]) -> Event:
    unit, code = worker.unit, worker.process.exitcode
    how = f"signal {-code}" if code is not None and code < 0 else f"exit code {code}"
    deaths[unit] += 1
    if deaths[unit] < ATTEMPTS:
        waiting.appendleft(unit)
        return Restarted(unit, how)
    return Failed(
        unit,
        f"its process ended {ATTEMPTS} times with {how}, perhaps for lack of memory. Run again "
        "with fewer --jobs or a smaller --batch: what was computed is kept.",
    )


def _start(task: Task, unit: Unit) -> _Worker:
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    process = context.Process(target=work, args=(theirs, task, unit), daemon=True)
    with settings_to_inherit():
        process.start()
    theirs.close()  # so that the link ends when the worker does
    return _Worker(process, ours, unit)


# In the worker


def work(link: Connection, task: Task, unit: Unit | None) -> None:
    """Train the unit, then every other that comes, until None does."""
    end_with_parent()
    import torch

    from .registry import STUDIES

    config = task.config
    torch.set_num_threads(config.threads)
    study, data = STUDIES[config.study], None
    while unit is not None:
        say = _Say(link)
        files = UnitFiles.of(task.run, unit.trial, unit.model)
        try:
            _check_code(task)
            data = data or study.open(config, task.prepared)
            files.lock.parent.mkdir(parents=True, exist_ok=True)
            with FileLock(files.lock, timeout=STRAGGLER_SECONDS):
                train(unit, study, config, data, task.run, say, task.keep)
            files.lock.unlink(missing_ok=True)
        except _CodeChangedError as error:
            link.send(Failed(unit, str(error), stop=True))
        except (StudyError, ProjectionError) as error:
            link.send(Failed(unit, str(error)))
        except Timeout:
            link.send(
                Failed(unit, "another process still trains it. Run again when that has ended.")
            )
        except OSError as error:
            where = error.filename or task.run
            link.send(
                Failed(unit, f"could not read or write {where}: {error.strerror}.", stop=True)
            )
        except Exception as error:
            link.send(Failed(unit, _too_little_memory(error) or traceback.format_exc()))
        else:
            link.send(Done(unit))
        unit = link.recv()


class _CodeChangedError(StudyError):
    """This process has other code than the one that started it."""


def _check_code(task: Task) -> None:
    """A process that is started late must not bring newer code into the run."""
    if code_version() != task.code:
        raise _CodeChangedError(
            f"the code was changed while the run went on: it was {task.code}, now "
            f"{code_version()}. Run again with the code as it was, or with --mix-versions."
        )


def _too_little_memory(error: Exception) -> str | None:
    """What to do about it, where that is what the error says."""
    import torch

    lacks = isinstance(error, MemoryError | torch.OutOfMemoryError)
    if not (lacks or "allocate memory" in str(error)):  # torch's own on a CPU is a RuntimeError
        return None
    return (
        "it needs more memory than there is. Run again with a smaller --batch or --size, or fewer "
        "--jobs: what was computed is kept."
    )


class _Say:
    """Sends events on; steps are gathered, as they can come by the hundred a second."""

    def __init__(self, link: Connection) -> None:
        self.link = link
        self.steps: Step | None = None
        self.last = time.monotonic()

    def __call__(self, event: Step | Epoch | Notice) -> None:
        now = time.monotonic()
        if isinstance(event, Step):
            if self.steps is not None:
                event = event.after(self.steps)
            if now - self.last < SAY_SECONDS:
                self.steps = event
                return
        elif self.steps is not None:
            self.link.send(self.steps)
        self.link.send(event)
        self.steps, self.last = None, now
