"""``tpl watch``: follow a running or finished run, here or on a shared disk."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter
from cyclopts.validators import Number

from .terminal import table

if TYPE_CHECKING:
    from rich.console import RenderableType


def watch(
    folder: Path,
    /,
    *,
    seconds: Annotated[float, Parameter(validator=Number(gt=0))] = 5.0,
    once: Annotated[bool, Parameter(negative=())] = False,
) -> None:
    """Show how far each network of a run is, until the last has finished.

    It only reads the run's files, so it works on another machine that sees the same disk; it waits
    for a run that has not begun to train. Ctrl-C ends the watching, not the run.

    Args:
        folder: The folder of a run.
        seconds: Seconds between two looks at the folder.
        once: Look once, and end.
    """
    import time

    from rich.live import Live

    state, finished = look(folder)
    with Live(shown(folder, state), auto_refresh=False) as live:  # without a terminal: at the end
        while not (finished or once):
            time.sleep(seconds)
            state, finished = look(folder)
            live.update(shown(folder, state), refresh=True)


def look(folder: Path) -> tuple[list[dict[str, str]], bool]:
    """Return a line of the table for each network, and True if all have finished.

    This reads the folder, and nothing else: the code of a user's own study is not run.
    """
    from ..studies.report.run import metrics_in, read_settings
    from ..studies.report.tables import number
    from ..studies.results import JobFiles

    _, config, study = read_settings(folder)
    lines, finished = [], True
    for model in config.models:
        jobs = [JobFiles.of(folder, trial, model).rows() for trial in range(config.trials)]
        last = [rows[-1] for rows in jobs if rows]
        done = sum(len(rows) >= config.epochs for rows in jobs)
        epochs = sum(min(len(rows), config.epochs) for rows in jobs)
        seconds = sum(float(row.get("seconds", 0)) for rows in jobs for row in rows)
        line = {
            "network": model if study is None else study.title_of(model),
            "trials": f"{done}/{config.trials}",
            "epochs": f"{epochs}/{config.trials * config.epochs}",
            "time": str(timedelta(seconds=int(seconds))),
        }
        for metric in metrics_in(list(last[0]) if last else [], study):
            line[metric.title] = number(median([float(row[metric.name]) for row in last]))
        lines.append(line)
        finished = finished and done == config.trials
    return lines, finished


def shown(folder: Path, lines: list[dict[str, str]]) -> RenderableType:
    """Return a table of the networks, and what it shows."""
    from rich.console import Group
    from rich.text import Text

    titles = list(dict.fromkeys(title for line in lines for title in line))
    rows = [[line.get(title, "–") for title in titles] for line in lines]
    note = "medians of the trials, each at its last epoch so far, and the time of training."
    return Group(table(titles, rows), Text(f"{folder}: {note}"))
