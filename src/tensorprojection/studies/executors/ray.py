"""Jobs on a Ray cluster: one actor for each job.

The run starts the driver, a process that talks to Ray: Ray waits for minutes for an address that
does not answer, and ends the process that is connected to it when its own processes are killed. An
actor, a node, the driver or the run may die at any time.
"""

from __future__ import annotations

import logging
import os
import queue
import time
import traceback
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from importlib.util import find_spec
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from pathlib import Path
from threading import Thread
from typing import Any

from ..config import RunConfig
from ..data.cache import content_of, receive
from ..errors import StudyError
from ..training.checkpoint import JobState
from ..training.job import Done, Event, Failed, Job, Notice, Step
from .base import JobTrainer, Lost, Task, run_pool
from .local import end_with_parent, memory_settings, start_process

CONNECT_SECONDS = 120.0  # for the cluster to start or to answer
PLACE_SECONDS = 30.0  # without any job in training, until the cluster is checked again


@dataclass(frozen=True)
class RayOptions:
    """The cluster, and the resources of each job.

    Args:
        address: ``auto`` for the cluster of this machine, ``host:port``, ``ray://host:port``; None
            starts one here, which ends with the run.
        cpus: for one job; None for as many as it has threads.
        gpus: for one job; None for one if the device is cuda, else none.
    """

    address: str | None = None
    cpus: float | None = None
    gpus: float | None = None

    def resources(self, config: RunConfig) -> dict[str, float]:
        """Return what one job of this run needs."""
        on_gpu = config.device.startswith("cuda")
        cpus = float(config.threads) if self.cpus is None else self.cpus
        gpus = float(on_gpu) if self.gpus is None else self.gpus
        possible = 0 <= cpus < 10_000 and (0 <= gpus <= 1 or (gpus % 1 == 0 and gpus < 10_000))
        if not possible or bool(gpus) != on_gpu or config.device.startswith("cuda:"):
            raise StudyError(
                "Expected 0 or more --cpus-per-trial and, only with --device cuda (Ray chooses its "
                "number), a share of a GPU or whole GPUs as --gpus-per-trial, got "
                f"{cpus:g} and {gpus:g} with --device {config.device}."
            )
        return {"CPU": cpus, "GPU": gpus}


# In the run


@dataclass(frozen=True)
class Cluster:
    """A cluster that is connected for one run, and how many jobs it has room for."""

    link: Connection
    places: int

    def run_jobs(self, jobs: Sequence[Job], count: int, task: Task) -> Iterator[Event]:
        return run_pool(_Pool(self.link, task), jobs, count, task)


@contextmanager
def connected(options: RayOptions, config: RunConfig) -> Iterator[Cluster]:
    """Connect to the cluster; ``StudyError`` if it cannot be used, or does not answer in time."""
    needed = options.resources(config)
    if find_spec("ray") is None:
        raise StudyError(
            "--executor ray needs Ray, which is not installed: pip install 'tensorprojection[ray]'"
        )
    ours, theirs = Pipe()
    driver = start_process(_drive, theirs, options, needed)
    theirs.close()
    answer: int | str = f"there was no answer for {CONNECT_SECONDS:.0f} s."
    try:
        if ours.poll(CONNECT_SECONDS):
            with suppress(EOFError):
                answer = ours.recv()
        if isinstance(answer, str):
            where = options.address or "a cluster of its own"
            raise StudyError(f"Could not connect to Ray at {where}: {answer}")
        yield Cluster(ours, answer)
        ours.close()
        driver.join(10)
    finally:
        driver.kill()
        driver.join()


class _Pool:
    """Hands jobs to the driver."""

    def __init__(self, link: Connection, task: Task) -> None:
        self.link = link
        self.active: dict[Job, None] = {}
        # A thread sends: with large messages both ways, both ends would wait for each other.
        self.outbox: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self.outbox.put(task)
        Thread(target=self._send_all, daemon=True).start()

    def _send_all(self) -> None:
        with suppress(OSError):  # the driver has died: receive finds out
            while True:
                self.link.send(self.outbox.get())

    def submit(self, job: Job, state: JobState) -> None:
        self.active[job] = None
        self.outbox.put((job, state))

    def receive(self) -> list[Event | Lost]:
        try:
            event: Event | Lost = self.link.recv()
        except (EOFError, OSError):
            how = "the connection to Ray has ended: its processes here were killed"
            return [Lost(next(iter(self.active)), how, fatal=True)]
        if isinstance(event, Done | Failed | Lost):
            self.active.pop(event.job, None)
        return [event]

    def close(self) -> None:
        self.link.close()  # the driver then ends, and its actors with it


# In the driver


def _drive(link: Connection, options: RayOptions, needed: dict[str, float]) -> None:
    """Connect, then train jobs until the link is closed."""
    end_with_parent()
    import ray

    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    # Ray's niceness of 15 would have its trials wait for every other process of the machine.
    os.environ.setdefault("RAY_worker_niceness", "0")
    here: dict[str, Any] = {"include_dashboard": False} if options.address is None else {}
    try:
        address = options.address or "local"
        ray.init(address=address, log_to_driver=False, logging_level=logging.ERROR, **here)
        link.send(places(needed))
    except Exception as error:  # Ray raises many kinds
        link.send(next(iter(str(error).strip().splitlines()), type(error).__name__))
        return
    with suppress(EOFError, OSError):  # the run has ended
        _Session(link, link.recv(), options, needed).run()
    ray.shutdown()


@dataclass
class _Session:
    """The jobs of one task."""

    link: Connection
    task: Task
    options: RayOptions
    needed: dict[str, float]
    actors: dict[Job, Any] = field(default_factory=dict)  # Ray's handles of Trainers
    pending: dict[Any, Job] = field(default_factory=dict)  # references that are waited for
    started: set[Job] = field(default_factory=set)

    def run(self) -> None:
        import ray

        # Nodes elsewhere get the arrays out of Ray's object store, which has them once per node.
        folders = () if self.options.address is None else self.task.inputs.folders.values()
        sent = {
            folder: {name: ray.put(array) for name, array in content_of(folder).items()}
            for folder in folders
        }
        shared, self.last = ray.put(self.task), time.monotonic()
        actor_class: Any = ray.remote(Trainer).options(
            num_cpus=self.needed["CPU"],
            num_gpus=self.needed["GPU"],
            max_restarts=0,
            max_concurrency=2,  # one thread trains, one hands out events
            runtime_env={"env_vars": memory_settings()},
        )
        while True:
            while self.link.poll(0 if self.actors else None):
                job, state = self.link.recv()
                self.actors[job] = actor_class.remote(shared, sent)
                self.actors[job].train.remote(job, state)
                self.pending[self.actors[job].event.remote()] = job
            # Not without waiting: Ray fetches what is on another node while it waits.
            ready, _ = ray.wait(list(self.pending), timeout=0.2)
            for found in ready:
                job = self.pending.pop(found)
                try:
                    event: Event | Lost = ray.get(found)
                except ray.exceptions.RayError as error:
                    event = _lost(job, error)
                self.link.send(event)
                if isinstance(event, Done | Failed | Lost):
                    ray.kill(self.actors.pop(job))
                    self.started.discard(job)
                else:
                    self.started.add(job)
                    self.pending[self.actors[job].event.remote()] = job
            self._check_progress()

    def _check_progress(self) -> None:
        """If no job has been in training for long, report that the cluster is busy or too small."""
        if self.started or not self.actors:
            self.last = time.monotonic()
        if time.monotonic() - self.last < PLACE_SECONDS:
            return
        self.last, job = time.monotonic(), next(iter(self.actors))
        why = f"no worker has started for {PLACE_SECONDS:.0f} s"
        try:
            places(self.needed)
            self.link.send(Notice(job, f"{why}: the cluster is busy. Waiting for it."))
        except StudyError as error:
            self.link.send(Lost(job, f"{why}. {error}".removesuffix("."), fatal=True))


def places(needed: dict[str, float]) -> int:
    """Return how many jobs the cluster has room for at once; ``StudyError`` if it has none."""
    nodes = [node["Resources"] for node in _alive()]
    room = 0
    for node in nodes:
        each = [int((node.get(n, 0.0) + 1e-9) // count) for n, count in needed.items() if count]
        room += min(each, default=int(node.get("CPU", 0.0)))
    if not room:
        found = [f"{n.get('CPU', 0.0):g} CPU and {n.get('GPU', 0.0):g} GPU" for n in nodes]
        raise StudyError(
            f"One trial needs {needed['CPU']:g} CPU and {needed['GPU']:g} GPU, but no node of the "
            f"cluster has both: {'; '.join(found) or 'there is none'}. Choose a smaller "
            "--cpus-per-trial or --gpus-per-trial, or add a node."
        )
    return room


def _alive() -> list[dict[str, Any]]:
    import ray

    return [node for node in ray.nodes() if node["Alive"]]  # type: ignore[no-untyped-call]


def _lost(job: Job, error: Exception) -> Lost:
    """Return why an actor has ended; if it could not start, no other can."""
    lines = str(error).strip().splitlines() or [type(error).__name__]
    if "creation task" in str(error):  # without the package, or the study's file, on its node
        return Lost(job, f"a worker could not start: {lines[-1].removesuffix('.')}", fatal=True)
    return Lost(job, lines[0].removesuffix("."))


# In the actors


class Trainer:
    """A Ray actor that trains one job in one thread while the driver fetches events in another."""

    def __init__(self, task: Task, sent: Mapping[Path, Mapping[str, Any]]) -> None:
        self.task, self.sent = task, sent  # references to arrays that this node may not have
        self.events: queue.Queue[Event] = queue.Queue(16)  # if it is full, training waits

    def train(self, job: Job, state: JobState) -> None:
        """Train the job from that state on; :meth:`event` returns its events."""
        import ray

        self.events.put(Step(job, len(state.rows) + 1, 0, 0.0))  # the worker has started
        try:
            for folder, arrays in self.sent.items():
                receive(folder, {name: ray.get(array) for name, array in arrays.items()})
            trainer = JobTrainer(self.task)  # here: torch's number of threads is a thread's own
            self.events.put(trainer(job, state, self.events.put))
        except Exception:  # otherwise the driver would wait forever
            self.events.put(Failed(job, traceback.format_exc()))

    def event(self) -> Event:
        return self.events.get()
