"""What a run leaves on disk, and reading it back; torch is not needed for it.

A folder of a run::

    config.toml              every setting
    record.json              versions, machine, where the images came from; once for each start
    results.parquet          one row for each model, trial and epoch
    trials/001/tpl1.jsonl    the epochs of one model in one trial, a line for each, with a hash
    trials/001/tpl1.pt       its checkpoint after the last of them
    trials/001/tpl1.safetensors     the network that is kept of it
    trials/001/tpl1.observed.npz    what was observed meanwhile, for the page
    samples.npz              a few of the images, for the page
    report.html, figures/, table.md     what ``tpl report`` makes of the results

Note [Rows and checkpoint]: a checkpoint holds the rows as well, and is written first. So a kill
between the two loses nothing: the lines are written again from the checkpoint. A damaged file of
lines is restored in the same way; where the checkpoint is damaged, training starts again.

Note [The table is enough]: of a run that is archived, ``config.toml``, ``record.json`` and
``results.parquet`` say all that was measured. Where neither lines nor checkpoints are there, the
lines are written again from the table, so that more trials or networks can be added, and the table
is not replaced by a smaller one. A mark stands in the folder meanwhile, so that who is killed
begins again.
"""

from __future__ import annotations

import io
import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import polars as pl
from polars.exceptions import PanicException, PolarsError

from .errors import StudyError
from .files import write_whole
from .sealed import sealed, unsealed

RESULTS = "results.parquet"
HELD_OUT = "held_out.txt"  # from tpl evaluate: names the images that the networks never saw

# An epoch: its number, its metrics, its seconds, and the version of the code that trained it.
EpochRow = dict[str, Any]


@dataclass(frozen=True)
class UnitRows:
    """The epochs of a unit, and what is wrong with its file, if anything is."""

    rows: list[EpochRow]
    damage: str | None = None


@dataclass(frozen=True)
class UnitFiles:
    """Where one model of one trial keeps what it has."""

    lines: Path
    checkpoint: Path
    lock: Path
    network: Path
    observed: Path

    @classmethod
    def of(cls, run: Path, trial: int, model: str) -> UnitFiles:
        folder = run / "trials" / f"{trial + 1:03d}"
        kinds = ("jsonl", "pt", "lock", "safetensors", "observed.npz")
        return cls(*(folder / f"{model}.{kind}" for kind in kinds))

    def write(self, rows: Sequence[EpochRow]) -> None:
        """Keep these epochs."""
        write_whole(self.lines, b"".join(json.dumps(sealed(r)).encode() + b"\n" for r in rows))

    def read(self) -> UnitRows:
        """The epochs so far; of a damaged file, those before the damage."""
        try:
            content = self.lines.read_bytes()
        except FileNotFoundError:
            return UnitRows([])
        rows: list[EpochRow] = []
        for number, line in enumerate(content.splitlines(), start=1):
            row = _row(line)
            if row is None or row.get("epoch") != number:
                return UnitRows(rows, f"{self.lines} is damaged in line {number}")
            rows.append(row)
        if not rows or not content.endswith(b"\n"):
            return UnitRows(rows, f"{self.lines} is cut off")
        return UnitRows(rows)

    def rows(self) -> list[EpochRow]:
        """The epochs so far."""
        return self.read().rows


def _row(line: bytes) -> EpochRow | None:
    try:
        return unsealed(json.loads(line))
    except ValueError:  # neither JSON nor, perhaps, UTF-8
        return None


def gather(run: Path, study: str, units: Iterable[tuple[int, str]]) -> pl.DataFrame | None:
    """All epochs of these trials and models, tidy; None where there are none yet."""
    rows = [
        {"study": study, "model": model, "trial": trial + 1, **row}
        for trial, model in units
        for row in UnitFiles.of(run, trial, model).rows()
    ]
    return pl.DataFrame(rows, infer_schema_length=None) if rows else None


def write_results(run: Path, results: pl.DataFrame) -> None:
    """Write the table, unless it is there already."""
    path, buffer = run / RESULTS, io.BytesIO()
    results.write_parquet(buffer)
    if not (path.exists() and path.read_bytes() == buffer.getvalue()):
        write_whole(path, buffer.getvalue())


def read_table(path: Path) -> pl.DataFrame:
    """The table of that file; ``StudyError`` where it is not one."""
    try:
        return pl.read_parquet(path, glob=False)
    except OSError as error:
        raise StudyError(f"Could not read {path}: {error.strerror or error}.") from None
    except (PolarsError, PanicException) as error:  # a damaged file can make polars panic
        first = (str(error).splitlines() or ["unknown"])[0].rstrip(".")
        raise StudyError(f"Expected a whole Parquet file, got {path}: {first}.") from None


def checked_table(
    frame: pl.DataFrame, path: Path, study: str, metrics: Sequence[str]
) -> pl.DataFrame:
    """The table from there, of just the columns that count, checked.

    Args:
        frame: the table.
        path: where it is from, for errors.
        study: the name that all its rows must have.
        metrics: the columns with numbers that it must have.
    """
    columns = ("study", "model", "trial", "epoch", *metrics)
    missing = [name for name in columns if name not in frame.columns]
    if missing:
        raise StudyError(f"Expected the columns {', '.join(missing)} in {path} as well.")
    if frame.is_empty():
        raise StudyError(f"Expected at least one epoch in {path}, got none.")
    optional = [name for name in ("seconds", "code") if name in frame.columns]
    frame = frame.select(*columns, *optional)
    for name in ("trial", "epoch"):
        if not frame[name].dtype.is_integer() or frame[name].null_count():
            raise StudyError(f"Expected whole numbers in the column {name} of {path}.")
    for name in ("study", "model", *(["code"] if "code" in optional else [])):
        if frame[name].dtype != pl.String or frame[name].null_count():
            raise StudyError(f"Expected names in the column {name} of {path}.")
    numbers = (*metrics, *(["seconds"] if "seconds" in optional else []))
    for name in numbers:
        if not (frame[name].dtype.is_numeric() or frame[name].dtype == pl.Null):
            raise StudyError(f"Expected numbers in the column {name} of {path}.")
    others = frame["study"].unique().sort().to_list()
    if others != [study]:
        raise StudyError(
            f"Expected results of the {study} study alone in {path}, as its config.toml "
            f"says, got {', '.join(others)}."
        )
    twice = frame.filter(frame.select("model", "trial", "epoch").is_duplicated())
    if not twice.is_empty():
        model, trial, epoch = twice.select("model", "trial", "epoch").row(0)
        raise StudyError(
            f"Expected one row for each model, trial and epoch in {path}, "
            f"got several for {model}, trial {trial}, epoch {epoch}."
        )
    return frame.with_columns(
        pl.col("trial", "epoch").cast(pl.Int64),
        pl.col(numbers).cast(pl.Float64).fill_null(float("nan")),
    )


def restore_lines(
    run: Path, study: str, metrics: Sequence[str], units: Sequence[tuple[int, str]]
) -> None:
    """The lines of these trials and models from the table, where that is all there is.

    See Note [The table is enough]. ``StudyError`` where the table has more than these.
    """
    path, mark = run / RESULTS, run / ".restoring"
    there = any(file.suffix in (".jsonl", ".pt") for file in (run / "trials").glob("*/*"))
    if not path.is_file() or (there and not mark.exists()):
        return
    if (run / HELD_OUT).is_file():
        raise StudyError(f"{run} is an evaluation, not a run. Choose another `out`.")
    table = checked_table(read_table(path), path, study, metrics)
    for trial, model in table.select("trial", "model").unique(maintain_order=True).rows():
        if (trial - 1, model) not in units:
            raise StudyError(
                f"{path} has trial {trial} of {model}, which config.toml does not name. Ask for it "
                "as well, or choose another `out`."
            )
    mark.touch()
    for trial, model in units:
        own = table.filter(pl.col("trial") == trial + 1, pl.col("model") == model)
        if len(own):
            files = UnitFiles.of(run, trial, model)
            files.lines.parent.mkdir(parents=True, exist_ok=True)
            files.write(own.sort("epoch").drop("study", "trial", "model").to_dicts())
    mark.unlink()
