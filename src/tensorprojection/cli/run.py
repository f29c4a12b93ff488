"""``tpl run``: a study, from one command."""

from __future__ import annotations

import sys
from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from ..studies.config import preset_for, resolve
from ..studies.errors import StudyError

if TYPE_CHECKING:
    from ..studies.executors.ray import RayOptions
    from ..studies.network_file import Keep
    from ..studies.study import Study
    from .settings import Flags

MOST_JOBS = 1024


def flags_of(study: Study[Any] | None) -> Flags:
    from .settings import HOW, WHAT, flag, setting_flags

    first = {
        "preset": flag(
            str,
            WHAT,
            "Settings to start from: smoke (a test; seconds), small (a laptop; minutes; the "
            "default) or paper (the paper's numbers).",
        ),
        "config": flag(Path, WHAT, "A TOML file of settings; flags override it."),
    }
    last = {
        "trial": flag(
            int,
            HOW,
            "Train this trial only, such as 7; other processes may train others into the same "
            "folder.",
        ),
        "jobs": flag(int, HOW, "Training processes; by default as many as fill the machine."),
        "executor": flag(
            Literal["local", "ray"], HOW, "Where to train: on this machine (default), or on Ray."
        ),
        "address": flag(
            str,
            HOW,
            "Address of the Ray cluster: auto, host:port or ray://host:port; by default a "
            "cluster is started here.",
        ),
        "cpus_per_trial": flag(
            float, HOW, "CPUs that Ray reserves for a trial; by default one per thread."
        ),
        "gpus_per_trial": flag(
            float, HOW, "GPUs that Ray reserves for a trial, such as 0.5; by default 1 on cuda."
        ),
        "out": flag(Path, HOW, "The run's folder; by default runs/STUDY-PRESET."),
        "keep": flag(
            Literal["best", "last", "none"],
            HOW,
            "Which network of each training to keep: the one with the lowest validation loss "
            "(best, the default), the last, or none.",
        ),
        "tensorboard": flag(bool, HOW, "Write event files for TensorBoard as well."),
        "mix_versions": flag(
            bool,
            HOW,
            "Continue a run that began with another version, kernels, torch or NumPy; the table "
            "says so.",
        ),
    }
    return {**first, **setting_flags(study), **last}


def run(study: str, /, **given: Any) -> None:
    """Train a study's networks over many trials, and draw the paper's curves.

    Stop it whenever you like, or let it be killed: the same command continues from there, with
    the results of a run that never stopped.
    """
    from rich.console import Console

    from ..studies.executors import executor
    from ..studies.registry import import_study
    from ..studies.results import RESULTS
    from ..studies.run import run as carry_out
    from .progress import Watch
    from .report import report
    from .settings import as_settings
    from .tensorboard import Events

    known = import_study(study)
    preset, config, jobs = given.get("preset"), given.get("config"), given.get("jobs")
    trial = given.get("trial")
    settings = as_settings(known, given)
    known = known.for_data(settings, config)
    ray = _ray(given)
    resolved = resolve(known, preset, config, settings, trained_here=ray is None)
    check_jobs(jobs)
    if known.source is not None:
        known.check_networks(resolved)
    usual = Path("runs") / f"{known.name}-{preset_for(preset, config, known)}"
    folder = given.get("out") or usual
    console = Console()
    try:
        with (
            Watch(console) as watch,
            executor(resolved, ray) as chosen,
            Events(folder) if given.get("tensorboard") else nullcontext() as events,
        ):
            processes, mix_versions = jobs or chosen.jobs, bool(given.get("mix_versions"))
            watch.also = None if events is None else events.show
            keep: Keep = given["keep"] if given.get("keep") else "best"
            outcome = carry_out(
                *(known, resolved, folder, processes, watch, mix_versions, chosen.execute, keep),
                trial=trial,
            )
    except KeyboardInterrupt as stop:
        console.print("Stopped. The same command continues from here.")
        sys.exit(getattr(stop, "code", 130))
    what = folder if trial is None else f"Trial {trial} of {folder}"
    if outcome.was_finished:
        text = f"{what} is finished: nothing is left to train."
        console.print(text, highlight=False, soft_wrap=True, markup=False)
    if trial is None and (folder / RESULTS).exists():
        try:
            report(folder)
        except StudyError as error:
            if not outcome.failures:
                raise
            print(f"tpl: {error}", file=sys.stderr)  # a full disk, say; the failures come first
    if outcome.failures:
        print(
            f"tpl: {len(outcome.failures)} networks were not trained; see above.", file=sys.stderr
        )
        sys.exit(1)


def check_jobs(jobs: int | None) -> None:
    """As many processes as a machine may have."""
    if jobs is not None and not 1 <= jobs <= MOST_JOBS:
        raise StudyError(f"Expected 1 to {MOST_JOBS} jobs, got {jobs}.")


def _ray(given: dict[str, Any]) -> RayOptions | None:
    """Return the options of the cluster, None without one."""
    from ..studies.executors.ray import RayOptions

    if given.get("executor") == "ray":
        each = given.get("cpus_per_trial"), given.get("gpus_per_trial")
        return RayOptions(given.get("address"), *each)
    for name in ("address", "cpus_per_trial", "gpus_per_trial"):
        if given.get(name) is not None:
            raise StudyError(f"--{name.replace('_', '-')} is for --executor ray only.")
    return None
