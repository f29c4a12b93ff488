"""How far a run is, by its files alone."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from statistics import median

from rich import box
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from ..errors import StudyError
from ..record import check_begun, read_record
from ..registry import config_of, find_study, read_config
from ..results import UnitFiles
from .page.numbers import shown as number


@dataclass(frozen=True)
class ModelState:
    """One network over all trials: epochs, finished trials, medians at each trial's last epoch."""

    title: str
    epochs: int
    finished: int
    latest: dict[str, float]


@dataclass(frozen=True)
class RunState:
    """A run as its files show it; the display is updated where this changes."""

    folder: Path
    study: str
    trials: int
    epochs: int
    models: tuple[ModelState, ...]
    seconds: float  # of training so far, all processes together

    @property
    def done(self) -> int:
        return sum(model.epochs for model in self.models)

    @property
    def finished(self) -> bool:
        return all(model.finished == self.trials for model in self.models)


def look(folder: Path) -> RunState:
    """Read the folder; ``StudyError`` where it is not a run's."""
    if not folder.is_dir():
        raise StudyError(f"Expected the folder of a run, got {folder}: there is no such folder.")
    check_begun(folder)
    path = folder / "config.toml"
    recorded = None if path.exists() else read_record(folder).settings
    config = read_config(path) if recorded is None else config_of(recorded, path)
    study = find_study(config.study)
    states, seconds = [], 0.0
    for model in config.models:
        units = [UnitFiles.of(folder, trial, model).rows() for trial in range(config.trials)]
        seconds += sum(float(row.get("seconds", 0)) for rows in units for row in rows)
        last = [rows[-1] for rows in units if rows]
        latest = {
            metric.name: median([float(row[metric.name]) for row in last])
            for metric in study.measured
            if last
        }
        epochs = sum(min(len(rows), config.epochs) for rows in units)
        finished = sum(len(rows) >= config.epochs for rows in units)
        states.append(ModelState(study.models.get(model, model), epochs, finished, latest))
    return RunState(folder, config.study, config.trials, config.epochs, tuple(states), seconds)


def shown(state: RunState) -> RenderableType:
    """A table of the networks, and one line of all."""
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, show_edge=False)
    table.add_column("network")
    for name in ("trials", "epochs"):
        table.add_column(name, justify="right")
    metrics = find_study(state.study).measured
    for metric in metrics:
        table.add_column(Text(metric.title), justify="right")
    whole = state.trials * state.epochs
    for model in state.models:
        latest = [model.latest.get(metric.name) for metric in metrics]
        cells = ["–" if value is None else number(value) for value in latest]
        done = f"{model.finished}/{state.trials}", f"{model.epochs}/{whole}"
        table.add_row(Text(model.title), *done, *cells)
    share = state.done / (whole * len(state.models))
    hours, rest = divmod(int(state.seconds), 3600)
    time = f"{hours}:{rest // 60:02}:{rest % 60:02} of training"
    line = f"{state.folder}: {100 * share:.0f} % of all epochs, {time}"
    if state.finished:
        line += "; finished"
    return Group(table, Text(line), Text("Medians of the trials, each at its last epoch so far."))
