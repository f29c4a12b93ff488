"""The report of a run: figures by epoch, and a table of the last and the best epoch."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from ..errors import StudyError
from ..observed import Observed
from . import figures, projections, table
from .curves import Curves


def write(
    curves: Curves, out: Path, observed: Mapping[str, Sequence[Observed]] | None = None
) -> list[Path]:
    """Write the figures and the table of a run that has been read; returns the files.

    Of networks on held-out images there are no figures: they have one epoch each.

    Args:
        curves: the run's results.
        out: the folder.
        observed: by model, what was observed of its trials.
    """
    try:
        drawn = []
        if curves.held_out is None:
            drawn = figures.draw(curves, out / "figures")
            drawn += _draw_projections(curves, observed or {}, out / "figures" / "projections")
        return [*drawn, *table.write(curves, out)]
    except OSError as error:
        where = error.filename or out
        raise StudyError(f"Could not write {where}: {error.strerror or error}.") from None


def _draw_projections(
    curves: Curves, observed: Mapping[str, Sequence[Observed]], path: Path
) -> list[Path]:
    """The figure of what is learned; where there is nothing to draw, none of an earlier time."""
    learned = projections.learned_layers(curves, observed)
    if learned:
        return figures.save(projections.figure(curves, learned), path)
    for kind in (".png", ".svg"):
        path.with_suffix(kind).unlink(missing_ok=True)
    return []
