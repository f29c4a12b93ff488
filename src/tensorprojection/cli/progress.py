"""The output of a run: bars in a terminal, a line for each epoch elsewhere."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Self

from rich.console import Console
from rich.progress import BarColumn, Progress, ProgressColumn, Task, TaskID, TextColumn
from rich.table import Column
from rich.text import Text

from ..studies.config import RunConfig
from ..studies.inputs import Progress as Making
from ..studies.inputs import RunInputs
from ..studies.results import BY_CLASS, NOT_METRICS, TEST, EpochRow
from ..studies.training.job import Done, Epoch, Event, Failed, Job, Notice, Restarted, Step

SPEED_SECONDS = 600.0  # over which the time left is estimated: a step may take a minute
HIDDEN = ("epoch", "train_loss", *NOT_METRICS)  # of a row that is shown on one line
SLOW = 1000  # files; reading more takes so long that a bar is shown
WIDE = 100  # columns of a terminal that has room for bars


class Watch:
    """Shows preparation and training as they go on; used as a context."""

    def __init__(self, console: Console) -> None:
        self.console = console
        self.bars = _bars(console)
        self.tasks: dict[str, TaskID] = {}
        self.images = self.bars.add_task("", total=None, visible=False, info="")
        self.rows: dict[Job, EpochRow] = {}
        self.progress: dict[Job, float] = {}  # epochs so far of the jobs that were not finished
        self.epochs = self.jobs = self.done = 0
        self.also: Callable[[Event], None] | None = None  # called with every event as well

    def __enter__(self) -> Self:
        self.bars.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.bars.stop()

    def preparing(self, what: str, done: int, of: int) -> None:
        """Show how much of what all trials share has been prepared."""
        self._bar(what, f"making {what}", of, done, f"{done:,}/{of:,}")
        if done == of:
            self._end(what)
            self._line(f"Made {what}: {of:,}, cached.")

    def begin(
        self, config: RunConfig, inputs: RunInputs, jobs: int, begun: Mapping[Job, int]
    ) -> None:
        """Training starts: the number of all jobs, and the epochs so far of the unfinished."""
        self._line(f"Images: {inputs.source}")
        if inputs.unreadable:
            self._line(f"Left out as unreadable: {len(inputs.unreadable)} files, see record.jsonl")
        self.epochs, self.jobs, self.done = config.epochs, jobs, jobs - len(begun)
        self.progress = {job: float(epochs) for job, epochs in begun.items()}
        if self.done or any(begun.values()):
            epochs = sum(begun.values())
            self._line(f"Continuing: {self.done} of {jobs} done, {epochs} epochs of the others.")
        self._show_all()

    def split(self, training: int, validation: int) -> None:
        """Show how many samples train and how many validate, copies included."""
        self._line(f"A trial trains on {training:,} and validates on {validation:,}.")

    def notice(self, text: str) -> None:
        """Show something that the user should know."""
        self._line(text)

    def show(self, event: Event) -> None:
        """Show something that has happened in training."""
        if self.also is not None:
            self.also(event)
        job, name = event.job, str(event.job)
        if isinstance(event, Step):
            self.bars.advance(self.images, event.images)
            self.progress[job] = self.progress.get(job, 0.0) + event.share * self.epochs
            info = f"epoch {event.epoch}/{self.epochs}{self._metrics(job)}"
            self._bar(name, name, self.epochs, self.progress[job], info)
        elif isinstance(event, Epoch):
            self.rows[job], self.progress[job] = event.row, event.row["epoch"]
            info = f"epoch {event.row['epoch']}/{self.epochs}{self._metrics(job)}"
            self._bar(name, name, self.epochs, self.progress[job], info)
            if not self.console.is_terminal:
                self._line(f"{job}, {info}")
        elif isinstance(event, Notice):
            self._line(f"{job}: {event.text}")
        else:
            self._end(name)
        if isinstance(event, Done):
            self.done += 1
            self.progress[job] = 0.0  # the job is counted as done
            self._line(f"{job}, {self.epochs} epochs{self._metrics(job)}")
        elif isinstance(event, Restarted):
            self.progress[job] = self.rows.get(job, {}).get("epoch", 0)
            self._line(f"{job}: its process ended with {event.how}; another continues.")
        elif isinstance(event, Failed):
            self._line(f"{job} failed: {event.why.removeprefix(f'{job}: ')}")
        self._show_all()

    def _metrics(self, job: Job) -> str:
        row = self.rows.get(job, {})
        hidden = [n for n in row if n in HIDDEN or BY_CLASS in n or n.startswith(TEST)]
        shown = [name for name in row if name not in hidden]
        return "".join(f", {name} {row[name]:.3f}" for name in shown)

    def _show_all(self) -> None:
        done = self.done + sum(self.progress.values()) / self.epochs
        speed = self.bars.tasks[0].speed
        info = f"{speed:.0f} images/s" if speed else ""
        self._bar("all", f"{self.done} of {self.jobs} done", self.jobs, done, info)

    def _bar(self, key: str, text: str, total: float, done: float, info: str) -> None:
        if key not in self.tasks:
            self.tasks[key] = self.bars.add_task(text, total=total, completed=int(done), info="")
        self.bars.update(self.tasks[key], description=text, completed=done, info=info)

    def _end(self, key: str) -> None:
        if key in self.tasks:
            self.bars.remove_task(self.tasks.pop(key))

    def _line(self, text: str) -> None:
        self.console.print(text, soft_wrap=True, highlight=False, markup=False)


def _bars(console: Console) -> Progress:
    """Return bars whose names and times are whole at any width; the numbers take what is left."""
    cut = Column(no_wrap=True, overflow="ellipsis", ratio=1)
    columns: list[ProgressColumn] = [
        TextColumn("{task.description}", markup=False, table_column=Column(no_wrap=True)),
        _TimeLeft(table_column=Column(no_wrap=True)),
        *([BarColumn(16)] if console.width >= WIDE else []),
        TextColumn("{task.fields[info]}", markup=False, table_column=cut),
    ]
    return Progress(
        *columns,
        console=console,
        disable=not console.is_terminal,
        transient=True,
        expand=True,
        speed_estimate_period=SPEED_SECONDS,
    )


class _TimeLeft(ProgressColumn):
    def render(self, task: Task) -> Text:
        if task.time_remaining is None:
            return Text("-:--:-- left")
        minutes, seconds = divmod(int(task.time_remaining), 60)
        return Text(f"{minutes // 60}:{minutes % 60:02}:{seconds:02} left")


@contextmanager
def counting(console: Console) -> Iterator[Making]:
    """Show a bar in a terminal if there is much to count."""
    bar = Progress(console=console, transient=True, disable=not console.is_terminal)

    def progress(what: str, done: int, of: int) -> None:
        if of >= SLOW:
            if not bar.tasks:
                bar.add_task(what, total=of)
            bar.update(bar.tasks[0].id, completed=done)

    with bar:
        yield progress
