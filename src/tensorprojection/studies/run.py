"""A whole run: prepare, train what is not trained yet, gather, draw."""

from __future__ import annotations

import os
import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

from filelock import FileLock, Timeout

from .code_version import code_version
from .config import RunConfig, checked, read_config
from .data.stored import open_stored
from .errors import StudyError
from .files import write_whole
from .kept.networks import Keep
from .kept.samples import write_samples
from .limits import check_fits
from .progress import Watch
from .record import Record, add_record, read_record
from .registry import STUDIES
from .results import UnitFiles, gather, write_results
from .study import Prepared
from .training import Unit
from .workers import Done, Event, Failed, Task, run_units

# What a second start may ask for more of: what is there does not depend on it.
EXTENSIBLE = ("trials", "models", "epochs")
# What may lie elsewhere by then: the content is compared, not the path.
MOVABLE = ("data", "weights")


@dataclass(frozen=True)
class Outcome:
    """How a run ended."""

    folder: Path
    was_finished: bool
    failures: tuple[Failed, ...]


def run(
    config: RunConfig,
    folder: Path,
    jobs: int,
    watch: Watch,
    mix_versions: bool = False,
    keep: Keep = "best",
    also: Callable[[Event], None] = lambda event: None,
) -> Outcome:
    """Carry out the run in its folder; what is there already is not done again.

    Args:
        config: its settings.
        folder: where it is, or will be.
        jobs: processes that train.
        watch: is told what happens.
        mix_versions: go on also where another version of the code has trained some of it.
        keep: which networks are kept: of the epoch with the least validation loss, the last, none.
        also: is told of every event, beside the watch.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with _only_one(folder):
            return _run(config, folder, jobs, watch, mix_versions, keep, also)
    except MemoryError:
        raise StudyError(
            "There is not enough memory. Choose a smaller --size, or fewer --images or --jobs."
        ) from None
    except OSError as error:
        where = error.filename or folder
        raise StudyError(f"Could not read or write {where}: {error.strerror or error}.") from error


def default_jobs(threads: int, device: str) -> int:
    """As many as fill the machine; one where a GPU does the work."""
    if not device.startswith("cpu"):
        return 1
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    return max(1, (cores or 1) // threads)


def _run(
    config: RunConfig,
    folder: Path,
    jobs: int,
    watch: Watch,
    mix_versions: bool,
    keep: Keep,
    also: Callable[[Event], None],
) -> Outcome:
    record = read_record(folder)
    stored = _stored(folder, record)
    if stored is not None:
        config = _agree(config, stored, folder)
    study = STUDIES[config.study]
    units = [Unit(trial, model) for trial in range(config.trials) for model in config.models]
    missing = {unit: n for unit in units if (n := _epochs(folder, unit, watch)) < config.epochs}
    moved = [] if stored is None else _moved(config, stored)
    if not missing and not moved:
        _gather(config, folder, units)  # a run killed after its last unit has not
        return Outcome(folder, True, ())
    check_fits(config)
    prepared = study.prepare(config, jobs, watch.preparing)
    training, validation = study.open(config, prepared).sides(0)
    _check_images(folder, record, prepared, moved)
    if missing and not mix_versions:
        _check_versions(folder, units)
    _write_config(config, folder)
    add_record(folder, config, prepared, jobs)
    write_samples(folder, open_stored(prepared.folders["images"]))
    if not missing:
        _gather(config, folder, units)
        return Outcome(folder, True, ())
    if stored is not None and record.identity is None:
        watch.notice("record.json is gone: whether the images are the same is not known.")
    watch.begin(config, prepared, len(units), missing)
    watch.sides(len(training), len(validation))
    failures = []
    for event in run_units(
        list(missing), jobs, Task(config, prepared, folder, code_version(), keep)
    ):
        watch.show(event)
        also(event)
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


def _epochs(folder: Path, unit: Unit, watch: Watch) -> int:
    """How many epochs of the unit are there."""
    found = _files(folder, unit).read()
    if found.damage is not None:
        watch.notice(
            f"{found.damage}. What is lost comes from its checkpoint, or is trained again."
        )
    return len(found.rows)


def _gather(config: RunConfig, folder: Path, units: list[Unit]) -> None:
    _write_config(config, folder)
    results = gather(folder, config.study, [(unit.trial, unit.model) for unit in units])
    if results is not None:
        write_results(folder, results)


def _write_config(config: RunConfig, folder: Path) -> None:
    """Write it unless it is there; a report needs it as well."""
    path, content = folder / "config.toml", config.as_toml()
    if not (path.exists() and path.read_bytes() == content):
        write_whole(path, content)


# What is there, and what is asked for


def _stored(folder: Path, record: Record) -> RunConfig | None:
    """The settings that the folder was begun with, None where it was not begun.

    They are in the record as well as in ``config.toml``, which people edit and remove.
    """
    if record.settings is not None:
        return checked(record.settings, folder / "record.json")
    path = folder / "config.toml"
    if path.exists():
        return read_config(path)
    if any((folder / "trials").glob("*/*.jsonl")):
        raise StudyError(
            f"{folder} holds networks, but neither config.toml nor record.json, so that nothing "
            "says what they were trained with. Choose another --out, or remove the folder."
        )
    return None


def _agree(config: RunConfig, stored: RunConfig, folder: Path) -> RunConfig:
    """The configuration that serves the folder as well as what is asked for now."""
    was, asked = stored.as_settings(), config.as_settings()
    for name in ("study", *sorted({*was, *asked} - {*EXTENSIBLE, *MOVABLE})):
        if was.get(name) != asked.get(name):
            _refuse(folder, name, was.get(name), asked.get(name))
    more = [model for model in config.models if model not in stored.models]
    return config.model_copy(
        update={
            "trials": max(config.trials, stored.trials),
            "epochs": max(config.epochs, stored.epochs),
            "models": (*stored.models, *more),
        }
    )


def _moved(config: RunConfig, stored: RunConfig) -> list[tuple[str, str, str]]:
    """Those of images and weights that are elsewhere now: name, place then, place now."""
    was, asked = stored.as_settings(), config.as_settings()
    return [(n, was[n], asked[n]) for n in MOVABLE if n in was and was[n] != asked[n]]


def _check_images(
    folder: Path, record: Record, prepared: Prepared, moved: list[tuple[str, str, str]]
) -> None:
    """Images and weights are, by content, those that the run was begun with."""
    if record.identity is None:
        for name, was, asked in moved:  # nothing but the place is known
            _refuse(folder, name, was, asked)
    elif record.identity != prepared.identity():
        where = "".join(f" ({name} = {was!r}, not {asked!r})" for name, was, asked in moved)
        raise StudyError(
            f"{folder} was begun with other images or weights than those that are there now"
            f"{where}. Choose another --out."
        )


def _check_versions(folder: Path, units: list[Unit]) -> None:
    """What is there was trained by the code that is here."""
    codes = {row.get("code", "unknown") for unit in units for row in _files(folder, unit).rows()}
    if others := sorted(codes - {code_version()}):
        raise StudyError(
            f"{folder} was trained with other code ({'; '.join(others)}) than what is here now "
            f"({code_version()}), and one table would compare the two. Choose another --out, go "
            "on with the code of then, or add --mix-versions: the table will say so."
        )


def _refuse(folder: Path, name: str, was: Any, asked: Any) -> NoReturn:
    raise StudyError(
        f"{folder} was begun with {name} = {was!r}, not {asked!r}. Choose another --out, or ask "
        "for the same."
    )


@contextmanager
def _only_one(folder: Path) -> Iterator[None]:
    """Holds the folder's lock; a second run is told who has it."""
    owner = folder / ".owner"
    lock = FileLock(folder / ".lock", timeout=0)
    try:
        lock.acquire()
    except Timeout:
        who = owner.read_text(errors="replace") if owner.exists() else "another process"
        raise StudyError(
            f"{folder} is in use by {who}. Wait for it, or choose another --out."
        ) from None
    try:
        owner.write_text(f"process {os.getpid()} on {socket.gethostname()}")
        yield
    finally:
        owner.unlink(missing_ok=True)
        lock.release()
