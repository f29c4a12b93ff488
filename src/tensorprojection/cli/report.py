"""``tpl report``: the page, the figures and the table of a run."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from .settings import Names, OwnStudy, own_study
from .terminal import table

if TYPE_CHECKING:
    from rich.console import Group, RenderableType

    from ..studies.report.run import Run


def report(
    folder: Path,
    /,
    *others: Path,
    out: Path | None = None,
    models: Names | None = None,
    metrics: Names | None = None,
    study: OwnStudy = None,
) -> None:
    """Write a run's page (report.html, one file), its figures and its tables.

    Only the run's files are read; of an own study also its titles, if you name it.

    Args:
        folder: The folder of a run, finished or not.
        others: More runs of the study, to compare: panels with a row for each run, and a page.
        out: Where page, figures and tables go. Default: the run's folder, or one in it named after
            the other runs, --models and --metrics.
        models: Only these networks, in this order, such as base,tpl1. Default: all, the best first.
        metrics: Only these metrics, in this order, such as loss,auc. Default: all.
    """
    from rich.console import Console

    from ..studies.errors import StudyError
    from ..studies.report import charts, page, tables
    from ..studies.report.run import read_run

    named = [f"with_{other.resolve().name}" for other in others]
    where = out or folder / "_".join([*named, *(models or ()), *(metrics or ())])
    own = own_study(study)
    run, *more = (read_run(one, own).only(models, metrics) for one in (folder, *others))
    for other in more:
        if other.name != run.name or run.held_out is not None or other.held_out is not None:
            raise StudyError(f"Expected runs of one study, got {folder} and {other.folder}.")
        if where.resolve() in (run.folder.resolve(), other.folder.resolve()):
            raise StudyError(f"Expected --out other than {where}, which has the page of its run.")
    if more:
        print(f"Page: {page.write_several([run, *more], where)}")
        return
    Console(highlight=False).print(render(run))
    try:
        if run.held_out is None:  # of one epoch there are no curves
            charts.write(run, where / "figures")
        written = tables.write(run, where)
    except OSError as error:
        at = error.filename or where
        raise StudyError(f"Could not write {at}: {error.strerror or error}.") from None
    if run.held_out is None:
        print(f"Figures: {where / 'figures'}")
    print(f"Table: {', '.join(map(str, written))}")
    print(f"Page: {page.write(run, where)}")


def render(run: Run) -> Group:
    """Return the tables and notes, for a rich console of 80 columns."""
    from rich.console import Group
    from rich.text import Text

    from ..studies.report.tables import headline, notes, tables

    parts: list[RenderableType] = [Text(headline(run)), Text()]
    for shown in tables(run):
        columns = [k for k, name in enumerate(shown.header) if name != "verdict"]
        lines = [[line[k] for k in columns] for line in (shown.header, *shown.rows)]
        # Ranges and intervals go below.
        rows = [[c.replace(" [", "\n[").replace(" to ", "\nto ") for c in r] for r in lines[1:]]
        title = Text(f"{run.title}: {shown.title}", "italic")
        parts += [title, table(lines[0], rows, shown.texts), Text()]
    return Group(*parts, *(Text(note) for note in notes(run)))
