"""A whole run: prepare, train what is not trained yet, gather, draw."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from filelock import FileLock, Timeout

from .config import RunConfig, read_config
from .errors import StudyError
from .files import write_whole
from .progress import Watch
from .record import add_record, same_as_before
from .registry import STUDIES
from .results import UnitFiles, gather, write_results
from .training import Unit
from .workers import Done, Failed, Task, run_units

# What a second start may ask for more of: the units that are there do not depend on it.
EXTENSIBLE = ("trials", "models")


@dataclass(frozen=True)
class Outcome:
    """How a run ended."""

    folder: Path
    was_finished: bool
    failures: tuple[Failed, ...]


def run(config: RunConfig, folder: Path, jobs: int, watch: Watch) -> Outcome:
    """Carry out the run in its folder; what is there already is not done again."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with _only_one(folder):
            return _run(config, folder, jobs, watch)
    except OSError as error:
        where = error.filename or folder
        raise StudyError(f"Could not read or write {where}: {error.strerror or error}.") from error


def default_jobs(threads: int, device: str) -> int:
    """As many as fill the machine; one where a GPU does the work."""
    if not device.startswith("cpu"):
        return 1
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    return max(1, (cores or 1) // threads)


def _run(config: RunConfig, folder: Path, jobs: int, watch: Watch) -> Outcome:
    config = _agree(config, folder)
    study = STUDIES[config.study]
    units = [Unit(trial, model) for trial in range(config.trials) for model in config.models]
    missing = [unit for unit in units if not _files(folder, unit).finished.exists()]
    if not missing:
        _gather(config, folder, units)  # a run killed after its last unit has not
        return Outcome(folder, True, ())
    prepared = study.prepare(config, jobs, watch.preparing)
    training, validation = study.open(config, prepared).sides(0)
    if not same_as_before(folder, prepared):
        raise StudyError(
            f"{folder} was begun with other images or weights than those that are there now. "
            "Choose another --out."
        )
    write_whole(folder / "config.toml", config.as_toml())
    add_record(folder, config, prepared, jobs)
    watch.begin(config, prepared, len(units), {u: len(_files(folder, u).rows()) for u in missing})
    watch.sides(len(training), len(validation))
    failures = []
    for event in run_units(missing, jobs, Task(config, prepared, folder)):
        watch.show(event)
        if isinstance(event, Done):
            _gather(config, folder, units)
        if isinstance(event, Failed):
            failures.append(event)
            if event.stop:
                break
    _gather(config, folder, units)
    return Outcome(folder, False, tuple(failures))


def _files(folder: Path, unit: Unit) -> UnitFiles:
    return UnitFiles.of(folder, unit.trial, unit.model)


def _gather(config: RunConfig, folder: Path, units: list[Unit]) -> None:
    results = gather(folder, config.study, [(unit.trial, unit.model) for unit in units])
    if results is not None:
        write_results(folder, results)


def _agree(config: RunConfig, folder: Path) -> RunConfig:
    """The configuration that serves the folder as well as what is asked for now."""
    path = folder / "config.toml"
    if not path.exists():
        return config
    stored = read_config(path).model_dump(mode="json", exclude_none=True)
    asked = config.model_dump(mode="json", exclude_none=True)
    for name in ("study", *sorted({*stored, *asked} - {*EXTENSIBLE})):
        if stored.get(name) != asked.get(name):
            raise StudyError(
                f"{folder} was begun with {name} = {stored.get(name)!r}, not "
                f"{asked.get(name)!r}. Choose another --out, or ask for the same."
            )
    more = [model for model in config.models if model not in stored["models"]]
    return config.model_copy(
        update={
            "trials": max(config.trials, stored["trials"]),
            "models": (*stored["models"], *more),
        }
    )


@contextmanager
def _only_one(folder: Path) -> Iterator[None]:
    """Holds the folder's lock; a second run is told who has it."""
    owner = folder / ".owner"
    lock = FileLock(folder / ".lock", timeout=0)
    try:
        lock.acquire()
    except Timeout:
        who = owner.read_text() if owner.exists() else "another process"
        raise StudyError(
            f"{folder} is in use by {who}. Wait for it, or choose another --out."
        ) from None
    try:
        owner.write_text(f"process {os.getpid()} on {socket.gethostname()}")
        yield
    finally:
        owner.unlink(missing_ok=True)
        lock.release()
