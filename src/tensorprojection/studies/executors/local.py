"""Processes of this machine that train: given one job after the other, replaced when killed.

Each is started anew, not forked, which torch's threads would not survive. A process ends when its
parent does, however that ends.
"""

from __future__ import annotations

import multiprocessing
import os
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess

from ..processes import end_with_parent, start_process
from ..training.job import Done, Event, Failed, Job
from .base import JobTrainer, Lost, Task, run_pool


def run_jobs(jobs: Sequence[Job], count: int, task: Task) -> Iterator[Event]:
    """Train these jobs in ``count`` processes, and pass on their events."""
    return run_pool(LocalPool(task), jobs, count)


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

    def submit(self, job: Job) -> None:
        for worker in self.workers:
            if worker.job is None:
                worker.job = job
                with suppress(OSError):  # it was killed since: its link ends
                    worker.link.send(job)
                return
        ours, theirs = multiprocessing.Pipe()
        process = start_process(work, theirs, self.task, job)
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


def work(link: Connection, task: Task, job: Job) -> None:
    """Train the job, then every other that comes, until the process is ended."""
    end_with_parent()
    parent = os.getppid()

    def check_parent() -> None:
        if os.getppid() != parent:  # another run may train this job by now
            os._exit(1)

    trainer = JobTrainer(task, check_parent)
    while True:
        link.send(trainer(job, link.send))
        job = link.recv()
