"""A whole run: prepare, train what is not trained yet, gather, draw."""

from __future__ import annotations

import os
import socket
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn, Protocol

from filelock import FileLock, Timeout

from .code_version import code_version
from .config import RunConfig, checked, read_toml
from .data.stored import open_stored
from .errors import StudyError
from .execute.local import run_units
from .execute.parallel import ParallelExecutor
from .execute.protocol import Done, Event, Executor, Failed, Task
from .files import write_whole
from .inputs import RunInputs
from .limits import check_fits
from .network_file import Keep
from .record import Record, add_record, read_record
from .reference import parse_reference
from .registry import find_study
from .results import UnitFiles, gather, restore_lines, write_results
from .samples import write_samples
from .study import Study
from .trial.unit import Unit

# What a second start may ask for more of: what is there does not depend on it.
EXTENSIBLE = ("trials", "models", "epochs")
# What may lie elsewhere by then: the content is compared, not the path.
MOVABLE = ("data", "weights")


class Watcher(Protocol):
    """Is told what a run does, to show it to the user."""

    def preparing(self, what: str, done: int, of: int, /) -> None:
        """How much of what all trials share has been made, out of how much."""

    def begin(
        self, config: RunConfig, inputs: RunInputs, units: int, begun: Mapping[Unit, int]
    ) -> None:
        """Training starts: how many units in all, and the epochs so far of those not finished."""

    def sides(self, training: int, validation: int) -> None:
        """How many samples train and how many validate, copies included."""

    def notice(self, text: str) -> None:
        """Something that the user should know, whatever else goes on."""

    def show(self, event: Event) -> None:
        """Something has happened in training."""


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
    watch: Watcher,
    mix_versions: bool = False,
    execute: Executor | None = None,
    keep: Keep = "best",
) -> Outcome:
    """Carry out the run in its folder; what is there already is not done again.

    Args:
        config: its settings.
        folder: where it is, or will be.
        jobs: processes that train.
        watch: is told what happens.
        mix_versions: continue even where another version of the code has trained some of it.
        execute: trains the networks; by default processes of this machine.
        keep: which networks to keep: of the epoch with the lowest validation loss, the last, none.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with _only_one(folder):
            return _run(config, folder, jobs, watch, mix_versions, execute or run_units, keep)
    except MemoryError:
        raise StudyError(
            "There is not enough memory. Choose a smaller `size`, or fewer `images` or `jobs`."
        ) from None
    except OSError as error:
        where = error.filename or folder
        raise StudyError(f"Could not read or write {where}: {error.strerror or error}.") from error


def take_part(config: RunConfig, together: ParallelExecutor, watch: Watcher) -> None:
    """On every machine but the first: train together with it; the first keeps the results."""
    study = find_study(config.study)
    inputs = study.prepare(config, 1, watch.preparing)
    with tempfile.TemporaryDirectory(prefix="tpl-") as folder:
        together.take_part(Task(config, inputs, Path(folder), code_version(config.study)))


def _run(
    config: RunConfig,
    folder: Path,
    jobs: int,
    watch: Watcher,
    mix_versions: bool,
    execute: Executor,
    keep: Keep,
) -> Outcome:
    record = read_record(folder)
    study = find_study(config.study)
    stored = _stored(study, folder, record)
    if stored is not None:
        config = _agree(config, stored, folder)
    units = [Unit(trial, model) for trial in range(config.trials) for model in config.models]
    if stored is not None:
        keys = [(unit.trial, unit.model) for unit in units]
        restore_lines(folder, study.name, study.row_metrics, keys)
    missing = {unit: n for unit in units if (n := _epochs(folder, unit, watch)) < config.epochs}
    moved = [] if stored is None else _moved(config, stored)
    if not missing and not moved:
        _gather(config, folder, units)  # a run killed after its last unit has not
        return Outcome(folder, True, ())
    check_fits(study, config)
    inputs = study.prepare(config, jobs, watch.preparing)
    training, validation = study.open(config, inputs).sides(0)
    _check_images(folder, record, inputs, moved)
    if missing and not mix_versions:
        _check_versions(folder, units, code_version(config.study))
    _write_config(config, folder)
    add_record(folder, config, inputs, jobs)
    if "images" in inputs.folders:  # a user's own study may have none
        write_samples(folder, open_stored(inputs.folders["images"]))
    if not missing:
        _gather(config, folder, units)
        return Outcome(folder, True, ())
    if stored is not None and record.identity is None:
        watch.notice("record.json is missing: whether the images are the same is not known.")
    watch.begin(config, inputs, len(units), missing)
    watch.sides(len(training), len(validation))
    failures = []
    task = Task(config, inputs, folder, code_version(config.study), keep)
    for event in execute(list(missing), jobs, task):
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


def _epochs(folder: Path, unit: Unit, watch: Watcher) -> int:
    """How many epochs of the unit are there."""
    found = _files(folder, unit).read()
    if found.damage is not None:
        watch.notice(
            f"{found.damage}. What is lost comes from its checkpoint, or is trained again."
        )
    return len(found.rows)


def _gather(config: RunConfig, folder: Path, units: list[Unit]) -> None:
    _write_config(config, folder)
    results = gather(
        folder, find_study(config.study).name, [(unit.trial, unit.model) for unit in units]
    )
    if results is not None:
        write_results(folder, results)


def _write_config(config: RunConfig, folder: Path) -> None:
    """Write it unless it is there; a report needs it as well."""
    path, content = folder / "config.toml", config.as_toml()
    if not (path.exists() and path.read_bytes() == content):
        write_whole(path, content)


# What is there, and what is asked for


def _stored(study: Study[Any], folder: Path, record: Record) -> RunConfig | None:
    """The settings that the run in this folder was started with, None where there is no run.

    They are in the record as well as in ``config.toml``, which people edit and remove.
    """
    if record.settings is not None:
        return _as_of(study, record.settings, folder / "record.json", folder)
    path = folder / "config.toml"
    if path.exists():
        return _as_of(study, read_toml(path), path, folder)
    if any((folder / "trials").glob("*/*.jsonl")):
        raise StudyError(
            f"{folder} holds networks, but neither config.toml nor record.json, so that nothing "
            "says what they were trained with. Choose another `out`, or remove the folder."
        )
    return None


def _as_of(study: Study[Any], settings: Mapping[str, Any], file: Path, folder: Path) -> RunConfig:
    """The settings as this study's, which they must be; a user's file may have moved since."""
    was = settings.get("study")
    if was != study.reference and not _moved_file(was, study.reference):
        _refuse(folder, "study", was, study.reference)
    config: RunConfig = checked(study, {**settings, "study": study.reference}, file)
    return config


def _moved_file(was: Any, now: str) -> bool:
    """Whether both are files of one name; their content is compared with the code's version."""
    then, here = (parse_reference(str(text)) for text in (was, now))
    if then is None or here is None or then.file is None or here.file is None:
        return False
    return (then.file.name, then.name) == (here.file.name, here.name)


def _agree(config: RunConfig, stored: RunConfig, folder: Path) -> RunConfig:
    """The configuration that fits both the folder and what is asked for now."""
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
    """Images and weights whose path has changed: the setting, the path then, the path now."""
    was, asked = stored.as_settings(), config.as_settings()
    return [(n, was[n], asked[n]) for n in MOVABLE if n in was and was[n] != asked[n]]


def _check_images(
    folder: Path, record: Record, inputs: RunInputs, moved: list[tuple[str, str, str]]
) -> None:
    """Images and weights must be, by content, those that the run was started with."""
    if record.identity is None:
        for name, was, asked in moved:  # nothing but the place is known
            _refuse(folder, name, was, asked)
    elif record.identity != inputs.identity():
        where = "".join(f" ({name} = {was!r}, not {asked!r})" for name, was, asked in moved)
        raise StudyError(
            f"{folder} was started with other images or weights than those that are there now"
            f"{where}. Choose another `out`."
        )


def _check_versions(folder: Path, units: list[Unit], code: str) -> None:
    """What is there must have been trained by this version of the code."""
    codes = {row.get("code", "unknown") for unit in units for row in _files(folder, unit).rows()}
    if others := sorted(codes - {code}):
        raise StudyError(
            f"{folder} was trained with other code ({'; '.join(others)}) than what is here now "
            f"({code}), and one table would compare the two. Choose another `out`, use the code "
            "of that version, or add `mix_versions`: the table will say so."
        )


def _refuse(folder: Path, name: str, was: Any, asked: Any) -> NoReturn:
    raise StudyError(
        f"{folder} was started with {name} = {was!r}, not {asked!r}. Choose another `out`, or ask "
        "for the same."
    )


@contextmanager
def _only_one(folder: Path) -> Iterator[None]:
    """Holds the folder's lock; a second run gets an error that says which process has it."""
    owner = folder / ".owner"
    lock = FileLock(folder / ".lock", timeout=0)
    try:
        lock.acquire()
    except Timeout:
        who = owner.read_text(errors="replace") if owner.exists() else "another process"
        raise StudyError(
            f"{folder} is in use by {who}. Wait for it, or choose another `out`."
        ) from None
    try:
        owner.write_text(f"process {os.getpid()} on {socket.gethostname()}")
        yield
    finally:
        owner.unlink(missing_ok=True)
        lock.release()
