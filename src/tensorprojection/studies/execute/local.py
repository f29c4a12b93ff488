"""Processes of this machine that train: given one unit after the other, replaced when killed.

Each is started anew, not forked, which torch's threads would not survive. A process ends when its
parent does, however that ends.
"""

from __future__ import annotations

import multiprocessing
from collections import Counter, deque
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess

from ..processes import end_with_parent, start_process
from ..trial.unit import Epoch, GatheredSteps, Unit
from .protocol import ATTEMPTS, Done, Event, Failed, Restarted, Task, UnitTrainer

# In the parent


@dataclass
class _Worker:
    process: BaseProcess
    link: Connection
    unit: Unit


def run_units(units: Sequence[Unit], jobs: int, task: Task) -> Iterator[Event]:
    """Train these units in ``jobs`` processes, and pass on their events."""
    waiting = deque(units)
    deaths: Counter[Unit] = Counter()
    workers: list[_Worker] = []
    try:
        while waiting or workers:
            while waiting and len(workers) < jobs:
                workers.append(_start(task, waiting.popleft()))
            ready = wait([worker.link for worker in workers])
            for worker in [worker for worker in workers if worker.link in ready]:
                event = _receive(worker)
                if event is None:
                    workers.remove(worker)
                    yield _on_exit(worker, deaths, waiting)
                    continue
                if isinstance(event, Epoch):
                    deaths.pop(worker.unit, None)
                yield event
                if isinstance(event, Done | Failed) and not _assign_next(worker, waiting):
                    workers.remove(worker)
    finally:
        for worker in workers:
            worker.process.kill()
            worker.process.join()


def _receive(worker: _Worker) -> Event | None:
    """The worker's next event; None where it has ended."""
    try:
        event: Event = worker.link.recv()
        return event
    except (EOFError, OSError):
        worker.process.join()
        return None


def _assign_next(worker: _Worker, waiting: deque[Unit]) -> bool:
    """Give the worker the next unit; without one it ends."""
    unit = waiting.popleft() if waiting else None
    with suppress(OSError):  # it may have been killed since; if so, nothing more comes from it
        worker.link.send(unit)
    if unit is None:
        worker.process.join()
        return False
    worker.unit = unit
    return True


def _on_exit(worker: _Worker, deaths: Counter[Unit], waiting: deque[Unit]) -> Event:
    """The worker ended before its unit did: another takes the unit, unless that happened often."""
    unit, code = worker.unit, worker.process.exitcode
    how = f"signal {-code}" if code is not None and code < 0 else f"exit code {code}"
    deaths[unit] += 1
    if deaths[unit] < ATTEMPTS:
        waiting.appendleft(unit)
        return Restarted(unit, how)
    return Failed(
        unit,
        f"its process ended {ATTEMPTS} times with {how}, perhaps for lack of memory. Run again "
        "with fewer `jobs` or a smaller `batch`: what was computed is kept.",
    )


def _start(task: Task, unit: Unit) -> _Worker:
    ours, theirs = multiprocessing.Pipe()
    process = start_process(work, theirs, task, unit)
    theirs.close()  # so that the link ends when the worker does
    return _Worker(process, ours, unit)


# In the worker


def work(link: Connection, task: Task, unit: Unit | None) -> None:
    """Train the unit, then every other that comes, until None does."""
    end_with_parent()
    trainer = UnitTrainer(task)
    while unit is not None:
        link.send(trainer(unit, GatheredSteps(link.send)))
        unit = link.recv()
