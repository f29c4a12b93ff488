"""The report of a run: figures by epoch, and a table of the last and the best epoch."""

from __future__ import annotations

from pathlib import Path

from .. import figures, table
from ..curves import Curves
from ..errors import StudyError


def write(curves: Curves, out: Path) -> list[Path]:
    """Write the figures and the table of a run that has been read; returns the files."""
    try:
        return [*figures.draw(curves, out / "figures"), *table.write(curves, out)]
    except OSError as error:
        where = error.filename or out
        raise StudyError(f"Could not write {where}: {error.strerror or error}.") from None
