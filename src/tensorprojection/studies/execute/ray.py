"""Units on a Ray cluster: one actor per place, given one unit after the other.

The driver alone writes the run's folder. A worker sends each epoch back with its checkpoint; what
has not arrived has not happened. So a worker, a node or the driver may die at any moment: the unit
goes on from the last epoch that arrived.
"""

from __future__ import annotations

import time
from collections import Counter, deque
from collections.abc import Generator, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout

from ..config import RunConfig
from ..data.cache import digest_of
from ..data.sent import content_of
from ..errors import StudyError
from ..files import write_whole
from ..processes import memory_settings
from ..results import UnitFiles
from ..trial.unit import Notice, Unit
from .protocol import ATTEMPTS, STRAGGLER_SECONDS, Event, Failed, Restarted, Task
from .ray_cluster import RayOptions, check_nodes, first_line, places
from .ray_worker import KeptEpoch, Message, Trainer, UnitEnd
from .state import read_state, write_state

# Without any worker at work, this long until the cluster is looked at.
PLACE_SECONDS = 30.0


@dataclass
class _Worker:
    actor: Any  # Ray's handle of a Trainer, whose methods have a `remote`
    pending: Any  # the reference that is waited for
    stage: str  # what that is: "look" for images, "receive" them, or "train"
    unit: Unit | None = None


class RayExecutor:
    """Trains units on the cluster that this process is connected to.

    Args:
        options: the cluster, and the resources of each trial.
        config: the run's settings.
        until: when the nodes must have said what they have: see :func:`connected`.
        trainer: the actors' class; a benchmark has one that trains nothing.
    """

    def __init__(
        self,
        options: RayOptions,
        config: RunConfig,
        until: float,
        trainer: type[Trainer] = Trainer,
    ) -> None:
        self.options, self.trainer = options, trainer
        self.needed = options.resources(config)
        self.places = places(self.needed)
        if options.address is not None:  # one that was started here has what is here
            check_nodes(self.needed, config.study, until)

    def run_units(self, units: Sequence[Unit], jobs: int, task: Task) -> Iterator[Event]:
        """Train these units with ``jobs`` workers, and pass on their events."""
        yield from _Session(self, units, jobs, task).run()


class _Session:
    def __init__(self, executor: RayExecutor, units: Sequence[Unit], jobs: int, task: Task) -> None:
        import ray

        self.ray = ray
        self.options, self.needed = executor.options, executor.needed
        self.task, self.jobs = task, jobs
        self.waiting = deque(units)
        self.deaths: Counter[Unit] = Counter()
        self.lost = 0  # workers, one after the other, that died before they were given a unit
        self.workers: list[_Worker] = []
        self.shared = _Shared(task)
        self.task_there = ray.put(task)
        self.actor = ray.remote(
            num_cpus=self.needed["CPU"],
            num_gpus=self.needed["GPU"],
            max_restarts=0,
            runtime_env={"env_vars": memory_settings()},
        )(executor.trainer)
        self.last_heard = time.monotonic()

    def run(self) -> Iterator[Event]:
        try:
            while self.waiting or any(worker.unit for worker in self.workers):
                self._engage()
                for worker in self._ready():
                    yield from self._receive(worker)
                failed = yield from self._look_around()
                if failed is not None:
                    yield failed
                    return
        finally:
            for worker in list(self.workers):
                self._dismiss(worker)

    def _look_around(self) -> Generator[Event, None, Failed | None]:
        """Where no worker has been busy for long: whether waiting makes sense, and a notice."""
        idle = not any(worker.unit for worker in self.workers)
        if not (idle and self.waiting and time.monotonic() - self.last_heard > PLACE_SECONDS):
            return None
        self.last_heard = time.monotonic()
        unit, so_long = self.waiting[0], f"no worker has started for {PLACE_SECONDS:.0f} s"
        try:
            places(self.needed)
        except StudyError as error:
            why = f"{so_long}. {error} The same command continues from here."
            return Failed(unit, why, stop=True)
        yield Notice(unit, f"{so_long}: the cluster is busy. Waiting for it.")
        return None

    def _engage(self) -> None:
        """Start as many workers as there are places or units; Ray queues those without room."""
        at_work = sum(worker.unit is not None for worker in self.workers)
        while len(self.workers) < min(self.jobs, at_work + len(self.waiting)):
            actor: Any = self.actor.remote(self.task_there)
            look = actor.lacks.remote(self.shared.digests, self.options.paths)
            self.workers.append(_Worker(actor, look, "look"))

    def _dismiss(self, worker: _Worker) -> None:
        self.workers.remove(worker)
        self.ray.kill(worker.actor)

    def _ready(self) -> list[_Worker]:
        """The workers that have answered."""
        pending = {worker.pending: worker for worker in self.workers}
        ready, _ = self.ray.wait(list(pending), timeout=1.0)
        if ready:  # and all others that are ready too, in one call
            ready, _ = self.ray.wait(list(pending), num_returns=len(pending), timeout=0)
            self.last_heard = time.monotonic()
        return [pending[found] for found in ready]

    def _receive(self, worker: _Worker) -> Iterator[Event]:
        try:
            found = self.ray.get(worker.pending)
        except self.ray.exceptions.RayError as error:
            yield from self._on_exit(worker, error)
            return
        if worker.stage == "look" and found:
            worker.stage = "receive"
            worker.pending = worker.actor.receive.remote(self.shared.sent(found))
        elif worker.stage != "train":
            self.lost = 0
            yield from self._assign_next(worker)
        else:
            if not isinstance(found[-1], UnitEnd):
                worker.pending = worker.actor.messages.remote()  # the worker need not wait for us
            for message in found:
                yield from self._take(worker, message)

    def _assign_next(self, worker: _Worker) -> Iterator[Event]:
        """Give the worker the next unit; without one it is ended."""
        while self.waiting:
            unit = self.waiting.popleft()
            files = UnitFiles.of(self.task.run, unit.trial, unit.model)
            if (failed := _await_stragglers(unit, files)) is not None:
                yield failed
                continue
            state, notices = read_state(unit, files)
            yield from notices
            worker.unit, worker.stage = unit, "train"
            worker.actor.begin.remote(unit, state)
            worker.pending = worker.actor.messages.remote()
            return
        self._dismiss(worker)

    def _take(self, worker: _Worker, message: Message) -> Iterator[Event]:
        if isinstance(message, UnitEnd):
            worker.unit = None
            _restore_lines(self.task.run, message)
            yield message.how
            yield from self._assign_next(worker)
        elif isinstance(message, KeptEpoch):
            unit = message.epoch.unit
            write_state(UnitFiles.of(self.task.run, unit.trial, unit.model), message.state)
            self.deaths.pop(unit, None)
            yield message.epoch
        else:
            yield message

    def _on_exit(self, worker: _Worker, error: Exception) -> Iterator[Event]:
        unit = worker.unit
        self._dismiss(worker)
        how = _how(error)
        if unit is None:
            self.lost += 1
            if self.lost >= ATTEMPTS and self.waiting:
                why = f"{ATTEMPTS} workers ended before they could begin: {how}."
                yield Failed(self.waiting[0], why, stop=True)
                self.waiting.clear()
            return
        self.deaths[unit] += 1
        if self.deaths[unit] < ATTEMPTS:
            self.waiting.appendleft(unit)
            yield Restarted(unit, how)
        else:
            yield Failed(
                unit,
                f"its worker ended {ATTEMPTS} times ({how}), perhaps for lack of memory. Run again "
                "with more `cpus_per_trial` or a smaller `batch`: what was computed is kept.",
            )


class _Shared:
    """What all trials share: folders of the cache, and those of them that had to be sent."""

    def __init__(self, task: Task) -> None:
        self.digests = {folder: digest_of(folder) for folder in task.inputs.folders.values()}
        self.references: dict[Path, dict[str, Any]] = {}

    def sent(self, folders: Sequence[Path]) -> dict[Path, dict[str, Any]]:
        """References to their content in the object store, where each is put once."""
        import ray

        for folder in folders:
            if folder not in self.references:
                content = content_of(folder)
                self.references[folder] = {name: ray.put(file) for name, file in content.items()}
        return {folder: self.references[folder] for folder in folders}


def _await_stragglers(unit: Unit, files: UnitFiles) -> Failed | None:
    """A process of an earlier, local start may still be about to end; it holds the unit's lock."""
    files.lock.parent.mkdir(parents=True, exist_ok=True)
    try:
        with FileLock(files.lock, timeout=STRAGGLER_SECONDS):
            files.lock.unlink(missing_ok=True)
    except Timeout:
        return Failed(unit, "another process still trains it. Run again when that has ended.")
    return None


def _how(error: Exception) -> str:
    """Why a worker has ended, in a few words."""
    text = str(error)
    if "out of memory" in text or "OOM" in text:
        return "too little memory on its node"
    if "node died" in text.lower() or "node is dead" in text.lower():
        return "the end of its node"
    if "died" in text or "unavailable" in text:
        return "the end of its worker"
    return first_line(error)


def _restore_lines(run: Path, ended: UnitEnd) -> None:
    """A unit whose lines were lost and whose checkpoint has them all ends without an epoch."""
    files = UnitFiles.of(run, ended.unit.trial, ended.unit.model)
    there = files.lines.read_bytes() if files.lines.exists() else b""
    if ended.lines and ended.lines != there:
        write_whole(files.lines, ended.lines)
