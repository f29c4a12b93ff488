"""``tpl evaluate``: a run's networks on other images."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from .settings import OwnStudy, own_study


def evaluate(
    folder: Annotated[Path, Parameter(help="The folder of a run.")],
    /,
    *,
    data: Annotated[Path, Parameter(help="Images, as tpl run takes them: a folder, .npz, …")],
    out: Annotated[
        Path | None,
        Parameter(help="The results' folder; evaluated-NAME in the run's folder by default."),
    ] = None,
    study: OwnStudy = None,
) -> None:
    """Measure all saved networks on other images, paired by trial: a table and a page.

    Images that are among the run's own are counted: results on them are not held-out results.
    """
    from ..studies.trained import evaluate as measure
    from .report import report

    where = folder / f"evaluated-{data.stem}" if out is None else out
    notices = measure(folder, data.resolve(), where, own_study(study))
    report(where)
    for notice in notices:
        print(f"Note: {notice}")
