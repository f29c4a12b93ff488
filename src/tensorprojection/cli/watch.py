"""``tpl watch``: follow a run that is under way, here or on a shared disk."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter

if TYPE_CHECKING:
    from rich.console import RenderableType


def watch(
    folder: Annotated[Path, Parameter(help="The folder of a run that is under way.")],
    /,
    *,
    seconds: Annotated[float, Parameter(help="Seconds between two looks at the folder.")] = 5.0,
    once: Annotated[bool, Parameter(negative=(), help="Look once, and end.")] = False,
) -> None:
    """Show how far each network of a run is, until the last has finished.

    It only reads the run's files, so it works on another machine that sees the same disk; it waits
    for a run that has not begun to train. Ctrl-C ends the watching, not the run.
    """
    import time

    from rich.console import Console
    from rich.live import Live

    from ..studies.errors import StudyError

    if seconds <= 0:
        raise StudyError(f"Expected more than 0 seconds between two looks, got {seconds:g}.")
    console = Console(highlight=False)
    state = look(folder)
    if once or not console.is_terminal:
        console.print(shown(state))
        if once:
            return
    with Live(shown(state), console=console, auto_refresh=False) as live:
        while not state.finished:
            time.sleep(seconds)
            before, state = state, look(folder)
            if console.is_terminal:
                live.update(shown(state), refresh=True)
            elif state != before:
                console.print(shown(state))


@dataclass(frozen=True)
class ModelState:
    """One network over all trials: epochs, finished trials, medians at each trial's last epoch."""

    title: str
    epochs: int
    finished: int
    latest: dict[str, float]


@dataclass(frozen=True)
class RunState:
    """A run as its files show it."""

    folder: Path
    trials: int
    epochs: int
    models: tuple[ModelState, ...]
    titles: dict[str, str]  # of the metrics
    seconds: float  # of training so far, all processes together

    @property
    def finished(self) -> bool:
        return all(model.finished == self.trials for model in self.models)


def look(folder: Path) -> RunState:
    """Read the folder, and nothing else: the code of a user's own study is not run."""
    from ..studies.report.run import metrics_in, read_settings
    from ..studies.results import JobFiles

    _, config, study = read_settings(folder)
    titles: dict[str, str] = {}
    states, seconds = [], 0.0
    for model in config.models:
        jobs = [JobFiles.of(folder, trial, model).rows() for trial in range(config.trials)]
        seconds += sum(float(row.get("seconds", 0)) for rows in jobs for row in rows)
        last = [rows[-1] for rows in jobs if rows]
        metrics = metrics_in(list(last[0]) if last else [], study)
        titles |= {metric.name: metric.title for metric in metrics}
        latest = {m.name: median([float(row[m.name]) for row in last]) for m in metrics}
        epochs = sum(min(len(rows), config.epochs) for rows in jobs)
        finished = sum(len(rows) >= config.epochs for rows in jobs)
        title = model if study is None else study.models.get(model, model)
        states.append(ModelState(title, epochs, finished, latest))
    return RunState(folder, config.trials, config.epochs, tuple(states), titles, seconds)


def shown(state: RunState) -> RenderableType:
    """Return a table of the networks, and one line of all."""
    from rich import box
    from rich.console import Group
    from rich.table import Table
    from rich.text import Text

    from ..studies.report.tables import number

    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, show_edge=False)
    table.add_column("network")
    for name in ("trials", "epochs", *state.titles.values()):
        table.add_column(Text(name), justify="right")
    whole = state.trials * state.epochs
    for model in state.models:
        latest = [model.latest.get(name) for name in state.titles]
        cells = ["–" if value is None else number(value) for value in latest]
        done = f"{model.finished}/{state.trials}", f"{model.epochs}/{whole}"
        table.add_row(Text(model.title), *done, *cells)
    share = sum(model.epochs for model in state.models) / (whole * len(state.models))
    hours, rest = divmod(int(state.seconds), 3600)
    time = f"{hours}:{rest // 60:02}:{rest % 60:02} of training"
    line = f"{state.folder}: {100 * share:.0f} % of all epochs, {time}"
    if state.finished:
        line += "; finished"
    return Group(table, Text(line), Text("Medians of the trials, each at its last epoch so far."))
