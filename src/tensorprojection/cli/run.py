"""``tpl run``: a study, from one command."""

from __future__ import annotations

import sys
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from cyclopts import Parameter
from cyclopts.validators import Number

from ..studies.config import PHANTOMS, preset_for, resolve
from ..studies.errors import StudyError
from .report import report
from .settings import WHAT, StudyName, given_settings

if TYPE_CHECKING:
    from ..studies.training.job import Event, Job

MOST_JOBS = 1024


def run(
    study: StudyName,
    /,
    *,
    preset: Annotated[str | None, Parameter(group=WHAT)] = None,
    config: Annotated[Path | None, Parameter(group=WHAT)] = None,
    trial: int | None = None,
    jobs: Annotated[int | None, Parameter(validator=Number(gte=1, lte=MOST_JOBS))] = None,
    executor: Literal["local", "ray"] = "local",
    address: str | None = None,
    cpus_per_trial: float | None = None,
    gpus_per_trial: float | None = None,
    out: Path | None = None,
    keep: Literal["best", "last", "none"] = "best",
    tensorboard: bool = False,
    mix_versions: bool = False,
    **given: Any,
) -> None:
    """Train a study's networks over many trials, and draw the paper's curves.

    Stop it whenever you like, or let it be killed: the same command continues from there, with
    the results of a run that never stopped.

    Args:
        preset: Settings to start from: smoke (a test; seconds), small (a laptop; minutes; the
            default) or paper (the paper's numbers).
        config: A TOML file of settings; flags override it.
        trial: Train this trial only, such as 7; other processes may train others into the same
            folder.
        jobs: Training processes; by default as many as fill the machine.
        executor: Train on this machine, or on Ray.
        address: Address of the Ray cluster: auto, host:port or ray://host:port; by default a
            cluster is started here.
        cpus_per_trial: CPUs that Ray reserves for a trial; by default one per thread.
        gpus_per_trial: GPUs that Ray reserves for a trial, such as 0.5; by default 1 on cuda.
        out: The run's folder; by default runs/STUDY-PRESET.
        keep: Which network of each training to save: the one with the lowest validation loss
            (best), the last, or none.
        tensorboard: Write event files for TensorBoard as well.
        mix_versions: Continue a run that began with another version, kernels, torch or NumPy; the
            table names them.
    """
    from rich.console import Console

    from ..studies.executors.local import default_jobs, run_jobs
    from ..studies.executors.ray import RayOptions, connected
    from ..studies.registry import import_study
    from ..studies.results import RESULTS
    from ..studies.run import run as run_study
    from .progress import Watch

    each = {"cpus-per-trial": cpus_per_trial, "gpus-per-trial": gpus_per_trial}
    for name, value in {"address": address, **each}.items():
        if executor != "ray" and value is not None:
            raise StudyError(f"--{name} is for --executor ray only.")
    settings = given_settings(given)
    known = import_study(study).for_data(settings, config)
    chosen = preset_for(preset, config, known)
    resolved = resolve(known, preset, config, settings, trained_here=executor == "local")
    known.check_networks(resolved)
    folder = out or Path("runs") / f"{known.name}-{chosen}"
    if chosen == "paper" and resolved.data == PHANTOMS and not known.source:
        print(
            "Not the paper's images: these are phantoms, which are generated. The paper's results "
            f"need --data; tpl data get {known.name} has them."
        )
    try:
        with ExitStack() as stack:
            watch = stack.enter_context(Watch(Console()))
            execute, count = run_jobs, jobs or default_jobs(resolved.threads, resolved.device)
            if executor == "ray":
                cluster = stack.enter_context(
                    connected(RayOptions(address, *each.values()), resolved)
                )
                execute, count = cluster.run_jobs, jobs or cluster.places
            if tensorboard:
                watch.also = event_files(folder)
            outcome = run_study(
                known,
                resolved,
                folder,
                count,
                watch,
                mix_versions=mix_versions,
                execute=execute,
                keep=keep,
                trial=trial,
            )
    except KeyboardInterrupt as stop:
        print("Stopped. The same command continues from here.")
        sys.exit(getattr(stop, "code", 130))
    what = folder if trial is None else f"Trial {trial} of {folder}"
    if outcome.was_finished:
        print(f"{what} is finished: nothing is left to train.")
    if failed := len(outcome.failures):
        print(f"tpl: {failed} networks were not trained; see above.", file=sys.stderr)
    if trial is None and (folder / RESULTS).exists():
        report(folder)
    if failed:
        sys.exit(1)


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
