"""The report of a run: figures by epoch, and a table of the last and the best epoch."""

from __future__ import annotations

from pathlib import Path

from ..errors import StudyError
from . import figures, table
from .curves import Curves


def write(curves: Curves, out: Path) -> list[Path]:
    """Write the figures and the table of a run that has been read; returns the files.

    Of networks on held-out images there are no figures: they have one epoch each.
    """
    try:
        drawn = figures.draw(curves, out / "figures") if curves.held_out is None else []
        return [*drawn, *table.write(curves, out)]
    except OSError as error:
        where = error.filename or out
        raise StudyError(f"Could not write {where}: {error.strerror or error}.") from None
