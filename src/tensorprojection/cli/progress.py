"""The output of a run: a bar in a terminal, a line for each epoch elsewhere."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Self

from rich.console import Console
from rich.progress import Progress, TextColumn, TimeRemainingColumn
from rich.table import Column

from ..studies.errors import StudyError
from ..studies.inputs import Progress as Making
from ..studies.results import BY_CLASS, NOT_METRICS, TEST, EpochRow
from ..studies.training.job import Done, Epoch, Event, Job, Notice, Restarted, Step
from .terminal import inert

SPEED_SECONDS = 600.0  # over which the time left is estimated: a step may take a minute
HIDDEN = ("epoch", "train_loss", *NOT_METRICS)  # of a row that is shown on one line
SLOW = 1000  # files; reading more takes so long that a bar is shown


class Watch:
    """Shows preparation and training as they go on; used as a context."""

    def __init__(self, console: Console) -> None:
        self.console = console
        # At any width the name and the time are whole; the job takes what is left.
        whole, cut = Column(no_wrap=True), Column(no_wrap=True, overflow="ellipsis", ratio=1)
        self.bars = Progress(
            TextColumn("{task.description}", markup=False, table_column=whole),
            TimeRemainingColumn(table_column=whole),
            TextColumn("left {task.fields[info]}", markup=False, table_column=cut),
            console=console,
            disable=not console.is_terminal,
            transient=True,
            expand=True,
            speed_estimate_period=SPEED_SECONDS,
        )
        self.bar = self.bars.add_task("", total=None, visible=False, info="")
        self.rows: dict[Job, EpochRow] = {}
        self.progress: dict[Job, float] = {}  # epochs so far of the jobs that were not finished
        self.epochs = self.jobs = self.done = 0
        self.last = ""  # the job that has trained last
        self.also: Callable[[Event], None] | None = None  # called with every event as well

    def __enter__(self) -> Self:
        self.bars.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.bars.stop()

    def preparing(self, what: str, done: int, of: int) -> None:
        """Show how much of what all trials share has been prepared."""
        self._bar(f"making {what}", of, done, f"{done:,}/{of:,}")
        if done == of:
            self.bars.reset(self.bar, visible=False)
            self.notice(f"Made {what}: {of:,}, cached.")

    def begin(self, epochs: int, jobs: int, begun: Mapping[Job, int]) -> None:
        """Training starts: the number of all jobs, and the epochs so far of the unfinished."""
        self.epochs, self.jobs, self.done = epochs, jobs, jobs - len(begun)
        self.progress = {job: float(epochs) for job, epochs in begun.items()}
        if self.done or any(begun.values()):
            others = sum(begun.values())
            self.notice(f"Continuing: {self.done} of {jobs} done, {others} epochs of the others.")
        self._show_all()

    def notice(self, text: str) -> None:
        """Show something that the user should know."""
        try:
            self.console.print(inert(text), soft_wrap=True, highlight=False, markup=False)
        except OSError as error:  # no file of the run is at fault
            raise StudyError(f"Could not write to the standard output: {error.strerror}.") from None

    def show(self, event: Event) -> None:
        """Show something that has happened in training."""
        if self.also is not None:
            self.also(event)
        job = event.job
        if isinstance(event, Step):
            self.progress[job] = self.progress.get(job, 0.0) + event.share * self.epochs
            self.last = f"{job}, epoch {event.epoch}/{self.epochs}{self._metrics(job)}"
        elif isinstance(event, Epoch):
            self.rows[job], self.progress[job] = event.row, event.row["epoch"]
            if not self.console.is_terminal:
                self.notice(f"{job}, epoch {event.row['epoch']}/{self.epochs}{self._metrics(job)}")
        elif isinstance(event, Notice):
            self.notice(f"{job}: {event.text}")
        elif isinstance(event, Done):
            self.done += 1
            self.progress[job] = 0.0  # the job is counted as done
            self.notice(f"{job}, {self.epochs} epochs{self._metrics(job)}")
        elif isinstance(event, Restarted):
            self.progress[job] = self.rows.get(job, {}).get("epoch", 0)
            self.notice(f"{job}: its process ended with {event.how}; another continues.")
        else:
            self.notice(f"{job} failed: {event.why.removeprefix(f'{job}: ')}")
        self._show_all()

    def _metrics(self, job: Job) -> str:
        row = self.rows.get(job, {})
        hidden = [n for n in row if n in HIDDEN or BY_CLASS in n or n.startswith(TEST)]
        return "".join(f", {name} {row[name]:.3f}" for name in row if name not in hidden)

    def _show_all(self) -> None:
        done = self.done + sum(self.progress.values()) / self.epochs
        self._bar(f"{self.done} of {self.jobs} done", self.jobs, done, self.last)

    def _bar(self, text: str, total: float, done: float, info: str) -> None:
        self.bars.update(
            self.bar, description=text, total=total, completed=done, visible=True, info=info
        )


@contextmanager
def counting(console: Console) -> Iterator[Making]:
    """Show a bar in a terminal if there is much to count."""
    with Progress(console=console, transient=True, disable=not console.is_terminal) as bar:
        task = bar.add_task("", total=None, visible=False)

        def progress(what: str, done: int, of: int) -> None:
            bar.update(task, description=what, total=of, completed=done, visible=of >= SLOW)

        yield progress
