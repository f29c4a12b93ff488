"""``tpl report``: the page, the figures and the table of a run."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from cyclopts import Parameter


def report(
    *folders: Annotated[Path, Parameter(help="The folders of runs, finished or not.")],
    out: Annotated[
        Path | None,
        Parameter(
            help="Where page, figures and table go. Default: the first run's folder, or one in it "
            "named after --models and --metrics."
        ),
    ] = None,
    models: Annotated[
        str | None,
        Parameter(help="Only these networks, in this order, such as base,tpl1. Default: all."),
    ] = None,
    metrics: Annotated[
        str | None,
        Parameter(help="Only these metrics, in this order, such as loss,auc. Default: all."),
    ] = None,
    study: Annotated[
        str | None,
        Parameter(help="Your own study's file, for its titles. This runs its code."),
    ] = None,
) -> None:
    """Write a run's page, report.html, which is one file; its figures, and its table.

    Several runs of one study are compared in one page: sizes, channels, compressions, inits. Only
    the runs' files are read: a study's code is run if you name it.
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
    # First: a damaged one must not leave half a report.
    runs = read_runs(folders, chosen, shown, own)
    console = Console(highlight=False)
    where = folders[0] / "_".join([*(chosen or ()), *(shown or ())]) if out is None else out
    if len(runs) == 1:
        console.print(tables.render(runs[0]))
        try:
            if runs[0].held_out is None:  # of one epoch there are no curves
                charts.write(runs[0], where / "figures")
                console.print(f"Figures: {where / 'figures'}", soft_wrap=True, markup=False)
            files = ", ".join(map(str, tables.write(runs[0], where)))
        except OSError as error:
            at = error.filename or where
            raise StudyError(f"Could not write {at}: {error.strerror or error}.") from None
        console.print(f"Table: {files}", soft_wrap=True, markup=False)
    console.print(f"Page: {page.write(runs, where)}", soft_wrap=True, markup=False)
