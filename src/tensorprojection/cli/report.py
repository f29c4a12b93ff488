"""``tpl report``: the page, the figures and the table of a run."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from .terminal import table

if TYPE_CHECKING:
    from rich.console import Group, RenderableType

    from ..studies.report.run import Run


def report(
    *folders: Path,
    out: Path | None = None,
    models: str | None = None,
    metrics: str | None = None,
    study: str | None = None,
) -> None:
    """Write a run's page (report.html, one file), its figures and its tables.

    Several runs of one study are compared in one page and one figure: sizes, channels,
    compressions, inits. Only the runs' files are read: a study's code is run if you name it.

    Args:
        folders: The folders of runs, finished or not.
        out: Where page, figures and tables go. Default: the run's folder, or one in it named after
            the other runs, --models and --metrics.
        models: Only these networks, in this order, such as base,tpl1. Default: all.
        metrics: Only these metrics, in this order, such as loss,auc. Default: all.
        study: Your own study's file, for its titles. This runs its code.
    """
    from rich.console import Console

    from ..studies.errors import StudyError
    from ..studies.registry import import_study
    from ..studies.report import charts, page, tables
    from ..studies.report.run import read_runs
    from .settings import names_in

    if not folders:
        raise StudyError("Expected the folder of a run, got none.")
    chosen = None if models is None else names_in(models)
    shown = None if metrics is None else names_in(metrics)
    own = None if study is None else import_study(study)
    others = [f"with_{folder.resolve().name}" for folder in folders[1:]]
    where = out or folders[0] / "_".join([*others, *(chosen or ()), *(shown or ())])
    if others and where.resolve() in [folder.resolve() for folder in folders]:
        raise StudyError(f"Expected --out other than {where}, which has the page of its own run.")
    # First: a damaged one must not leave half a report.
    runs = read_runs(folders, chosen, shown, own)
    console = Console(highlight=False, soft_wrap=True, markup=False)
    if not others:
        Console(highlight=False).print(render(runs[0]))
    try:
        if runs[0].held_out is None:  # of one epoch there are no curves
            charts.write(runs, where / "figures")
            console.print(f"Figures: {where / 'figures'}")
        if not others:
            console.print(f"Table: {', '.join(map(str, tables.write(runs[0], where)))}")
    except OSError as error:
        at = error.filename or where
        raise StudyError(f"Could not write {at}: {error.strerror or error}.") from None
    console.print(f"Page: {page.write(runs, where)}")


def render(run: Run) -> Group:
    """Return the tables and notes, for a rich console of 80 columns."""
    from rich.console import Group
    from rich.text import Text

    from ..studies.report.tables import grids, headline, notes

    parts: list[RenderableType] = [Text(headline(run)), Text()]
    for grid in grids(run):
        rows = [
            # Ranges and intervals go below.
            [*row[: grid.texts]]
            + [c.replace(" [", "\n[").replace(" to ", "\nto ") for c in row[grid.texts :]]
            for row in grid.rows
        ]
        title = Text(f"{run.title}: {grid.title}", "italic")
        parts += [title, table(grid.header, rows, grid.texts), Text()]
    return Group(*parts, *(Text(note) for note in notes(run)))
