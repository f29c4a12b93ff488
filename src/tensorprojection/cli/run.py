"""``tpl run``: a study, from one command."""

from __future__ import annotations

import sys
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from ..studies.config import PHANTOMS, preset_for, resolve
from ..studies.errors import StudyError

if TYPE_CHECKING:
    from ..studies.executors.ray import RayOptions
    from ..studies.study import Study
    from ..studies.training.job import Event, Job
    from .settings import Flags

MOST_JOBS = 1024


WHAT_FLAGS = {
    "preset": (
        str,
        "Settings to start from: smoke (a test; seconds), small (a laptop; minutes; the default) "
        "or paper (the paper's numbers).",
    ),
    "config": (Path, "A TOML file of settings; flags override it."),
}
HOW_FLAGS = {
    "trial": (
        int,
        "Train this trial only, such as 7; other processes may train others into the same folder.",
    ),
    "jobs": (int, "Training processes; by default as many as fill the machine."),
    "executor": (Literal["local", "ray"], "Train on this machine (local, the default), or on Ray."),
    "address": (
        str,
        "Address of the Ray cluster: auto, host:port or ray://host:port; by default a cluster is "
        "started here.",
    ),
    "cpus_per_trial": (float, "CPUs that Ray reserves for a trial; by default one per thread."),
    "gpus_per_trial": (
        float,
        "GPUs that Ray reserves for a trial, such as 0.5; by default 1 on cuda.",
    ),
    "out": (Path, "The run's folder; by default runs/STUDY-PRESET."),
    "keep": (
        Literal["best", "last", "none"],
        "Which network of each training to save: the one with the lowest validation loss (best, "
        "the default), the last, or none.",
    ),
    "tensorboard": (bool, "Write event files for TensorBoard as well."),
    "mix_versions": (
        bool,
        "Continue a run that began with another version, kernels, torch or NumPy; the table names "
        "them.",
    ),
}


def flags_of(study: Study[Any] | None) -> Flags:
    from .settings import HOW, WHAT, flag, setting_flags

    first = {name: flag(kind, WHAT, text) for name, (kind, text) in WHAT_FLAGS.items()}
    last = {name: flag(kind, HOW, text) for name, (kind, text) in HOW_FLAGS.items()}
    return {**first, **setting_flags(study), **last}


def run(study: str, /, **given: Any) -> None:
    """Train a study's networks over many trials, and draw the paper's curves.

    Stop it whenever you like, or let it be killed: the same command continues from there, with
    the results of a run that never stopped.
    """
    from rich.console import Console

    from ..studies.executors.local import default_jobs, run_jobs
    from ..studies.executors.ray import connected
    from ..studies.registry import import_study
    from ..studies.results import RESULTS
    from ..studies.run import run as run_study
    from .progress import Watch
    from .report import report
    from .settings import as_settings

    known = import_study(study)
    preset, file, jobs = given.get("preset"), given.get("config"), given.get("jobs")
    trial, settings, ray = given.get("trial"), as_settings(known, given), _ray(given)
    known = known.for_data(settings, file)
    config = resolve(known, preset, file, settings, trained_here=ray is None)
    check_jobs(jobs)
    known.check_networks(config)
    folder = given.get("out") or Path("runs") / f"{known.name}-{preset_for(preset, file, known)}"
    console = Console()
    if preset_for(preset, file, known) == "paper" and config.data == PHANTOMS and not known.source:
        text = "Not the paper's images: these are phantoms, which are generated. "
        console.print(f"{text}The paper's results need --data; tpl data get {known.name} has them.")
    try:
        with ExitStack() as stack:
            watch = stack.enter_context(Watch(console))
            execute, count = run_jobs, jobs or default_jobs(config.threads, config.device)
            if ray is not None:
                cluster = stack.enter_context(connected(ray, config))
                execute, count = cluster.run_jobs, jobs or cluster.places
            if given.get("tensorboard"):
                watch.also = event_files(folder)
            outcome = run_study(
                known,
                config,
                folder,
                count,
                watch,
                mix_versions=bool(given.get("mix_versions")),
                execute=execute,
                keep=given.get("keep") or "best",
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
            print(f"tpl: {error}", file=sys.stderr)  # such as a full disk; the failures come first
    if outcome.failures:
        print(
            f"tpl: {len(outcome.failures)} networks were not trained; see above.", file=sys.stderr
        )
        sys.exit(1)


def check_jobs(jobs: int | None) -> None:
    """Raise ``StudyError`` for more processes than a machine may have."""
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


def event_files(run: Path) -> Callable[[Event], None]:
    """Return a function that writes epochs to ``RUN/tensorboard/MODEL/TRIAL``, for TensorBoard."""
    try:
        from torch.utils.tensorboard import SummaryWriter
    except ModuleNotFoundError:
        raise StudyError(
            "--tensorboard needs TensorBoard: pip install 'tensorprojection[tensorboard]'."
        ) from None

    writers: dict[Job, Any] = {}

    def write(event: Event) -> None:
        row: dict[str, Any] = getattr(event, "row", {})
        if not row:
            return
        if (job := event.job) not in writers:
            place = run / "tensorboard" / job.model / f"{job.trial + 1:03d}"
            # An epoch that is trained again, after a kill, takes the place of the first.
            writers[job] = SummaryWriter(str(place), purge_step=row["epoch"])
        for name, value in row.items():
            if isinstance(value, float):
                writers[job].add_scalar(name, value, row["epoch"])
        writers[job].flush()

    return write
