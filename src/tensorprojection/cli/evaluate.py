"""``tpl evaluate``: a run's networks on images that they never saw."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from cyclopts import Parameter


def evaluate(
    folder: Annotated[Path, Parameter(help="The folder of a run.")],
    /,
    *,
    data: Annotated[Path, Parameter(help="Images, as tpl run takes them: a folder, .npz, …")],
    out: Annotated[
        Path | None,
        Parameter(help="The results' folder; evaluated-NAME in the run's folder by default."),
    ] = None,
) -> None:
    """Measure all kept networks on held-out images, paired by trial: a table and a page."""
    from ..studies.kept.evaluate import evaluate as measure
    from .report import report

    where = folder / f"evaluated-{data.stem}" if out is None else out
    report(measure(folder, data.resolve(), where))
