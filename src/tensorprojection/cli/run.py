"""``tpl run``: a study, from one command."""

from __future__ import annotations

import sys
from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from cyclopts import App, Parameter

from ..studies.config import PRESETS, preset_for, resolve
from ..studies.errors import StudyError

if TYPE_CHECKING:
    from ..studies.execute.parallel import Devices
    from ..studies.execute.ray_cluster import RayOptions
    from ..studies.network_file import Keep
    from ..studies.study import Study

MOST_JOBS = 1024

# Its flags depend on the study, so it parses what follows by itself.
app = App(
    name="run",
    help="Train a study's networks over many trials, and draw the paper's curves.",
    help_flags=(),
    version_flags=(),
)


@app.default
def _parse(*tokens: Annotated[str, Parameter(allow_leading_hyphen=True, show=False)]) -> None:
    from ..studies.registry import STUDIES
    from .settings import parse, refuse_others, study_in

    study = study_in(tokens)
    refuse_others(study, tokens)
    flags = _flags(study)
    which = f"Which study: {', '.join(STUDIES)}, a .py file with one, or package.module:NAME."
    parse("run", run, flags, which, tokens)


def _flags(study: Study[Any] | None) -> dict[str, Any]:
    from .settings import HOW, WHAT, choice_flags, setting_flags

    first = {
        "preset": Annotated[
            str | None,
            Parameter(
                group=WHAT,
                help=f"Where settings start ({', '.join(PRESETS)}): the paper's numbers, a size "
                "for a laptop (minutes; the default), or for a test (seconds).",
            ),
        ],
        "config": Annotated[
            Path | None, Parameter(group=WHAT, help="A TOML file of settings; flags override it.")
        ],
    }
    last = {
        "jobs": Annotated[
            int | None,
            Parameter(group=HOW, help="Processes; as many as fill the machine by default."),
        ],
        "executor": Annotated[
            Literal["local", "ray"] | None,
            Parameter(group=HOW, help="Where trials are trained: here (default), or on Ray."),
        ],
        "address": Annotated[
            str | None,
            Parameter(
                group=HOW,
                help="Of the Ray cluster: auto, host:port or ray://host:port; without it, one is "
                "started here.",
            ),
        ],
        "cpus_per_trial": Annotated[
            float | None,
            Parameter(group=HOW, help="That Ray sets apart; as many as threads by default."),
        ],
        "gpus_per_trial": Annotated[
            float | None,
            Parameter(group=HOW, help="That Ray sets apart, such as 0.5; 1 by default on cuda."),
        ],
        "devices": Annotated[
            int | None,
            Parameter(group=HOW, help="That train one network together, 1 by default."),
        ],
        "nodes": Annotated[
            int | None,
            Parameter(
                group=HOW,
                help="Machines with so many devices each, 1 by default; the same command is "
                "started on all.",
            ),
        ],
        "unpack_limits": Annotated[
            float | None,
            Parameter(group=HOW, help="How many times as much as usual an archive may hold."),
        ],
        "out": Annotated[
            Path | None,
            Parameter(group=HOW, help="The run's folder; runs/STUDY-PRESET by default."),
        ],
        "keep": Annotated[
            Literal["best", "last", "none"] | None,
            Parameter(
                group=HOW,
                help="Which network of each training is kept: that with the least validation loss "
                "(best, the default), the last, or none.",
            ),
        ],
        "tensorboard": Annotated[
            bool | None,
            Parameter(group=HOW, negative=(), help="Write event files for TensorBoard as well."),
        ],
        "mix_versions": Annotated[
            bool | None,
            Parameter(
                group=HOW,
                negative=(),
                help="Go on with a run that another version of the code has begun; its table "
                "says so.",
            ),
        ],
    }
    return {**first, **setting_flags(study), **choice_flags(study), **last}


def run(study: str, /, **given: Any) -> None:
    """Train a study's networks over many trials, and draw the paper's curves.

    Stop it whenever you like, or let it be killed: the same command goes on from there, with the
    results of a run that never stopped.
    """
    from rich.console import Console

    from ..studies.data.sources import allow_archive
    from ..studies.execute.choose import executor
    from ..studies.registry import find_study
    from ..studies.results import RESULTS
    from ..studies.run import run as carry_out
    from ..studies.run import take_part
    from .progress import Watch
    from .report import report
    from .settings import as_settings
    from .tensorboard import Events

    known = find_study(study)
    preset, config, jobs = given.get("preset"), given.get("config"), given.get("jobs")
    settings = as_settings(known, given) | _chosen(known, given)
    ray, devices = _places(given)
    resolved = resolve(known, preset, config, settings, trained_here=ray is None)
    check_jobs(jobs)
    usual = Path("runs") / f"{known.name}-{preset_for(preset, config, known)}"
    folder = given.get("out") or usual
    if (limits := given.get("unpack_limits")) is not None:
        allow_archive(resolved.data, limits)
    console = Console()
    try:
        with (
            Watch(console) as watch,
            executor(resolved, ray, devices) as chosen,
            Events(folder) if given.get("tensorboard") else nullcontext() as events,
        ):
            if chosen.helps is not None:
                take_part(resolved, chosen.helps, watch)
                return
            processes, mix_versions = jobs or chosen.jobs, bool(given.get("mix_versions"))
            watch.also = None if events is None else events.show
            keep: Keep = given["keep"] if given.get("keep") else "best"
            outcome = carry_out(
                resolved, folder, processes, watch, mix_versions, chosen.execute, keep
            )
    except KeyboardInterrupt as stop:
        console.print("Stopped. The same command goes on from here.")
        sys.exit(getattr(stop, "code", 130))
    if outcome.was_finished:
        console.print(f"{folder} is finished: nothing is left to train.", highlight=False)
    if (folder / RESULTS).exists():
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


def _places(given: dict[str, Any]) -> tuple[RayOptions | None, Devices]:
    """The cluster, where one is asked for, and the devices of one training."""
    from ..studies.execute.parallel import Devices
    from ..studies.execute.ray_cluster import RayOptions

    devices = Devices(*(1 if given.get(n) is None else given[n] for n in ("devices", "nodes")))
    if given.get("executor") == "ray":
        each = given.get("cpus_per_trial"), given.get("gpus_per_trial")
        return RayOptions(given.get("address"), *each), devices
    for name in ("address", "cpus_per_trial", "gpus_per_trial"):
        if given.get(name) is not None:
            raise StudyError(f"`{name}` is for `executor` ray only.")
    return None, devices


def _chosen(study: Study[Any], given: dict[str, Any]) -> dict[str, Any]:
    """The models of a short way to choose them, where one was taken."""
    for choice in study.choices:
        if (value := given.get(choice.name)) is not None:
            if given.get("models") is not None:
                raise StudyError(f"Expected `models` or `{choice.name}`, got both.")
            return {"models": choice.models[value]}
    return {}
