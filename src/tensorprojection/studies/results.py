"""What a run leaves on disk, and reading it back.

A folder of a run::

    config.toml              every setting
    record.json              versions, machine, where the images came from; once for each start
    results.parquet          one row a model, trial and epoch
    trials/001/tpl1.json     the epochs of one model in one trial, once it has finished
    trials/001/tpl1.pt       until then: its checkpoint
    figures/, table.md       what ``tpl report`` makes of the results
"""

from __future__ import annotations

import io
import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import polars as pl

from .checkpoint import Row, load
from .files import write_whole

RESULTS = "results.parquet"


@dataclass(frozen=True)
class UnitFiles:
    """Where one model of one trial keeps what it has."""

    finished: Path
    checkpoint: Path
    lock: Path

    @classmethod
    def of(cls, run: Path, trial: int, model: str) -> UnitFiles:
        folder = run / "trials" / f"{trial + 1:03d}"
        return cls(folder / f"{model}.json", folder / f"{model}.pt", folder / f"{model}.lock")

    def finish(self, rows: Sequence[Row]) -> None:
        """Keep the epochs, and let go of the checkpoint."""
        write_whole(self.finished, json.dumps({"epochs": rows}, indent=1).encode())
        self.checkpoint.unlink(missing_ok=True)

    def rows(self) -> list[Row]:
        """The epochs so far, finished or not."""
        # In this order: whoever finishes meanwhile has written the one before removing the other.
        kept = None if self.finished.exists() else load(self.checkpoint)
        if kept is not None:
            return kept.rows
        if not self.finished.exists():
            return []
        rows: list[Row] = json.loads(self.finished.read_bytes())["epochs"]
        return rows


def gather(run: Path, study: str, units: Iterable[tuple[int, str]]) -> pl.DataFrame | None:
    """All epochs of these trials and models, tidy; None where there are none yet."""
    rows = [
        {"study": study, "model": model, "trial": trial + 1, **row}
        for trial, model in units
        for row in UnitFiles.of(run, trial, model).rows()
    ]
    return pl.DataFrame(rows) if rows else None


def write_results(run: Path, results: pl.DataFrame) -> None:
    """Write the table, unless it is there already."""
    path, buffer = run / RESULTS, io.BytesIO()
    results.write_parquet(buffer)
    if not (path.exists() and path.read_bytes() == buffer.getvalue()):
        write_whole(path, buffer.getvalue())
