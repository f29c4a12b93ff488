"""``tpl demo``: the layer beside what it replaces, in a few minutes, and a page to look at."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter

if TYPE_CHECKING:
    from ..studies.config import RunConfig

# Enough trials for an interval; small enough images for three minutes on two cores, and enough of
# them that the networks learn more than to guess.
SETTINGS = {
    "models": ("base", "avg", "tpl1", "tpl1-block"),
    "size": 48,
    "images": 960,
    "trials": 6,
    "epochs": 8,
}


def demo(
    *,
    out: Annotated[Path, Parameter(help="The run's folder.")] = Path("runs/demo"),
    jobs: Annotated[
        int | None, Parameter(help="Training processes; by default as many as fill the machine.")
    ] = None,
) -> None:
    """Train the paper's OCT network on phantoms with four reductions, over several trials.

    MaxPooling, AveragePooling, the paper's projection, and the projection that starts as a pooling:
    the result is a table, three lines, and a page.
    """
    from rich.console import Console

    from ..studies.config import resolve
    from ..studies.executors import default_jobs
    from ..studies.oct import OCT
    from ..studies.report import page, tables
    from ..studies.report.run import read_run
    from ..studies.run import run
    from .progress import Watch
    from .run import check_jobs

    check_jobs(jobs)
    config = resolve(OCT, "small", None, SETTINGS)
    _check_same(out, config)
    console = Console(highlight=False)
    try:
        with Watch(console) as watch:
            outcome = run(
                OCT, config, out, jobs or default_jobs(config.threads, config.device), watch
            )
    except KeyboardInterrupt as stop:
        console.print("Stopped. The same command continues from here.")
        sys.exit(getattr(stop, "code", 130))
    if outcome.failures:
        print(f"tpl: {len(outcome.failures)} networks were not trained.", file=sys.stderr)
        sys.exit(1)
    if outcome.was_finished:
        told = f"{out} has a finished demo: nothing was trained. Remove it to train again."
        console.print(told, soft_wrap=True, markup=False)
    found = read_run(out)
    console.print()
    console.print(tables.short_table(found.only(metrics=("train_loss", "loss", "accuracy", "f1"))))
    console.print()
    for row in tables.of_metric(found, "loss"):
        if row.difference is not None:
            console.print(tables.sentence(found, row), soft_wrap=True, markup=False)
    made = page.write([found], out)
    console.print(f"\nOpen the page in a browser: {made}", soft_wrap=True, markup=False)


def _check_same(out: Path, config: RunConfig) -> None:
    """What is there is this version's demo; another's would be carried on, or be shown as this."""
    from ..studies.code_version import code_version
    from ..studies.config import CONFIG, read_run
    from ..studies.errors import StudyError

    if not (out / CONFIG).exists():
        return
    settings, began = read_run(out)
    if settings != config.as_settings() or began.code != code_version():
        raise StudyError(
            f"{out} has a run that is not this version's demo. Remove it, or choose another --out."
        )
