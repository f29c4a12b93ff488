"""Jobs on a Ray cluster: one actor for each job that is trained at the same time.

The run itself writes its folder. It starts the driver, a process that talks to Ray, since Ray waits
for minutes for an address that does not answer, and ends the process that is connected to it when
its own processes are killed. Actors train, write nothing, and send every epoch back with its
checkpoint. So an actor, a node, the driver or the run may die at any time: the job continues from
the last epoch that the run has saved.
"""

from __future__ import annotations

import logging
import os
import queue
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from importlib.util import find_spec
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from pathlib import Path
from queue import SimpleQueue
from threading import Thread
from typing import Any

from ..code_version import STUDY, code_version
from ..config import RunConfig
from ..data.cache import checksum, corruption
from ..data.stored import content_of, is_received, receive
from ..errors import StudyError
from ..processes import end_with_parent, memory_settings, start_process
from ..registry import import_study
from ..training.checkpoint import JobState, resume
from ..training.job import Done, Epoch, Event, Failed, Job, MergedSteps, Notice
from .base import JobTrainer, Lost, Task, run_pool

CONNECT_SECONDS = 60.0  # for the cluster to answer
NODE_SECONDS = 120.0  # for its nodes to say what they have installed, which imports torch there
PLACE_SECONDS = 30.0  # without any job in training, until the cluster is looked at again
STEP_SECONDS = 1.0  # between two steps of a job: there may be a thousand workers
UNSENT = 16  # events of an actor that may wait for the driver before its training does


@dataclass(frozen=True)
class RayOptions:
    """The cluster, and the resources of each job.

    Args:
        address: ``auto`` for the cluster of this machine, ``host:port``, ``ray://host:port``; None
            starts one here, which ends with the run.
        cpus: for one job; None for as many as it has threads.
        gpus: for one job; None for one if the device is cuda, else none.
        paths: True if a node may read images from the run's path, if it has the same content there;
            otherwise they are sent.
    """

    address: str | None = None
    cpus: float | None = None
    gpus: float | None = None
    paths: bool = True

    def resources(self, config: RunConfig) -> dict[str, float]:
        """Return what one job of this run needs."""
        for name, given in (("`cpus_per_trial`", self.cpus), ("`gpus_per_trial`", self.gpus)):
            if given is not None and not 0 <= given < 10_000:
                raise StudyError(f"Expected {name} of 0 or more, got {given}.")
        on_gpu = config.device.startswith("cuda")
        gpus = float(on_gpu) if self.gpus is None else self.gpus
        if bool(gpus) != on_gpu:
            raise StudyError(
                f"Expected `gpus_per_trial` with `device` cuda only, got {gpus:g} with `device` "
                f"{config.device}."
            )
        if on_gpu and config.device != "cuda":
            raise StudyError(
                f"Expected `device` cuda on Ray, which chooses the GPU, got {config.device}."
            )
        if gpus > 1 and gpus % 1:
            raise StudyError(f"Expected a share of a GPU or whole GPUs per trial, got {gpus:g}.")
        return {"CPU": float(config.threads) if self.cpus is None else self.cpus, "GPU": gpus}


# In the run


class Cluster:
    """A connected cluster, and how many jobs it has room for."""

    def __init__(self, link: Connection, places: int) -> None:
        self.link, self.places = link, places

    def run_jobs(self, jobs: Sequence[Job], count: int, task: Task) -> Iterator[Event]:
        """Train these jobs with ``count`` actors, and pass on their events."""
        return run_pool(_Pool(self.link, task), jobs, count)


@contextmanager
def connected(options: RayOptions, config: RunConfig) -> Iterator[Cluster]:
    """Connect to the cluster; ``StudyError`` if it cannot be used, or does not answer in time."""
    needed = options.resources(config)
    if find_spec("ray") is None:
        raise StudyError(
            "`executor` ray needs Ray, which is not installed: pip install 'tensorprojection[ray]'"
        )
    ours, theirs = Pipe()
    driver = start_process(_drive, theirs, options, needed, config.study)
    theirs.close()
    where = options.address or "a cluster of its own"
    try:
        for seconds in (CONNECT_SECONDS, NODE_SECONDS):
            answer: int | str = f"there was no answer for {seconds:.0f} s."
            if ours.poll(seconds):
                with suppress(EOFError):
                    answer = ours.recv()
            if isinstance(answer, str):
                raise StudyError(f"Could not connect to Ray at {where}: {answer}")
        yield Cluster(ours, int(answer))
        ours.close()
        driver.join(10)
    finally:
        driver.kill()
        driver.join()


class _Pool:
    """Hands jobs to the driver, and saves what comes back."""

    def __init__(self, link: Connection, task: Task) -> None:
        self.link, self.task = link, task
        self.active: dict[Job, None] = {}
        self.notices: list[Event | Lost] = []
        self._outbox: SimpleQueue[Any] = SimpleQueue()
        Thread(target=self._send_all, daemon=True).start()
        self._send(task)

    def _send(self, message: Any) -> None:
        self._outbox.put(message)

    def _send_all(self) -> None:
        """Send in a thread: with large messages both ways, both ends would wait for each other."""
        message: Any = self.task
        with suppress(OSError):  # the driver has died: receive will find out
            while message is not None:
                message = self._outbox.get()
                self.link.send(message)

    def submit(self, job: Job) -> None:
        state, notices = resume(job, self.task.files(job))
        self.notices += notices
        self.active[job] = None
        self._send((job, state))

    def receive(self) -> list[Event | Lost]:
        if self.notices:
            notices, self.notices = self.notices, []
            return notices
        try:
            event: Event | Lost = self.link.recv()
        except (EOFError, OSError):
            how = "the connection to Ray has ended: its processes here were killed"
            return [Lost(next(iter(self.active)), how, fatal=True)]
        if isinstance(event, Epoch) and event.saved is not None:
            self.task.files(event.job).save(event.row, event.saved)
            event = replace(event, saved=None)
        elif isinstance(event, Done | Failed | Lost):
            self.active.pop(event.job, None)
        return [event]

    def close(self) -> None:
        """Wait until the driver has ended all actors, so that no event is left in the pipe."""
        self._send(None)
        with suppress(EOFError, OSError):
            while self.link.recv() is not None:
                pass


# In the driver


def _drive(link: Connection, options: RayOptions, needed: dict[str, float], study: str) -> None:
    """Connect, check, then train the jobs of one task after the other."""
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
        link.send(True)
        if options.address is not None:  # one that was started here has what is here
            check_nodes(needed, study)
        link.send(places(needed))
        while True:
            _Session(link, link.recv(), options, needed).run()
            link.send(None)
    except EOFError:
        ray.shutdown()
    except Exception as error:  # Ray raises many kinds
        link.send(_first_line(error))


@dataclass
class _Worker:
    actor: Any  # Ray's handle of a Trainer, whose methods have a `remote`
    job: Job | None
    state: JobState | None
    pending: Any = None  # the reference that is waited for
    stage: str = "look"  # what that is: "look" for images, "receive" them, or "train"


@dataclass
class _Session:
    """The jobs of one task."""

    link: Connection
    task: Task
    options: RayOptions
    needed: dict[str, float]
    workers: list[_Worker] = field(default_factory=list)
    sent: dict[Path, dict[str, Any]] = field(default_factory=dict)

    def run(self) -> None:
        import ray

        folders = self.task.inputs.folders.values()
        self.digests = {folder: checksum(folder) for folder in folders}
        self.heard = time.monotonic()
        self.actor = ray.remote(
            num_cpus=self.needed["CPU"],
            num_gpus=self.needed["GPU"],
            max_restarts=0,
            runtime_env={"env_vars": memory_settings()},
        )(Trainer)
        self.shared = ray.put(self.task)
        while True:
            busy = {worker.pending: worker for worker in self.workers if worker.job is not None}
            while self.link.poll(0 if busy else None):
                if (message := self.link.recv()) is None:
                    for worker in self.workers:
                        ray.kill(worker.actor)
                    return
                self._submit(*message)
                busy = {w.pending: w for w in self.workers if w.job is not None}
            # Not without waiting: Ray fetches what is on another node while it waits.
            ready, _ = ray.wait(list(busy), timeout=0.2)
            for found in ready:
                self._receive(busy[found])
            self._look_around(bool(ready))

    def _submit(self, job: Job, state: JobState) -> None:
        for worker in self.workers:
            if worker.job is None:
                worker.job, worker.state = job, state
                return self._begin(worker)
        worker = _Worker(self.actor.remote(self.shared), job, state)
        worker.pending = worker.actor.lacks.remote(self.digests, self.options.paths)
        self.workers.append(worker)
        return None

    def _begin(self, worker: _Worker) -> None:
        worker.stage = "train"
        worker.actor.begin.remote(worker.job, worker.state)
        worker.pending, worker.state = worker.actor.messages.remote(), None

    def _receive(self, worker: _Worker) -> None:
        import ray

        try:
            found = ray.get(worker.pending)
        except ray.exceptions.RayError as error:
            self.workers.remove(worker)
            assert worker.job is not None
            self.link.send(Lost(worker.job, _how(error)))
            return
        if worker.stage == "look" and found:
            worker.stage = "receive"
            for folder in found:  # each is put into the object store once
                if folder not in self.sent:
                    content = content_of(folder)
                    self.sent[folder] = {name: ray.put(file) for name, file in content.items()}
            worker.pending = worker.actor.receive.remote({path: self.sent[path] for path in found})
        elif worker.stage != "train":
            self._begin(worker)
        else:
            for event in found:
                self.link.send(event)
            if not isinstance(found[-1], Done | Failed):
                worker.pending = worker.actor.messages.remote()
                return
            worker.job = None
            # Its place may be the one that an actor which has not started yet waits for.
            starving = next((w for w in self.workers if w.job and w.stage == "look"), None)
            if starving is not None:
                ray.kill(starving.actor)
                self.workers.remove(starving)
                worker.job, worker.state = starving.job, starving.state
                self._begin(worker)

    def _look_around(self, heard: bool) -> None:
        """If no job has been in training for long, report that the cluster is busy or too small."""
        training = [worker for worker in self.workers if worker.job and worker.stage == "train"]
        if heard or training:
            self.heard = time.monotonic()
        waiting = [worker.job for worker in self.workers if worker.job]
        if not waiting or time.monotonic() - self.heard < PLACE_SECONDS:
            return
        self.heard, so_long = time.monotonic(), f"no worker has started for {PLACE_SECONDS:.0f} s"
        try:
            places(self.needed)
            text = f"{so_long}: the cluster is busy. Waiting for it."
            self.link.send(Notice(waiting[0], text))
        except StudyError as error:
            how = f"{so_long}. {error}".removesuffix(".")
            self.link.send(Lost(waiting[0], how, fatal=True))


def places(needed: dict[str, float]) -> int:
    """Return how many jobs the cluster has room for at once; ``StudyError`` if it has none."""
    nodes = [node["Resources"] for node in _alive()]
    room = sum(_fits(node, needed) for node in nodes)
    if room:
        return room
    for name, flag in (("GPU", "`gpus_per_trial`"), ("CPU", "`cpus_per_trial`")):
        most = max((node.get(name, 0.0) for node in nodes), default=0.0)
        if most < needed[name]:
            raise StudyError(
                f"One trial needs {needed[name]:g} {name}, but of the cluster's nodes "
                f"({len(nodes)}) the largest has {most:g}. Choose a smaller {flag}, or add a node."
            )
    raise StudyError("No node of the cluster has both the CPUs and the GPUs that one trial needs.")


def _alive() -> list[dict[str, Any]]:
    import ray

    listed: Any = ray.nodes  # without types
    return [node for node in listed() if node["Alive"]]


def _fits(resources: Mapping[str, float], needed: Mapping[str, float]) -> int:
    rooms = [int((resources.get(n, 0.0) + 1e-9) // each) for n, each in needed.items() if each]
    return min(rooms, default=int(resources.get("CPU", 0.0)))


def check_nodes(needed: dict[str, float], study: str) -> None:
    """Raise ``StudyError`` if a node that could get a job does not have the code that is here."""
    import ray
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    here, asked = code_version(import_study(study)), {}
    ask = ray.remote(num_cpus=0)(_by_value(_installed))
    for node in _alive():
        if _fits(node["Resources"], needed):
            there = NodeAffinitySchedulingStrategy(node["NodeID"], soft=False)
            asked[ask.options(scheduling_strategy=there).remote(study)] = node["NodeManagerAddress"]
    for answer, name in asked.items():
        found = ray.get(answer)
        if found is None:
            raise StudyError(
                f"Node {name} does not have tensorprojection, or not all that it needs: pip "
                f"install 'tensorprojection[ray,studies]' there, of version {here}."
            )
        if found != here and found.partition(STUDY)[0] == here.partition(STUDY)[0]:
            raise StudyError(
                f"Node {name} does not have {study} as it is here. Put the same file there, under "
                "the same path."
            )
        if found != here:
            raise StudyError(
                f"Node {name} has tensorprojection {found}, but here is {here}. Install the same "
                "there: results of two versions are not mixed."
            )


def _installed(study: str) -> str | None:
    """Return the code's version on the node that this runs on; None if it is not installed."""
    try:
        from tensorprojection.studies.code_version import code_version
        from tensorprojection.studies.registry import import_study
    except ImportError:
        return None
    return code_version(import_study(study))


def _by_value(function: Callable[[str], str | None]) -> Callable[[str], str | None]:
    """Have Ray send the function's code, not the name of a module that a node may not have."""
    function.__module__ = "__main__"
    return function


def _how(error: Exception) -> str:
    """Return in a few words why an actor has ended."""
    import ray

    text = str(error)
    if isinstance(error, ray.exceptions.OutOfMemoryError) or "running low on memory" in text:
        return "too little memory on its node"
    if "node has died" in text or "node is dead" in text:
        return "the end of its node"
    if isinstance(error, ray.exceptions.RayActorError):
        return "the end of its worker"
    return _first_line(error)


def _first_line(error: BaseException) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return lines[0] if lines else type(error).__name__


# In the actors


class Trainer:
    """A Ray actor. It trains in a thread of its own while the driver fetches events."""

    def __init__(self, task: Task) -> None:
        self.task = task
        self.trainer: JobTrainer | None = None
        self.events: queue.Queue[Event] = queue.Queue(UNSENT)

    def lacks(self, folders: Mapping[Path, str], paths: bool) -> list[Path]:
        """Return those of these folders, given with their digests, that this process cannot read.

        Args:
            folders: their paths in the run, and the digests of their content.
            paths: True if folders of the same path are used if they have the same content.
        """
        return [
            folder
            for folder, digest in folders.items()
            if not (is_received(folder) or (paths and _holds(folder, digest)))
        ]

    def receive(self, sent: Mapping[Path, Mapping[str, Any]]) -> None:
        """Take folders out of Ray's object store, which has them once per node."""
        import ray

        for folder, files in sent.items():
            receive(folder, {name: ray.get(file) for name, file in files.items()})

    def begin(self, job: Job, state: JobState) -> None:
        """Train the job from that state on; :meth:`messages` returns its events."""
        threading.Thread(target=self._train, args=(job, state), daemon=True).start()

    def messages(self) -> list[Event]:
        """Wait for events, and return all that there are."""
        found = [self.events.get()]
        while not self.events.empty():
            found.append(self.events.get())
        return found

    def _train(self, job: Job, state: JobState) -> None:
        # In this thread: torch's number of threads is a thread's own.
        self.trainer = self.trainer or JobTrainer(self.task)
        self.events.put(self.trainer.train(job, state, MergedSteps(self.events.put, STEP_SECONDS)))


def _holds(folder: Path, digest: str) -> bool:
    """Return True if there is a folder of that path here with that content, not corrupted."""
    return corruption(folder) is None and checksum(folder) == digest
