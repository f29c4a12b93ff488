"""The report of a run: figures by epoch, and a table of the last and the best epoch."""

from __future__ import annotations

from pathlib import Path

from . import figures, table
from .curves import Curves, read
from .errors import StudyError


def report(folder: Path, out: Path | None = None) -> list[Path]:
    """Make the figures and the table of the run in that folder; returns the files.

    Args:
        folder: with the run's ``config.toml`` and ``results.parquet``.
        out: where ``figures/``, ``table.md`` and ``table.csv`` go; the run's folder unless given.
    """
    return write(read(folder), folder if out is None else out)


def write(curves: Curves, out: Path) -> list[Path]:
    """Write the figures and the table of a run that has been read; returns the files."""
    try:
        return [*figures.draw(curves, out / "figures"), *table.write(curves, out)]
    except OSError as error:
        where = error.filename or out
        raise StudyError(f"Could not write {where}: {error.strerror or error}.") from None
