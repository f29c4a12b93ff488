"""Small runs for tests, and their results in a form that compares to the bit."""

from collections.abc import Iterator, Sequence
from pathlib import Path

import polars as pl
from rich.console import Console

from tensorprojection.cli.progress import Watch
from tensorprojection.studies.config import RunConfig, resolve
from tensorprojection.studies.execute.protocol import Event, Executor, Task, UnitTrainer
from tensorprojection.studies.registry import STUDIES
from tensorprojection.studies.run import Outcome, run
from tensorprojection.studies.trial.unit import GatheredSteps, Unit


def smoke(study: str, **flags) -> RunConfig:
    known = STUDIES[study]
    return resolve(known, "smoke", None, flags)


def carry_out(
    config: RunConfig, folder: Path, jobs: int = 2, execute: Executor | None = None
) -> Outcome:
    """Run it; by default by processes, as ``tpl run`` does."""
    with Watch(Console(quiet=True)) as watch:
        return run(config, folder, jobs, watch, execute=execute)


def carry_out_here(config: RunConfig, folder: Path, jobs: int = 2) -> Outcome:
    """Run it without processes, each of which would import torch anew."""
    return carry_out(config, folder, jobs, in_this_process)


def in_this_process(units: Sequence[Unit], jobs: int, task: Task) -> Iterator[Event]:
    """An executor: one unit after the other, here."""
    trainer = UnitTrainer(task)
    for unit in units:
        said: list[Event] = []
        ended = trainer(unit, GatheredSteps(said.append))
        yield from said
        yield ended


def results(folder: Path) -> pl.DataFrame:
    """All but the seconds, which no two runs share."""
    return pl.read_parquet(folder / "results.parquet").drop("seconds")
