"""What a user sees of a run: bars in a terminal, a line for each epoch elsewhere."""

from __future__ import annotations

import time
from collections import defaultdict, deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Self

from rich.console import Console
from rich.progress import Progress, Task, TaskID
from rich.progress_bar import ProgressBar
from rich.table import Column, Table
from rich.text import Text

from ..studies.config import RunConfig
from ..studies.inputs import Progress as Making
from ..studies.inputs import RunInputs
from ..studies.results import NOT_METRICS, EpochRow
from ..studies.training.job import Done, Epoch, Event, Failed, Job, Notice, Restarted, Step

WINDOW = 10.0  # seconds over which the throughput is measured
SPEED_SECONDS = 600.0  # over which the time left is estimated: a step may take a minute
HIDDEN = ("epoch", "train_loss", *NOT_METRICS)  # of a row, where it is shown on one line
SLOW = 1000  # files; reading more takes so long that a bar is shown
WIDE = 100  # columns of a terminal that has room for bars


class Watch:
    """Shows preparation and training as they go on; used as a context."""

    def __init__(self, console: Console) -> None:
        self.console = console
        self.live = console.is_terminal
        self.bars = _Bars(console, disable=not self.live)
        self.tasks: dict[str, TaskID] = {}
        self.throughput = _Throughput()
        self.last: dict[Job, EpochRow] = {}
        self.begun: Mapping[Job, int] = {}
        self.unkept: defaultdict[Job, float] = defaultdict(float)  # shares of the epoch under way
        self.epochs = 0
        self.jobs = self.done = 0
        self.also: Callable[[Event], None] | None = None  # called with every event as well

    def __enter__(self) -> Self:
        self.bars.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.bars.stop()

    def preparing(self, what: str, done: int, of: int) -> None:
        """How much of what all trials share has been made, out of how much."""
        task = self._task(what, of, f"making {what}")
        self.bars.update(task, completed=done, info=f"{done:,}/{of:,}")
        if done == of:
            self._end(what)
            self._line(f"Made {what}: {of:,}, kept for next time.")

    def begin(
        self, config: RunConfig, inputs: RunInputs, jobs: int, begun: Mapping[Job, int]
    ) -> None:
        """Training starts: how many jobs in all, and the epochs so far of those not finished."""
        self._line(f"Images: {inputs.source}")
        if inputs.unreadable:
            self._line(f"Left out as unreadable: {len(inputs.unreadable)} files, see record.jsonl")
        self.epochs, self.jobs, self.done = config.epochs, jobs, jobs - len(begun)
        self.begun = begun
        started = sum(begun.values())
        if self.done or started:
            self._line(f"Continuing: {self.done} of {jobs} done, {started} epochs of the others.")
        all_of_it = self._task("all", jobs, self._count())
        self.bars.update(all_of_it, completed=self.done + started / config.epochs)

    def split(self, training: int, validation: int) -> None:
        """How many samples train and how many validate, copies included."""
        self._line(f"A trial trains on {training:,} and validates on {validation:,}.")

    def notice(self, text: str) -> None:
        """Something that the user should know, whatever else goes on."""
        self._line(text)

    def show(self, event: Event) -> None:
        """Something has happened in training."""
        if self.also is not None:
            self.also(event)
        if isinstance(event, Step):
            self.throughput.add(event.images)
            self.bars.advance(self.tasks["all"], event.share)
            self.unkept[event.job] += event.share
            self.bars.update(self.tasks["all"], info=f"{self.throughput.rate():.0f} images/s")
            task = self._job(event.job)
            info = f"epoch {event.epoch}/{self.epochs}{self._metrics(event.job)}"
            self.bars.advance(task, event.share * self.epochs)
            self.bars.update(task, info=info)
        elif isinstance(event, Epoch):
            self.last[event.job] = event.row
            self.unkept[event.job] = 0.0
            self.bars.update(self._job(event.job), completed=event.row["epoch"])
            if not self.live:
                of = f"epoch {event.row['epoch']}/{self.epochs}"
                self._line(f"{event.job}, {of}{self._metrics(event.job)}")
        elif isinstance(event, Notice):
            self.notice(f"{event.job}: {event.text}")
        elif isinstance(event, Done):
            self.done += 1
            self._end(str(event.job))
            self.bars.update(self.tasks["all"], description=self._count())
            self._line(f"{event.job}, {self.epochs} epochs{self._metrics(event.job)}")
        elif isinstance(event, Restarted):
            self._end(str(event.job))
            self.bars.advance(self.tasks["all"], -self.unkept.pop(event.job, 0.0))
            self._line(f"{event.job}: its process ended with {event.how}; another continues.")
        elif isinstance(event, Failed):
            self._end(str(event.job))
            why = event.why.removeprefix(f"{event.job}: ")  # errors of a training name it as well
            self._line(f"{event.job} failed: {why}")

    def _metrics(self, job: Job) -> str:
        row = self.last.get(job, {})
        shown = [name for name in row if name not in HIDDEN]
        return "".join(f", {name} {row[name]:.3f}" for name in shown)

    def _count(self) -> str:
        return f"{self.done} of {self.jobs} done"

    def _job(self, job: Job) -> TaskID:
        done = self.last[job]["epoch"] if job in self.last else self.begun.get(job, 0)
        return self._task(str(job), self.epochs, str(job), done)

    def _task(self, key: str, total: float, description: str, done: float = 0) -> TaskID:
        if key not in self.tasks:
            added = self.bars.add_task(description, total=total, completed=done, info="")  # type: ignore[arg-type]
            self.tasks[key] = added
        return self.tasks[key]

    def _end(self, key: str) -> None:
        if key in self.tasks:
            self.bars.remove_task(self.tasks.pop(key))

    def _line(self, text: str) -> None:
        self.console.print(text, soft_wrap=True, highlight=False, markup=False)


@contextmanager
def counting(console: Console) -> Iterator[Making]:
    """A bar for what takes long, in a terminal; nothing elsewhere, or where it is quick."""
    bar = Progress(console=console, transient=True, disable=not console.is_terminal)

    def progress(what: str, done: int, of: int) -> None:
        if of >= SLOW:
            if not bar.tasks:
                bar.add_task(what, total=of)
            bar.update(bar.tasks[0].id, completed=done)

    with bar:
        yield progress


class _Bars(Progress):
    """Names and the time left are whole at any width; bars and figures take the room they find."""

    def __init__(self, console: Console, disable: bool) -> None:
        self.shown_on = console  # rich asks for the table before it knows its own
        super().__init__(
            console=console,
            disable=disable,
            transient=True,
            speed_estimate_period=SPEED_SECONDS,
            get_time=lambda: time.monotonic(),
        )

    def make_tasks_table(self, tasks: Iterable[Task]) -> Table:
        whole = Column(no_wrap=True), Column(no_wrap=True)
        cut = Column(no_wrap=True, overflow="ellipsis", ratio=1)
        wide = self.shown_on.width >= WIDE
        table = Table.grid(*whole, *([Column(width=16)] if wide else []), cut, expand=True)
        table.padding = (0, 1)
        for task in tasks:
            if task.visible:
                cells = [Text(task.description), Text(_left(task))]
                bar = ProgressBar(total=task.total, completed=task.completed, width=16)
                table.add_row(*cells, *([bar] if wide else []), Text(task.fields["info"]))
        return table


def _left(task: Task) -> str:
    """The time that the task will still take, by its speed so far."""
    if task.time_remaining is None:
        return "-:--:-- left"
    minutes, seconds = divmod(int(task.time_remaining), 60)
    return f"{minutes // 60}:{minutes % 60:02}:{seconds:02} left"


class _Throughput:
    """Images per second, over the last seconds."""

    def __init__(self) -> None:
        self.seen: deque[tuple[float, int]] = deque()

    def add(self, images: int) -> None:
        now = time.monotonic()
        self.seen.append((now, images))
        while self.seen[0][0] < now - WINDOW:
            self.seen.popleft()

    def rate(self) -> float:
        first, last = self.seen[0][0], self.seen[-1][0]
        later = sum(images for _, images in self.seen) - self.seen[0][1]
        return later / (last - first) if last > first else 0.0
