"""The parts that all executors share: their arguments, retries, saving, and the training of a job.

An executor is a function ``run_jobs(jobs, count, task)`` that trains the jobs, up to ``count`` of
them at once, and yields events as they happen. Every job ends with :class:`Done` or
:class:`Failed`. Closing the generator stops the training; what was saved stays.

The processes that train write nothing: they send every epoch with its checkpoint, and the run saves
it. So any of them may die at any time, and the job continues from the last epoch that was saved.
"""

from __future__ import annotations

import traceback
from collections import Counter, deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Protocol

import torch

from tensorprojection.errors import ProjectionError

from ..config import RunConfig, code_version
from ..data.cache import open_stored
from ..errors import StudyError
from ..inputs import Data, RunInputs
from ..network_file import Keep
from ..registry import config_of, import_study
from ..results import JobFiles
from ..study import Study
from ..training.checkpoint import JobState, resume
from ..training.job import Done, Emit, Epoch, Event, Failed, Job, Restarted
from ..training.train import train

# A job that ends its process this often without finishing an epoch is given up.
ATTEMPTS = 3


@dataclass(frozen=True)
class Task:
    """The data that all jobs of a run share; it can be pickled."""

    study: Study[Any]
    config: RunConfig
    inputs: RunInputs
    run: Path
    code: str
    keep: Keep = "none"

    def files(self, job: Job) -> JobFiles:
        """Return the paths of the job's files."""
        return JobFiles.of(self.run, job.trial, job.model)

    def save(self, event: Epoch) -> Epoch:
        """Save what the event has to be saved, and return it without."""
        if event.saved is not None:
            self.files(event.job).save(event.row, event.saved)
        return replace(event, saved=None)

    def __reduce__(self) -> tuple[Any, ...]:
        # By its settings, as the classes of study and settings may be in a user's file.
        return _task, (self.config.as_settings(), self.inputs, self.run, self.code, self.keep)


def _task(settings: dict[str, Any], *others: Any) -> Task:
    study = import_study(settings["study"])  # the process that sent this has run the same code
    return Task(study, config_of(settings), *others)


Executor = Callable[[Sequence[Job], int, Task], Iterator[Event]]


@dataclass(frozen=True)
class Lost:
    """A job's process has ended before the job did; with ``fatal`` so would any other."""

    job: Job
    how: str
    fatal: bool = False


class Pool(Protocol):
    """Processes that train, here or elsewhere."""

    def submit(self, job: Job, state: JobState) -> None:
        """Begin to train the job from that state on, in an idle process or a new one."""

    def receive(self) -> Sequence[Event | Lost]:
        """Wait for events, and return them."""

    def close(self) -> None:
        """End all processes."""


def run_pool(pool: Pool, jobs: Sequence[Job], count: int, task: Task) -> Iterator[Event]:
    """Train the jobs in the pool, and save their epochs; a job that is lost is submitted again."""
    waiting, active, deaths = deque(jobs), set[Job](), Counter[Job]()
    try:
        while waiting or active:
            while waiting and len(active) < count:
                job = waiting.popleft()
                state, notices = resume(job, task.files(job))
                yield from notices
                active.add(job)
                pool.submit(job, state)
            for event in pool.receive():
                job = event.job
                if isinstance(event, Epoch):
                    event = task.save(event)
                    deaths.pop(job, None)
                elif isinstance(event, Done | Failed | Lost):
                    active.discard(job)
                if isinstance(event, Lost):
                    deaths[job] += 1
                    if event.fatal or deaths[job] >= ATTEMPTS:
                        event = _given_up(event)
                    else:
                        waiting.appendleft(job)
                        event = Restarted(job, event.how)
                yield event
    finally:
        pool.close()


def _given_up(lost: Lost) -> Failed:
    if lost.fatal:
        return Failed(lost.job, f"{lost.how}. The same command continues from here.", stop=True)
    return Failed(
        lost.job,
        f"its process ended {ATTEMPTS} times with {lost.how}. If that is for lack of memory, run "
        "again with fewer --jobs or a smaller --batch: what was computed is saved.",
    )


class JobTrainer:
    """Trains jobs in the calling process, each to its end or its error."""

    def __init__(self, task: Task) -> None:
        torch.set_num_threads(task.config.threads)
        self.task = task
        self.data: Data | None = None

    def __call__(self, job: Job, state: JobState, emit: Emit) -> Done | Failed:
        """Train the job from this state on; ``emit`` is called with its events."""
        task = self.task
        now = code_version(task.study)
        if now != task.code:  # changed since the run started, or on a node of a cluster
            why = (
                f"its process has other code than the run: {now}, not {task.code}. Run again with "
                "the same code everywhere, or with --mix-versions."
            )
            return Failed(job, why, stop=True)
        try:
            self.data = self.data or task.study.open(task.config, task.inputs)
            names = task.study.images.class_names
            if "images" in task.inputs.folders:  # a file may have its own order
                names = open_stored(task.inputs.folders["images"]).class_names
            train(job, task.study, task.config, self.data, emit, state, task.keep, names)
        except (StudyError, ProjectionError) as error:
            return Failed(job, str(error))
        except OSError as error:
            where = f" {error.filename}" if error.filename else ""
            return Failed(job, f"could not read{where}: {error.strerror or error}.", stop=True)
        except SystemExit as error:
            return Failed(job, f"the study's code has called sys.exit({error.code!r}).")
        except Exception as error:
            lacks = isinstance(error, MemoryError | torch.OutOfMemoryError)
            if lacks or "allocate memory" in str(error):  # torch's own on a CPU: a RuntimeError
                why = "it needs more memory than there is. Run again with a smaller --batch or "
                return Failed(job, f"{why}--size, or fewer --jobs: what was computed is saved.")
            return Failed(job, traceback.format_exc())
        return Done(job)
