"""What a run measured, as arrays of trials by epochs, for its figures and its table."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
from numpy.typing import NDArray

from ..config import PHANTOMS, RunConfig
from ..errors import StudyError
from ..record import check_begun, read_record
from ..registry import config_of, find_study, read_config
from ..results import HELD_OUT, RESULTS, UnitFiles, checked_table, gather, read_table
from ..study import Study

Floats = NDArray[np.float64]

BASE = "base"


@dataclass(frozen=True)
class Curves:
    """A run's results.

    Attributes:
        config: the run's settings.
        models: those with results, in the order of the settings.
        trials: the numbers of those with results; the rows of all arrays, so that rows are pairs.
        epochs: the numbers of those with results; the columns of all arrays.
        measured: by model, whether there is a result for that trial and epoch.
        values: by metric and model; NaN where there is none, or none that is finite.
        codes: by version of the code, in how many trials it has trained each model.
        damage: what is wrong with files of the run, if anything is.
        held_out: names the images, where the networks were measured on some that they never saw.
    """

    config: RunConfig
    models: tuple[str, ...]
    trials: NDArray[np.int64]
    epochs: NDArray[np.int64]
    measured: Mapping[str, NDArray[np.bool_]]
    values: Mapping[tuple[str, str], Floats]
    codes: Mapping[str, Mapping[str, int]] = field(default_factory=dict)
    damage: tuple[str, ...] = ()
    held_out: str | None = None

    @property
    def metrics(self) -> tuple[str, ...]:
        """The names of what was measured."""
        return self.study.row_metrics

    @property
    def study(self) -> Study[Any]:
        return find_study(self.config.study)

    def metric_title(self, metric: str) -> str:
        """The metric as a reader knows it."""
        titles = {known.name: known.title for known in self.study.measured}
        if self.held_out is None:
            return titles.get(metric, "training loss")
        # The networks' choice went by the validation images; these are others.
        of_run = titles.get(metric, "training loss at the epoch that was kept")
        return of_run.replace("validation", "held-out")

    def higher_is_better(self, metric: str) -> bool:
        return any(m.name == metric and m.higher_is_better for m in self.study.measured)

    @property
    def title(self) -> str:
        """The study, with what sets this run of it apart."""
        parts = [self.study.title, *self.study.describe(self.config)]
        if self.config.train_share < 1:
            parts.append(f"{100 * self.config.train_share:.3g} % of the training images")
        if self.config.data == PHANTOMS:
            parts.append(PHANTOMS)
        if self.held_out is not None:
            parts.append(f"held-out images of {self.held_out}")
        return ", ".join(parts)

    def until(self, epoch: int) -> Curves:
        """The same run as if it had ended with this epoch."""
        if epoch not in self.epochs:
            low, high = self.epochs.min(), self.epochs.max()
            raise StudyError(f"Expected an epoch from {low} to {high}, got {epoch}.")
        kept = self.epochs <= epoch
        return replace(
            self,
            epochs=self.epochs[kept],
            measured={model: there[:, kept] for model, there in self.measured.items()},
            values={key: values[:, kept] for key, values in self.values.items()},
        )

    def only(self, models: Sequence[str]) -> Curves:
        """The same run as if it had been of these models, in their order."""
        unknown = [model for model in models if model not in self.models]
        if unknown or not models:
            raise StudyError(
                f"Expected `models` among {', '.join(self.models)}, got "
                f"{', '.join(unknown) or 'none'}."
            )
        chosen = tuple(dict.fromkeys(models))
        config = self.config.model_copy(update={"models": chosen})
        codes = {
            code: {model: trials[model] for model in chosen if model in trials}
            for code, trials in self.codes.items()
            if not trials.keys().isdisjoint(chosen)
        }
        return replace(self, config=config, models=chosen, codes=codes)

    def model_title(self, model: str) -> str:
        """The model as a reader knows it; a name without a title is its own."""
        return self.study.models.get(model, model)

    def count(self, model: str) -> int:
        """In how many trials the model has results."""
        return int(self.measured[model].any(axis=1).sum())

    def not_finite(self, metric: str) -> int:
        """How many results of the metric are NaN or infinite, and so left out."""
        return sum(
            int((self.measured[model] & np.isnan(self.values[metric, model])).sum())
            for model in self.models
        )


def quartiles(values: Floats) -> Floats:
    """The 25, 50 and 75 % quantiles of each column, three rows; NaN in it is left out.

    >>> quartiles(np.array([[1.0, np.nan], [2.0, np.nan], [5.0, np.nan]]))
    array([[1.5, nan],
           [2. , nan],
           [3.5, nan]])
    """
    result = np.full((3, values.shape[1]), np.nan)
    for k, column in enumerate(values.T):
        finite = column[~np.isnan(column)]
        if len(finite):
            result[:, k] = np.quantile(finite, (0.25, 0.5, 0.75))
    return result


# Reading


def read(folder: Path) -> Curves:
    """The results in a run's folder; a ``StudyError`` where they are not as a run writes them."""
    if not folder.is_dir():
        raise StudyError(f"Expected the folder of a run, got {folder}: there is no such folder.")
    check_begun(folder)
    config = _config(folder)
    study = find_study(config.study)
    frame, damage = _rows(folder, config, study)
    found = frame["model"].unique(maintain_order=True).to_list()
    models = [model for model in config.models if model in found]
    models += [model for model in found if model not in models]
    trials, rows = np.unique(frame["trial"].to_numpy(), return_inverse=True)
    epochs, columns = np.unique(frame["epoch"].to_numpy(), return_inverse=True)
    measured: dict[str, NDArray[np.bool_]] = {}
    values: dict[tuple[str, str], Floats] = {}
    for model in models:
        own = (frame["model"] == model).to_numpy()
        where = rows[own], columns[own]
        measured[model] = np.zeros((len(trials), len(epochs)), bool)
        measured[model][where] = True
        for metric in study.row_metrics:
            column = frame[metric].to_numpy()[own]
            array = np.full((len(trials), len(epochs)), np.nan)
            array[where] = np.where(np.isfinite(column), column, np.nan)
            values[metric, model] = array
    codes = _codes(frame, models)
    held_out = _held_out(folder)
    return Curves(config, tuple(models), trials, epochs, measured, values, codes, damage, held_out)


def _held_out(folder: Path) -> str | None:
    path = folder / HELD_OUT
    return path.read_text(encoding="utf-8", errors="replace") if path.is_file() else None


def _config(folder: Path) -> RunConfig:
    """As ``config.toml`` has it or, where that is damaged or gone, the record."""
    try:
        return read_config(folder / "config.toml")
    except StudyError:
        if (recorded := read_record(folder).settings) is not None:
            return config_of(recorded, folder / "record.json")
        raise


def _rows(
    folder: Path, config: RunConfig, study: Study[Any]
) -> tuple[pl.DataFrame, tuple[str, ...]]:
    """All epochs so far, also of networks that are being trained, and what damage was found.

    They come from the networks' own files. The table of them all is gathered when a network has
    finished; it serves where it was copied without those.
    """
    units = [(trial, model) for trial in range(config.trials) for model in config.models]
    found = [UnitFiles.of(folder, *unit).read().damage for unit in units]
    damage = tuple(text for text in found if text is not None)
    gathered = gather(folder, study.name, units)
    if gathered is not None:
        return checked_table(gathered, folder / "trials", study.name, study.row_metrics), damage
    path = folder / RESULTS
    if not path.is_file():
        raise StudyError(
            f"No network in {folder} has finished its first epoch yet: there is nothing to report."
        )
    return checked_table(read_table(path), path, study.name, study.row_metrics), damage


def _codes(frame: pl.DataFrame, models: list[str]) -> dict[str, dict[str, int]]:
    if "code" not in frame.columns:
        return {}
    trials = frame.group_by("code", "model").agg(pl.col("trial").n_unique())
    counts = {(code, model): count for code, model, count in trials.rows()}
    return {
        code: {model: counts[code, model] for model in models if (code, model) in counts}
        for code in sorted(frame["code"].unique().to_list())
    }
