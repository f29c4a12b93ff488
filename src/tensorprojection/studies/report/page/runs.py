"""The runs of a page, read from their folders."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import polars as pl

from ...config import read_toml
from ...errors import StudyError
from ...observed import Observed, read_observed
from ...record import read_record
from ...results import RESULTS, UnitFiles, gather, read_table
from ...samples import Samples, read_samples
from ..curves import Curves, read


@dataclass(frozen=True)
class Run:
    """A run: its results, and whatever was recorded beside them."""

    folder: Path
    curves: Curves
    settings: Mapping[str, Any]
    starts: Sequence[Mapping[str, Any]]
    samples: Samples | None
    observed: Mapping[str, Sequence[Observed]]  # by model, of the trials that have some
    seconds: pl.DataFrame | None  # model, trial, epoch, seconds
    kept: Sequence[str]  # files of networks, seen from the folder


def read_runs(
    folders: Sequence[Path], epoch: int | None = None, models: Sequence[str] | None = None
) -> list[Run]:
    """The runs of these folders, of one study; ``StudyError`` where they are of several.

    Args:
        folders: those of the runs.
        epoch: as if they had ended with it.
        models: as if they had been of these.
    """
    if not folders:
        raise StudyError("Expected the folder of a run, got none.")
    found = [_read(folder, epoch, models) for folder in folders]
    studies = {run.curves.config.study: run.folder for run in found}
    if len(studies) > 1:
        each = ", ".join(f"{name} ({folder})" for name, folder in studies.items())
        raise StudyError(f"Expected runs of one study in one page, got {each}: report each alone.")
    held_out = [run.folder for run in found if run.curves.held_out is not None]
    if held_out and len(held_out) < len(found):
        raise StudyError(
            "Expected runs, or evaluations on held-out images, in one page, got both: "
            f"{held_out[0]} is an evaluation. Report each alone."
        )
    return found


def _read(folder: Path, epoch: int | None, models: Sequence[str] | None) -> Run:
    curves = read(folder)
    if epoch is not None:
        curves = curves.until(epoch)
    if models is not None:
        curves = curves.only(models)
    last = int(curves.epochs[-1])
    observed = {
        model: [
            found
            for trial in curves.trials
            if (found := _observed(folder, int(trial), model)) is not None
            and found.epochs[0] <= last
        ]
        for model in curves.models
    }
    return Run(
        folder,
        curves,
        _settings(folder),
        read_record(folder).starts,
        read_samples(folder),
        observed,
        _seconds(folder, curves),
        sorted(str(p.relative_to(folder)) for p in folder.glob("trials/*/*.safetensors")),
    )


def _observed(folder: Path, trial: int, model: str) -> Observed | None:
    return read_observed(UnitFiles.of(folder, trial - 1, model).observed)


def _settings(folder: Path) -> dict[str, Any]:
    try:
        return read_toml(folder / "config.toml")
    except StudyError:  # damaged or gone; then the record has them, or the run could not be read
        return dict(read_record(folder).settings or {})


def _seconds(folder: Path, curves: Curves) -> pl.DataFrame | None:
    units = [(int(trial) - 1, model) for trial in curves.trials for model in curves.models]
    frame = gather(folder, curves.study.name, units)
    if frame is None and (folder / RESULTS).is_file():
        frame = read_table(folder / RESULTS)
    if frame is None or "seconds" not in frame.columns:
        return None
    frame = frame.select("model", "trial", "epoch", "seconds")
    return frame.filter(pl.col("epoch") <= int(curves.epochs[-1]))
