"""Processes of this machine that train: given one job after the other, replaced when killed.

Each is spawned, as a fork of a process that has run torch's threads may hang. A process ends when
its parent does, however the parent ends.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from multiprocessing import get_context, resource_tracker
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from typing import Any

from ..training.checkpoint import JobState
from ..training.job import Done, Event, Failed, Job
from .base import JobTrainer, Lost, Task, run_pool


def default_jobs(threads: int, device: str) -> int:
    """Return as many processes as fill the machine; one if a GPU does the work."""
    if not device.startswith("cpu"):
        return 1
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    return max(1, (cores or 1) // threads)


def run_jobs(jobs: Sequence[Job], count: int, task: Task) -> Iterator[Event]:
    """Train these jobs in ``count`` processes, and pass on their events."""
    return run_pool(LocalPool(task), jobs, count, task)


@dataclass
class _Worker:
    process: BaseProcess
    link: Connection
    job: Job | None


class LocalPool:
    """Processes that train, each linked by a pipe."""

    def __init__(self, task: Task) -> None:
        self.task = task
        self.workers: list[_Worker] = []

    def submit(self, job: Job, state: JobState) -> None:
        for worker in self.workers:
            if worker.job is None:
                worker.job = job
                with suppress(OSError):  # it was killed since: its link ends
                    worker.link.send((job, state))
                return
        ours, theirs = multiprocessing.Pipe()
        process = start_process(work, theirs, self.task, job, state)
        theirs.close()  # so that the link ends when the worker does
        self.workers.append(_Worker(process, ours, job))

    def receive(self) -> list[Event | Lost]:
        events: list[Event | Lost] = []
        ready = wait([worker.link for worker in self.workers])
        for worker in [worker for worker in self.workers if worker.link in ready]:
            try:
                event: Event = worker.link.recv()
                if isinstance(event, Done | Failed):
                    worker.job = None
                events.append(event)
            except (EOFError, OSError):
                worker.process.join()
                self.workers.remove(worker)
                code = worker.process.exitcode
                how = f"signal {-code}" if code is not None and code < 0 else f"exit code {code}"
                if worker.job is not None:
                    events.append(Lost(worker.job, how))
        return events

    def close(self) -> None:
        for worker in self.workers:
            worker.process.kill()
            worker.process.join()


def work(link: Connection, task: Task, job: Job, state: JobState) -> None:
    """Train the job, then every other that comes, until the process is ended."""
    end_with_parent()
    trainer = JobTrainer(task)
    with suppress(OSError, EOFError):  # the parent has ended
        while True:
            link.send(trainer(job, state, link.send))
            job, state = link.recv()


# Starting processes


def start_process(target: Callable[..., None], *arguments: Any) -> BaseProcess:
    """Start a process that runs the function; Ctrl-C does not reach it."""
    process = get_context("spawn").Process(target=target, args=arguments, daemon=True)
    with settings_to_inherit():
        process.start()
    return process


@contextmanager
def settings_to_inherit() -> Iterator[None]:
    """Let processes that are started in here ignore Ctrl-C, and keep the memory that they free.

    By default glibc's malloc returns every large block and gets it anew, page by page, at each
    step: for networks of this size that takes nearly as long as the arithmetic. Threads other than
    the first, as on Ray, would have heaps of 64 MB of their own, which are returned nonetheless:
    all use the first one's.
    """
    settings = memory_settings()
    os.environ.update(settings)
    masks = hasattr(signal, "pthread_sigmask")  # not on Windows
    if masks:
        # Or it would be started with the first process, and let signals through again after that.
        resource_tracker.ensure_running()
        before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        if masks:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)
        for name in settings:
            del os.environ[name]


def memory_settings() -> dict[str, str]:
    """Return environment variables for a process that trains, without those the user has set."""
    settings = {
        "MALLOC_MMAP_MAX_": "0",  # no block is too large for the heap
        "MALLOC_TRIM_THRESHOLD_": str(2**34),
        "MALLOC_ARENA_MAX": "1",
    }
    if "MALLOC_MMAP_THRESHOLD_" in os.environ:  # which would have no effect
        del settings["MALLOC_MMAP_MAX_"]
    return {name: value for name, value in settings.items() if name not in os.environ}


def end_with_parent() -> None:
    """Let the calling process end when its parent does, however the parent ends."""
    threading.Thread(target=_wait_for_parent, daemon=True).start()


def _wait_for_parent() -> None:
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()
        os._exit(1)
