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
            "named after `epoch` and `models`."
        ),
    ] = None,
    epoch: Annotated[
        int | None, Parameter(help="As if the run had ended with this epoch. Default: its last.")
    ] = None,
    models: Annotated[
        str | None,
        Parameter(help="Only these networks, with commas, such as base,tpl1. Default: all."),
    ] = None,
) -> None:
    """Write a run's page, which can be sent on as one file, report.html; its figures, and a table.

    Several runs of one study are compared in one page: sizes, channels, compressions, starts.
    """
    from rich.console import Console

    from ..studies.errors import StudyError
    from ..studies.report import page
    from ..studies.report.page.runs import read_runs
    from ..studies.report.table import render
    from ..studies.report.write import write
    from .settings import names_in

    if not folders:
        raise StudyError("Expected the folder of a run, got none.")
    chosen = None if models is None else names_in(models)
    # First: a damaged one must not leave half a report.
    runs = read_runs(folders, epoch, chosen)
    console = Console(highlight=False)
    part = [] if epoch is None else [f"epoch-{epoch}"]
    own = folders[0] / "_".join([*part, *(chosen or ())])
    where = own if out is None else out
    if len(folders) == 1:
        curves = runs[0].curves
        console.print(render(curves))
        write(curves, where, runs[0].observed)
        if curves.held_out is None:
            console.print(f"Figures: {where / 'figures'}", soft_wrap=True, markup=False)
        console.print(
            f"Table: {where / 'table.md'}, {where / 'table.csv'}", soft_wrap=True, markup=False
        )
    made = page.write_runs(runs, where)
    console.print(f"Page: {made}", soft_wrap=True, markup=False)
