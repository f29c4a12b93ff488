"""Small runs for tests, and their results in a form that compares to the bit."""

from collections.abc import Iterator, Sequence
from pathlib import Path

import polars as pl
from rich.console import Console

from tensorprojection.cli.progress import Watch
from tensorprojection.studies.config import RunConfig, resolve
from tensorprojection.studies.executors.base import Executor, JobTrainer, Task
from tensorprojection.studies.executors.local import run_jobs
from tensorprojection.studies.registry import STUDIES, find_study
from tensorprojection.studies.run import Outcome, run
from tensorprojection.studies.training.checkpoint import resume
from tensorprojection.studies.training.job import Done, Epoch, Event, Failed, Job


def smoke(study: str, **flags) -> RunConfig:
    known = STUDIES[study]
    return resolve(known, "smoke", None, flags)


def carry_out(
    config: RunConfig, folder: Path, jobs: int = 2, execute: Executor = run_jobs, **options
) -> Outcome:
    """Run it; by default in processes, as ``tpl run`` does."""
    with Watch(Console(quiet=True)) as watch:
        study = find_study(config.study)
        return run(study, config, folder, jobs, watch, execute=execute, **options)


def carry_out_here(config: RunConfig, folder: Path, jobs: int = 2, **options) -> Outcome:
    """Run it without processes, each of which would import torch anew."""
    return carry_out(config, folder, jobs, in_this_process, **options)


def in_this_process(jobs: Sequence[Job], count: int, task: Task) -> Iterator[Event]:
    """An executor: one job after the other, here."""
    trainer = JobTrainer(task)
    for job in jobs:
        emitted: list[Event] = []
        ended = train_here(trainer, job, emitted.append)
        yield from emitted
        yield ended


def train_here(trainer: JobTrainer, job: Job, emit=lambda event: None) -> Done | Failed:
    """Train a job from its files on, and save its epochs there."""
    task = trainer.task
    state, notices = resume(job, task.files(job))
    for notice in notices:
        emit(notice)
    return trainer(job, state, lambda e: emit(task.save(e) if isinstance(e, Epoch) else e))


def results(folder: Path) -> pl.DataFrame:
    """All but the seconds, which no two runs share."""
    return pl.read_parquet(folder / "results.parquet").drop("seconds")
