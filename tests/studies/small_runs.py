"""Small runs for tests, and their results in a form that compares to the bit."""

from pathlib import Path

import polars as pl
from rich.console import Console

from tensorprojection.cli.progress import Watch
from tensorprojection.studies.config import RunConfig, resolve
from tensorprojection.studies.registry import STUDIES
from tensorprojection.studies.run import Outcome, run


def smoke(study: str, **flags) -> RunConfig:
    known = STUDIES[study]
    return resolve(known, "smoke", None, flags)


def carry_out(config: RunConfig, folder: Path, jobs: int = 2, execute=None) -> Outcome:
    with Watch(Console(quiet=True)) as watch:
        return run(config, folder, jobs, watch, execute=execute)


def results(folder: Path) -> pl.DataFrame:
    """All but the seconds, which no two runs share."""
    return pl.read_parquet(folder / "results.parquet").drop("seconds")
