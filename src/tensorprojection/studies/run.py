"""A whole run: prepare, train what is not trained yet, gather."""

from __future__ import annotations

import os
import platform
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any, NoReturn, Protocol

import torch
from filelock import FileLock, Timeout

from .config import CONFIG, PATHS, Began, RunConfig, checked, code_version, read_run
from .errors import StudyError
from .executors.base import Executor, Task
from .executors.local import run_jobs
from .files import write_whole
from .inputs import RunInputs
from .network_file import Keep
from .results import (
    HELD_OUT,
    RECORD,
    JobFiles,
    add_to_table,
    append_line,
    gather,
    restore_lines,
    write_results,
)
from .study import Study
from .training.job import Done, Event, Failed, Job

# The longest time that another process may take to write the table or the settings.
LOCK_SECONDS = 60
LOCKS = ".locks"
PACKAGES = ("torch", "numpy", "monai", "polars", "pillow")


class Watcher(Protocol):
    """Receives what happens in a run, to show it to the user."""

    def preparing(self, what: str, done: int, of: int, /) -> None:
        """Show how much of what all trials share has been prepared."""

    def begin(self, epochs: int, jobs: int, begun: Mapping[Job, int]) -> None:
        """Training starts: the number of all jobs, and the epochs so far of the unfinished."""

    def notice(self, text: str) -> None:
        """Show something that the user should know."""

    def show(self, event: Event) -> None:
        """Something has happened in training."""


@dataclass(frozen=True)
class Outcome:
    """How a run ended."""

    folder: Path
    was_finished: bool
    failures: tuple[Failed, ...]


def run(
    study: Study[Any],
    config: RunConfig,
    folder: Path,
    count: int,
    watch: Watcher,
    mix_versions: bool = False,
    execute: Executor = run_jobs,
    keep: Keep = "best",
    trial: int | None = None,
) -> Outcome:
    """Run the study in that folder; what is there already is not computed again.

    Args:
        study: the study.
        config: its settings.
        folder: an empty or new one, or that of the same run.
        count: jobs that are trained at once.
        watch: receives what happens.
        mix_versions: continue even if another version of the code began the run.
        execute: trains the networks; by default processes of this machine.
        keep: the networks to save: of the epoch with the lowest validation loss, the last, none.
        trial: the only one to train, from 1; other processes may train others at the same time.
    """
    if trial is not None and not 1 <= trial <= config.trials:
        raise StudyError(f"Expected --trial from 1 to {config.trials}, got {trial}.")
    this = _Run(study, config, folder, watch, keep, mix_versions)
    try:
        (folder / LOCKS).mkdir(parents=True, exist_ok=True)
        if (folder / HELD_OUT).is_file():
            raise StudyError(f"{folder} is an evaluation, not a run. Choose another --out.")
        this.agree()
        with _locked(folder):
            if this.began is not None:
                restore_lines(folder, study.name, this.keys)
        trials = range(this.config.trials) if trial is None else [trial - 1]
        with ExitStack() as locks:
            for number in trials:
                locks.enter_context(_locked(folder, f"trial {number + 1}"))
            return this.train(trials, count, execute)
    except MemoryError:
        raise StudyError(
            "There is not enough memory. Choose a smaller --size, or fewer --images or --jobs."
        ) from None
    except OSError as error:
        where = error.filename or folder
        raise StudyError(f"Could not read or write {where}: {error.strerror or error}.") from error


@dataclass
class _Run:
    study: Study[Any]
    config: RunConfig
    folder: Path
    watch: Watcher
    keep: Keep
    mix_versions: bool
    began: Began | None = None  # None if there is no run in the folder yet

    @property
    def jobs(self) -> list[Job]:
        """All jobs of the run, in the order of its table."""
        config = self.config
        return [Job(trial, model) for trial in range(config.trials) for model in config.models]

    @property
    def keys(self) -> list[tuple[int, str]]:
        return [(job.trial, job.model) for job in self.jobs]

    def agree(self) -> None:
        """Compare the settings with those of the run in the folder, which may be extended."""
        if not (self.folder / CONFIG).exists():
            if any((self.folder / "trials").glob("*/*.jsonl")):
                raise StudyError(
                    f"{self.folder} has results but no {CONFIG}, so their settings are not known. "
                    "Put it back, or choose another --out."
                )
            return
        settings, self.began = read_run(self.folder)
        was, now = str(settings.get("study")), self.study.reference
        if Path(was).name != Path(now).name:  # a user's file may have moved since
            self._refuse("study", was, now)
        stored = checked(self.study, {**settings, "study": now}, self.folder / CONFIG)
        then, asked = stored.as_settings(), self.config.as_settings()
        # With a schedule, all epochs depend on their number.
        may_differ = {"trials", "models"} | ({"epochs"} if stored.schedule == "constant" else set())
        if self.began.inputs:  # images and weights are compared by content
            may_differ |= set(PATHS)
        for name in sorted({*then, *asked} - may_differ):
            if then.get(name) != asked.get(name):
                self._refuse(name, then.get(name), asked.get(name))
        larger = {
            "trials": max(self.config.trials, stored.trials),
            "epochs": max(self.config.epochs, stored.epochs),
            "models": tuple(dict.fromkeys((*stored.models, *self.config.models))),
        }
        self.config = self.config.model_copy(update=larger)

    def _refuse(self, name: str, was: Any, asked: Any) -> NoReturn:
        raise StudyError(
            f"{self.folder} was started with {name} = {was!r}, not {asked!r}. Choose another "
            "--out, or ask for the same."
        )

    def train(self, trials: Sequence[int], count: int, execute: Executor) -> Outcome:
        """Train what is missing of these trials."""
        study, folder, watch = self.study, self.folder, self.watch
        asked = [job for job in self.jobs if job.trial in trials]
        missing = {job: n for job in asked if (n := self._epochs(job)) < self.config.epochs}
        if not missing:
            self._gather()  # a run that was killed after its last job has not
            return Outcome(folder, True, ())
        self._check_version()
        inputs = study.prepare(self.config, count, watch.preparing)
        training, validation, *_ = study.open(self.config, inputs).split(0)
        with _locked(folder):
            self.agree()  # another process may have begun or extended the run meanwhile
            self._check_version()
            self._begin(inputs)
        code = code_version(study)
        add_start(folder, self.config, inputs, count, code)
        watch.notice(f"Images: {inputs.source}")
        if inputs.unreadable:
            watch.notice(f"Left out as unreadable: {len(inputs.unreadable)} files, see {RECORD}")
        watch.begin(self.config.epochs, len(asked), missing)
        watch.notice(f"A trial trains on {len(training):,} and validates on {len(validation):,}.")
        task = Task(study, self.config, inputs, folder, code, self.keep)
        failures = []
        for event in execute(list(missing), count, task):
            watch.show(event)
            if isinstance(event, Done):
                with _locked(folder):
                    add_to_table(folder, study.name, (event.job.trial, event.job.model))
            if isinstance(event, Failed):
                failures.append(event)
                if event.stop:
                    break
        self._gather()
        return Outcome(folder, False, tuple(failures))

    def _epochs(self, job: Job) -> int:
        """Return the number of epochs that need not be trained again."""
        files = JobFiles.of(self.folder, job.trial, job.model)
        rows, problem = files.read()
        saves = self.began is not None and self.began.keep == self.keep != "none"
        if saves and files.checkpoint.exists() and not files.network.exists():
            self.watch.notice(f"{files.network} is missing: {job} is trained again.")
            files.checkpoint.unlink()
            files.lines.unlink(missing_ok=True)
            return 0
        if problem is not None:
            self.watch.notice(f"{problem}: what is lost is trained again.")
        return len(rows)

    def _check_version(self) -> None:
        now = code_version(self.study)
        if self.began is not None and self.began.code != now and not self.mix_versions:
            raise StudyError(
                f"{self.folder} was begun with {self.began.code}, but here is {now}, and one table "
                "would compare the two. Choose another --out, use the version that the run began "
                "with, or add --mix-versions: the table will name both."
            )

    def _begin(self, inputs: RunInputs) -> None:
        """Compare images and weights with those that the run began with; write the settings."""
        identity = inputs.identity()
        if self.began is None:
            self.began = Began(code_version(self.study), identity, self.keep)
        elif self.began.inputs and self.began.inputs != identity:
            raise StudyError(
                f"{self.folder} was started with other images or weights than those that are there "
                "now. Choose another --out."
            )
        path, content = self.folder / CONFIG, self.config.as_toml(self.began)
        if not (path.exists() and path.read_bytes() == content):
            write_whole(path, content)

    def _gather(self) -> None:
        with _locked(self.folder):
            table = gather(self.folder, self.study.name, self.keys)
            if table is not None:
                write_results(self.folder, table)


def add_start(run: Path, config: RunConfig, inputs: RunInputs, jobs: int, code: str) -> None:
    """Add a start of the run to its log, so that the run can be repeated."""
    start = {
        "started": datetime.now(UTC).isoformat(timespec="seconds"),
        "command": sys.argv,
        "settings": config.as_settings(),
        "jobs": jobs,
        "images": inputs.source,
        "unreadable": {"count": len(inputs.unreadable), "files": list(inputs.unreadable)},
        "code": code,
        "versions": {
            "python": platform.python_version(),
            **{name: version(name) for name in PACKAGES},
        },
        "machine": {
            "system": platform.platform(),
            "processor": platform.machine(),
            "cores": os.cpu_count(),
            "gpu": torch.cuda.get_device_name() if torch.cuda.is_available() else None,
        },
    }
    append_line(run / RECORD, start)


@contextmanager
def _locked(folder: Path, what: str = "table") -> Iterator[None]:
    """Hold the lock of a trial, or that of the files that all trials share while they are written.

    ``StudyError`` if another process has it.
    """
    try:
        seconds = LOCK_SECONDS if what == "table" else 0
        with FileLock(folder / LOCKS / f"{what.replace(' ', '-')}.lock", timeout=seconds):
            yield
    except Timeout:
        raise StudyError(
            f"The {what} of {folder} is in use by another process. Wait for it, or choose another "
            "--out."
        ) from None
