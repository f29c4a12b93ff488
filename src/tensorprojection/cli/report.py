"""``tpl report``: the figures and the table of a run."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from cyclopts import Parameter


def report(
    folder: Annotated[Path, Parameter(help="The folder of a run, finished or not.")],
    /,
    *,
    out: Annotated[
        Path | None,
        Parameter(help="Where figures and table go. Default: the run's folder."),
    ] = None,
    epoch: Annotated[
        int | None, Parameter(help="As if the run had ended with this epoch. Default: its last.")
    ] = None,
) -> None:
    """Figures of every metric by epoch, and a table of the last and the best epoch."""
    from rich.console import Console

    from ..studies.report.curves import read
    from ..studies.report.table import render
    from ..studies.report.write import write

    curves = read(folder) if epoch is None else read(folder).until(epoch)
    console = Console(highlight=False)
    console.print(render(curves))
    own = folder if epoch is None else folder / f"epoch-{epoch}"
    where = own if out is None else out
    write(curves, where)
    console.print(f"Figures: {where / 'figures'}", soft_wrap=True, markup=False)
    console.print(
        f"Table: {where / 'table.md'}, {where / 'table.csv'}", soft_wrap=True, markup=False
    )
