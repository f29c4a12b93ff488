"""A whole run: prepare, train what is not trained yet, gather."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn, Protocol

from filelock import FileLock, Timeout

from .code_version import code_version
from .config import CONFIG, MOVABLE, Began, RunConfig, checked, read_run
from .data.stored import open_stored
from .errors import StudyError
from .executors.base import Executor, Task
from .executors.local import run_jobs
from .files import write_whole
from .inputs import RunInputs
from .network_file import Keep
from .record import add_start
from .reference import parse_reference
from .results import HELD_OUT, JobFiles, add_to_table, restore_lines
from .samples import write_samples
from .study import Study
from .training.job import Done, Event, Failed, Job

# Settings that may grow when a run is started again.
EXTENSIBLE = ("trials", "models", "epochs")
# The longest time that another process may take to write the table or the settings.
LOCK_SECONDS = 60


class Watcher(Protocol):
    """Receives what happens in a run, to show it to the user."""

    def preparing(self, what: str, done: int, of: int, /) -> None:
        """Show how much of what all trials share has been prepared."""

    def begin(
        self, config: RunConfig, inputs: RunInputs, jobs: int, begun: Mapping[Job, int]
    ) -> None:
        """Training starts: the number of all jobs, and the epochs so far of the unfinished."""

    def split(self, training: int, validation: int) -> None:
        """Show how many samples train and how many validate, copies included."""

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
        study: what is run.
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
        raise StudyError(f"Expected `trial` from 1 to {config.trials}, got {trial}.")
    this = _Run(study, config, folder, watch, keep, mix_versions)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        if (folder / HELD_OUT).is_file():
            raise StudyError(f"{folder} is an evaluation, not a run. Choose another `out`.")
        this.agree()
        this.restore()
        trials = range(this.config.trials) if trial is None else [trial - 1]
        with _trials_locked(folder, trials):
            return this.train(list(trials), count, execute)
    except MemoryError:
        raise StudyError(
            "There is not enough memory. Choose a smaller `size`, or fewer `images` or `jobs`."
        ) from None
    except OSError as error:
        where = error.filename or folder
        raise StudyError(f"Could not read or write {where}: {error.strerror or error}.") from error


class _Run:
    def __init__(
        self,
        study: Study[Any],
        config: RunConfig,
        folder: Path,
        watch: Watcher,
        keep: Keep,
        mix_versions: bool,
    ) -> None:
        self.study, self.config, self.folder, self.watch = study, config, folder, watch
        self.keep, self.mix_versions = keep, mix_versions
        self.began: Began | None = None  # None if there is no run in the folder yet
        self.moved: list[tuple[str, Any, Any]] = []  # paths: the setting, then, now

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
                    f"{self.folder} has results but no {CONFIG}, so that their settings are not "
                    "known. Put it back, or choose another `out`."
                )
            return
        settings, self.began = read_run(self.folder)
        stored = self._stored(settings)
        was, asked = stored.as_settings(), self.config.as_settings()
        fixed = [n for n in sorted({*was, *asked}) if n not in (*EXTENSIBLE, *MOVABLE)]
        if stored.schedule != "constant":
            fixed.append("epochs")  # all epochs depend on their number
        for name in fixed:
            if was.get(name) != asked.get(name):
                self._refuse(name, was.get(name), asked.get(name))
        self.moved = [(n, was[n], asked[n]) for n in MOVABLE if n in was and was[n] != asked[n]]
        more = [model for model in self.config.models if model not in stored.models]
        larger = {
            "trials": max(self.config.trials, stored.trials),
            "epochs": max(self.config.epochs, stored.epochs),
            "models": (*stored.models, *more),
        }
        self.config = self.config.model_copy(update=larger)

    def restore(self) -> None:
        """Write the lines of an archive."""
        if self.began is not None:
            with _locked(self.folder):
                restore_lines(self.folder, self.study.name, self.study.row_metrics, self.keys)

    def _stored(self, settings: Mapping[str, Any]) -> RunConfig:
        """Return the stored settings as this study's; a user's file may have moved since."""
        was, now = settings.get("study"), self.study.reference
        if was != now and not _same_file_name(str(was), now):
            self._refuse("study", was, now)
        stored: RunConfig = checked(self.study, {**settings, "study": now}, self.folder / CONFIG)
        return stored

    def _refuse(self, name: str, was: Any, asked: Any) -> NoReturn:
        raise StudyError(
            f"{self.folder} was started with {name} = {was!r}, not {asked!r}. Choose another "
            "`out`, or ask for the same."
        )

    def train(self, trials: list[int], count: int, execute: Executor) -> Outcome:
        """Train what is missing of these trials."""
        study, folder, watch = self.study, self.folder, self.watch
        asked = [job for job in self.jobs if job.trial in trials]
        missing = {job: n for job in asked if (n := self._epochs(job)) < self.config.epochs}
        if not missing and not self.moved:
            self._gather(set(range(len(self.jobs))))  # a run killed after its last job has not
            return Outcome(folder, True, ())
        if missing:
            self._check_version()
        inputs = study.prepare(self.config, count, watch.preparing)
        training, validation = study.open(self.config, inputs).split(0)
        with _locked(folder):
            self.agree()  # another process may have begun or extended the run meanwhile
            if missing:
                self._check_version()
            self._begin(inputs)
        code = code_version(study)
        add_start(folder, self.config, inputs, count, code)
        if "images" in inputs.folders:  # a user's own study may have none
            write_samples(folder, open_stored(inputs.folders["images"]))
        failures = []
        if missing:
            watch.begin(self.config, inputs, len(asked), missing)
            watch.split(len(training), len(validation))
            task = Task(study, self.config, inputs, folder, code, self.keep)
            for event in execute(list(missing), count, task):
                watch.show(event)
                if isinstance(event, Done):
                    self._gather({self.jobs.index(event.job)})
                if isinstance(event, Failed):
                    failures.append(event)
                    if event.stop:
                        break
        self._gather({k for k, job in enumerate(self.jobs) if job.trial in trials})
        return Outcome(folder, not missing, tuple(failures))

    def _epochs(self, job: Job) -> int:
        """Return the number of epochs that need not be trained again."""
        files = JobFiles.of(self.folder, job.trial, job.model)
        rows, problem = files.read()
        lost = self.began is not None and self.began.keep == self.keep != "none"
        if lost and files.checkpoint.exists() and not files.network.exists():
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
                "would compare the two. Choose another `out`, use what the run began with, or add "
                "`mix_versions`: the table will say so."
            )

    def _begin(self, inputs: RunInputs) -> None:
        """Compare images and weights with those that the run began with; write the settings."""
        identity, path = inputs.identity(), self.folder / CONFIG
        if self.began is None:
            self.began = Began(code_version(self.study), identity, self.keep)
        elif not self.began.inputs:
            for name, was, asked in self.moved:  # nothing but the place is known
                self._refuse(name, was, asked)
            if identity:
                self.watch.notice("Whether the images are those of the run's start is not known.")
        elif self.began.inputs != identity:
            where = "".join(f" ({name} = {was!r}, not {now!r})" for name, was, now in self.moved)
            raise StudyError(
                f"{self.folder} was started with other images or weights than those that are there "
                f"now{where}. Choose another `out`."
            )
        content = self.config.as_toml(self.began)
        if not (path.exists() and path.read_bytes() == content):
            write_whole(path, content)

    def _gather(self, done: set[int]) -> None:
        with _locked(self.folder):
            add_to_table(self.folder, self.study.name, self.keys, done)


def _same_file_name(was: str, now: str) -> bool:
    """Return True if both are files of one name; their content is part of the code's version."""
    then, here = parse_reference(was), parse_reference(now)
    if then is None or here is None or then.file is None or here.file is None:
        return False
    return (then.file.name, then.name) == (here.file.name, here.name)


# Locks: one for each trial, and one for the files that all trials share


@contextmanager
def _trials_locked(folder: Path, trials: list[int] | range) -> Iterator[None]:
    """Hold the locks of these trials; ``StudyError`` names the process that has one of them."""
    locks = folder / ".locks"
    locks.mkdir(exist_ok=True)
    with ExitStack() as held:
        for trial in trials:
            owner = locks / f"{trial + 1:03d}.owner"
            try:
                held.enter_context(FileLock(locks / f"{trial + 1:03d}.lock", timeout=0))
            except Timeout:
                who = owner.read_text(errors="replace") if owner.exists() else "another process"
                raise StudyError(
                    f"Trial {trial + 1} of {folder} is in use by {who}. Wait for it, or choose "
                    "another `out`."
                ) from None
            owner.write_text(f"process {os.getpid()} on {socket.gethostname()}")
            held.callback(owner.unlink, missing_ok=True)
        yield


@contextmanager
def _locked(folder: Path) -> Iterator[None]:
    """Hold the lock of the settings and the table, for as long as it takes to write them."""
    (folder / ".locks").mkdir(exist_ok=True)
    try:
        with FileLock(folder / ".locks" / "table.lock", timeout=LOCK_SECONDS):
            yield
    except Timeout:
        raise StudyError(
            f"Another process has held the lock of {folder} for {LOCK_SECONDS} s. See to it that "
            "it ends, and run the same command again."
        ) from None
