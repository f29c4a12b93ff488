"""The files of a run, and reading them back; torch is not needed for it.

A folder of a run::

    config.toml              every setting, and what the run began with; see config.py
    record.jsonl             a line for each start: command, versions, machine
    results.parquet          one row for each model, trial and epoch, with a checksum
    trials/001/tpl1.jsonl    the epochs of one job, a line for each, with a checksum
    trials/001/tpl1.pt       its checkpoint
    trials/001/tpl1.safetensors     its network
    trials/001/tpl1.observed.npz    its errors and its U's, for the page
    report.html, figures/, table.md     from ``tpl report``

Note [Rows before the checkpoint]: the lines of the jobs are the truth; the table is made from them.
An epoch's network and observations are written first, then its line is appended, then its
checkpoint replaces the one before. A job continues from its checkpoint, and lines after the
checkpoint's epoch are dropped. So a kill at any time costs at most the epoch that was running or
just done.

Note [An archive]: ``config.toml`` and ``results.parquet`` alone say all that was measured. If such
a folder is run again, the lines are written from the table first, so that trials, models and epochs
can be added.
"""

from __future__ import annotations

import hashlib
import io
import json
import os
import shutil
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import polars as pl

from .errors import StudyError
from .files import write_whole

RESULTS = "results.parquet"
RECORD = "record.jsonl"
HELD_OUT = "held_out.txt"  # from tpl evaluate: names the images that the networks never saw
CHECKSUM = "sha256"  # of a line, as its last field
# Of a table: the checksum is of the file with zeros in its place.
MARK, ZEROS = b"sha256:", 64 * b"0"

# The numbers of originals that train and validate in the trial, for the corrected interval.
COUNTS = ("train_images", "validation_images")
# An epoch: its number, its metrics, and these columns: its seconds, the counts, the code's version.
NOT_METRICS = ("seconds", *COUNTS, "code")
# Before the names of metrics on the test set. Only epochs with the lowest validation loss so far
# have them. TEST_IMAGES is the number of originals there.
TEST = "test_"
TEST_IMAGES = "test_images"
BY_CLASS = ": "  # in the name of a column: the metric, and the class that it is of
EpochRow = dict[str, Any]


# Lines with checksums


def checksum(fields: Mapping[str, Any]) -> str:
    """Return a checksum of plain values; JSON writes floats so that they come back to the bit.

    >>> checksum({"epoch": 1})
    'becef8ff3d5edb2b'
    """
    return hashlib.sha256(json.dumps(fields, sort_keys=True).encode()).hexdigest()[:16]


def as_line(fields: Mapping[str, Any]) -> bytes:
    """Return a line of JSON with a checksum of the fields as the last one."""
    return json.dumps({**fields, CHECKSUM: checksum(fields)}).encode() + b"\n"


def read_line(line: bytes) -> dict[str, Any] | None:
    """Return the fields of a line; None if it is corrupted or cut off."""
    try:
        fields = json.loads(line) if line.endswith(b"\n") else None
    except ValueError:  # neither JSON nor, perhaps, UTF-8
        return None
    if not isinstance(fields, dict) or fields.pop(CHECKSUM, None) != checksum(fields):
        return None
    return fields


def append_line(path: Path, fields: Mapping[str, Any]) -> None:
    """Append the line, and wait until it is on the disk."""
    with open(path, "ab") as file:
        file.write(as_line(fields))
        file.flush()
        os.fsync(file.fileno())


def read_starts(run: Path) -> list[dict[str, Any]]:
    """Return all starts of the run; ``StudyError`` if their log is corrupted."""
    path = run / RECORD
    lines = path.read_bytes().splitlines(keepends=True) if path.exists() else []
    starts = [start for line in lines if (start := read_line(line)) is not None]
    if len(starts) < len(lines):
        raise StudyError(f"{path} is corrupted. Remove it: no result depends on it.")
    return starts


# The files of a job


@dataclass(frozen=True)
class Saved:
    """The files saved after an epoch beside its line; None for a file that stays as it is."""

    checkpoint: bytes
    network: bytes | None
    observed: bytes


@dataclass(frozen=True)
class JobFiles:
    """The paths of a job's files."""

    lines: Path
    checkpoint: Path
    network: Path
    observed: Path

    @classmethod
    def of(cls, run: Path, trial: int, model: str, trials: str = "trials") -> JobFiles:
        """Return the files of a job; ``trials`` is the folder in the run that has them."""
        kinds = ("jsonl", "pt", "safetensors", "observed.npz")
        return cls(*(run / trials / f"{trial + 1:03d}" / f"{model}.{kind}" for kind in kinds))

    def read(self) -> tuple[list[EpochRow], str | None]:
        """Return the epochs so far, and what is wrong with the lines after them, if anything is.

        A last line that is cut off is not wrong: it is being written, or its writer was killed.
        """
        try:
            lines = self.lines.read_bytes().splitlines(keepends=True)
        except FileNotFoundError:
            return [], None
        rows: list[EpochRow] = []
        for number, line in enumerate(lines, start=1):
            row = read_line(line)
            if row is None or row.get("epoch") != number:
                cut_off = number == len(lines) and not line.endswith(b"\n")
                return rows, None if cut_off else f"{self.lines} is corrupted in line {number}"
            rows.append(row)
        return rows, None

    def rows(self) -> list[EpochRow]:
        """Return the epochs so far."""
        return self.read()[0]

    def write(self, rows: Sequence[EpochRow]) -> None:
        """Replace all lines by these."""
        content = b"".join(map(as_line, rows))
        if content != (self.lines.read_bytes() if self.lines.exists() else b""):
            self.lines.parent.mkdir(parents=True, exist_ok=True)
            write_whole(self.lines, content)

    def save(self, row: EpochRow, saved: Saved) -> None:
        """Add an epoch; see Note [Rows before the checkpoint] for the order."""
        self.lines.parent.mkdir(parents=True, exist_ok=True)
        if saved.network is not None:
            write_whole(self.network, saved.network)
        write_whole(self.observed, saved.observed)
        append_line(self.lines, row)
        write_whole(self.checkpoint, saved.checkpoint)


# The table


def gather(run: Path, study: str, jobs: Iterable[tuple[int, str]]) -> pl.DataFrame | None:
    """Return all epochs of these trials and models, tidy; None if there are none yet."""
    rows = [
        {"study": study, "model": model, "trial": trial + 1, **row}
        for trial, model in jobs
        for row in JobFiles.of(run, trial, model).rows()
    ]
    return pl.DataFrame(rows, infer_schema_length=None) if rows else None


def add_to_table(run: Path, study: str, job: tuple[int, str]) -> None:
    """Replace the rows of one job in the table; the lines of the others are not read again."""
    rows = gather(run, study, [job])
    assert rows is not None
    with suppress(StudyError):  # missing or corrupted: it is made again at the end of the run
        there = read_table(run / RESULTS)
        own = (pl.col("trial") == job[0] + 1) & (pl.col("model") == job[1])
        rows = pl.concat([there.filter(~own), rows], how="diagonal_relaxed")
    write_results(run, rows)


def write_results(run: Path, results: pl.DataFrame) -> None:
    """Write the table, with a checksum of the whole file in its metadata."""
    path, buffer = run / RESULTS, io.BytesIO()
    results.write_parquet(buffer, metadata={"checksum": (MARK + ZEROS).decode()})
    content = buffer.getvalue()
    start, _, end = content.rpartition(MARK + ZEROS)
    content = start + MARK + hashlib.sha256(content).hexdigest().encode() + end
    if not (path.exists() and path.read_bytes() == content):
        write_whole(path, content)


def read_table(path: Path) -> pl.DataFrame:
    """Return the table of that file; ``StudyError`` if it is not as it was written."""
    try:
        content = path.read_bytes()
    except OSError as error:
        raise StudyError(f"Could not read {path}: {error.strerror or error}.") from None
    start, mark, rest = content.rpartition(MARK)
    there, end = rest[: len(ZEROS)], rest[len(ZEROS) :]
    # Before it is parsed: of a corrupted file polars would print a Rust backtrace.
    if there != hashlib.sha256(start + mark + ZEROS + end).hexdigest().encode():
        raise StudyError(
            f"{path} is corrupted, or another program has written it: its checksum does not fit."
        )
    return pl.read_parquet(io.BytesIO(content))


def checked_table(
    frame: pl.DataFrame, path: Path, study: str, metrics: Sequence[str]
) -> pl.DataFrame:
    """Return the columns of a run with these metrics, as floats."""
    columns = ("study", "model", "trial", "epoch", *metrics)
    missing = [name for name in columns if name not in frame.columns]
    if missing:
        raise StudyError(f"Expected the columns {', '.join(missing)} in {path} as well.")
    optional = [
        name
        for name in frame.columns
        if name not in columns
        and (BY_CLASS in name or name in NOT_METRICS or name.startswith(TEST))
    ]
    whole = (*COUNTS, TEST_IMAGES)
    floats = [n for n in (*metrics, *optional) if n != "code" and n not in whole]
    numbers = pl.col(floats).cast(pl.Float64).fill_null(float("nan"))
    return checked_study(frame.select(*columns, *optional).with_columns(numbers), path, study)


def checked_study(frame: pl.DataFrame, path: Path, study: str) -> pl.DataFrame:
    """Return the table; ``StudyError`` if it is of another study."""
    others = frame["study"].unique().sort().to_list()
    if others != [study]:
        raise StudyError(
            f"Expected results of the {study} study alone in {path}, as its config.toml "
            f"says, got {', '.join(others) or 'none'}."
        )
    return frame


def restore_lines(run: Path, study: str, jobs: Sequence[tuple[int, str]]) -> None:
    """Write the lines of an archive's jobs from its table; see Note [An archive].

    All of them appear at once, so that a kill leaves the archive as it was.
    """
    path, trials, part = run / RESULTS, run / "trials", run / "trials.part"
    if trials.exists() or not path.is_file():
        return
    table = checked_study(read_table(path), path, study)
    shutil.rmtree(part, ignore_errors=True)
    for (trial, model), own in table.group_by("trial", "model", maintain_order=True):
        if (trial - 1, model) not in jobs:
            raise StudyError(
                f"{path} has trial {trial} of {model}, which config.toml does not name. Ask for it "
                "as well, or choose another --out."
            )
        rows = own.sort("epoch").drop("study", "trial", "model").to_dicts()
        measured = [{n: v for n, v in row.items() if v is not None} for row in rows]
        JobFiles.of(run, trial - 1, model, part.name).write(measured)
    part.rename(trials)
