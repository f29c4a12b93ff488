"""A run as its report shows it: arrays of trials by epochs, and the other files of the folder.

Nothing here runs a study's code: a run of a user's own study is shown from its rows, the names of
its metrics and its settings, unless the user names the study.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
from numpy.typing import NDArray

from ..config import PHANTOMS, RunConfig
from ..config import read_run as read_config
from ..errors import NotImportedError, StudyError
from ..networks.layer_rows import ModelTable
from ..registry import config_of, find_study
from ..results import (
    BY_CLASS,
    HELD_OUT,
    NOT_METRICS,
    RESULTS,
    TEST,
    JobFiles,
    checked_table,
    gather,
    read_starts,
    read_table,
)
from ..study import Study
from ..training.metrics import TRAIN_LOSS, Metric, metric_by_name
from ..training.observer import Observed, read_observed
from .statistics import Comparison, Floats, Part, compare, last_column

LOSS = "loss"  # the metric that chooses the epoch of a score
PARTS: tuple[Part, ...] = ("validation", "test")


@dataclass(frozen=True)
class Run:
    """A run's results, and what was recorded beside them.

    All arrays have a row for each of ``trials`` and a column for each of ``epochs``, the numbers of
    those with results; so rows are pairs.
    """

    folder: Path
    config: RunConfig
    settings: Mapping[str, Any]  # the same in plain values, with those of an own study
    study: Study[Any] | None  # None for an own study that the user has not named
    models: tuple[str, ...]  # those with results
    metrics: tuple[Metric, ...]  # those of the study, then the training loss
    trials: NDArray[np.int64]
    epochs: NDArray[np.int64]
    measured: Mapping[str, NDArray[np.bool_]]  # by model, True if there is a result
    # By metric (also of one class, on the test part, or "seconds") and model; NaN if a value is
    # missing or not finite.
    values: Mapping[tuple[str, str], Floats]
    # By part, for each trial, its images per training image; an evaluation has none.
    ratios: Mapping[Part, Floats]
    codes: tuple[str, ...]  # the versions of the code that trained the networks
    damage: tuple[str, ...]  # a clause for each corrupted file of the run
    # The name of the images of an evaluation, if networks were measured on others than the run's.
    # It begins with "held-out" if none of them is the run's own.
    held_out: str | None
    started: Mapping[str, Any]  # the record of the last start
    observed: Mapping[str, Sequence[Observed]]  # by model, of its trials
    in_order: bool = False  # False: tables have the best model first

    @cached_property
    def comparisons(self) -> tuple[Comparison, ...]:
        """A row of the tables for each metric and model; computed once."""
        return compare(self)

    @property
    def part(self) -> Part:
        """The part of the images that scores are measured on; see Note [Scores]."""
        return "test" if any(name.startswith(TEST) for name, _ in self.values) else "validation"

    @property
    def by_class(self) -> list[str]:
        """The columns of the metrics by class."""
        shown = [metric.name for metric in self.metrics]
        names = dict.fromkeys(name for name, _ in self.values if BY_CLASS in name)
        return [name for name in names if name.partition(BY_CLASS)[0] in shown]

    @cached_property
    def best(self) -> Mapping[str, NDArray[np.int64]]:
        """For each model and trial, the column of the lowest validation loss; −1 without any.

        Only trials that have reached the last epoch of all models have one.
        """
        end, found = last_column(self) + 1, {}
        for model in self.models:
            lowest = LOSS if (LOSS, model) in self.values else TRAIN_LOSS.name
            ranked = self.values[lowest, model][:, :end]
            there = ~np.isnan(ranked).all(axis=1) & self.measured[model][:, end - 1]
            found[model] = np.where(there, np.where(np.isnan(ranked), np.inf, ranked).argmin(1), -1)
        return found

    def scores(self, metric: str, model: str) -> Floats:
        """Return the model's score of each trial; see Note [Scores]."""
        name = metric if metric == TRAIN_LOSS.name or self.part == "validation" else TEST + metric
        columns = self.best[model]
        found = self.values[name, model][np.arange(len(columns)), columns]
        return np.where(columns < 0, np.nan, found)

    @cached_property
    def layers(self) -> tuple[list[ModelTable], str]:
        """The networks layer by layer; if they cannot be shown, none and the reason."""
        if self.study is None:
            return [], "Name the study to show them: its code is not run otherwise."
        try:
            known = {table.form: table for table in self.study.tables(self.config)}
        except StudyError as error:
            return [], str(error)
        return [known[model] for model in self.models if model in known], ""

    @property
    def seconds(self) -> dict[str, Floats] | None:
        """The seconds of each epoch of each trial by model; None if they were not recorded."""
        found = {m: self.values["seconds", m] for m in self.models if ("seconds", m) in self.values}
        return found or None

    @property
    def name(self) -> str:
        """The name of the study."""
        return _name(self.config, self.study)

    @property
    def title(self) -> str:
        """The study, with what distinguishes this run of it."""
        parts = [self.name]
        if self.study is not None:
            parts = [self.study.title, *self.study.describe(self.config)]
        if self.config.train_share < 1:
            parts.append(f"{100 * self.config.train_share:.3g} % of the training images")
        if self.config.data == PHANTOMS:
            parts.append(PHANTOMS)
        if self.held_out is not None:
            parts.append(self.held_out)
        return ", ".join(parts)

    @property
    def one_split(self) -> bool:
        """True if all trials have the same validation images."""
        return self.config.split in ("as-shipped", "fixed")

    def model_title(self, model: str) -> str:
        """Return the model as a reader knows it; without a title, its name."""
        try:
            return model if self.study is None else self.study.title_of(model)
        except StudyError:  # a network that the study no longer has
            return model

    def metric(self, name: str) -> Metric:
        """Return the metric of that column."""
        return next(m for m in self.metrics if m.name == name.partition(BY_CLASS)[0])

    def score_title(self, name: str) -> str:
        """Return the metric as a reader knows it, on the part that scores are measured on."""
        return self.metric_title(name).replace("validation", self.part)

    def metric_title(self, name: str) -> str:
        """Return the metric as a reader knows it."""
        title = self.metric(name).title
        if self.held_out is None:
            return title
        if name == TRAIN_LOSS.name:
            return f"{title} at the epoch of the network"
        word = "held-out" if self.held_out.startswith("held-out") else "evaluation"
        return title.replace("validation", word)

    def not_finite(self, metric: str) -> int:
        """Return how many results of the metric are NaN or infinite."""
        return sum(
            int((self.measured[model] & np.isnan(self.values[metric, model])).sum())
            for model in self.models
        )

    def only(
        self, models: Sequence[str] | None = None, metrics: Sequence[str] | None = None
    ) -> Run:
        """Return the same run as if it had only these models and metrics, in this order."""
        known = tuple(metric.name for metric in self.metrics)
        chosen = self.models if models is None else _chosen("models", models, self.models)
        shown = known if metrics is None else _chosen("metrics", metrics, known)
        return replace(
            self,
            config=self.config.model_copy(update={"models": chosen}) if models else self.config,
            models=chosen,
            metrics=tuple(self.metric(name) for name in shown),
            observed={model: self.observed[model] for model in chosen},
            in_order=models is not None,
        )


def _chosen(what: str, asked: Sequence[str], known: Sequence[str]) -> tuple[str, ...]:
    unknown = [name for name in asked if name not in known]
    if unknown or not asked:
        raise StudyError(
            f"Expected {what} among {', '.join(known)}, got {', '.join(unknown) or 'none'}."
        )
    return tuple(dict.fromkeys(asked))


# Reading


def read_run(folder: Path, own: Study[Any] | None = None) -> Run:
    """Read a run's folder; ``StudyError`` if it is not as a run writes it.

    ``own`` is the user's own study, whose titles and claims are shown.
    """
    settings, config, study = read_settings(folder, own)
    frame, damage = _rows(folder, config, study)
    found = frame["model"].unique(maintain_order=True).to_list()
    models = tuple(dict.fromkeys([*(m for m in config.models if m in found), *found]))
    trials, epochs = (np.unique(frame[name].to_numpy()) for name in ("trial", "epoch"))
    measured: dict[str, NDArray[np.bool_]] = {}
    values: dict[tuple[str, str], Floats] = {}
    for model in models:
        rows = frame.filter(pl.col("model") == model)
        where = np.searchsorted(trials, rows["trial"]), np.searchsorted(epochs, rows["epoch"])
        measured[model] = np.zeros((len(trials), len(epochs)), bool)
        measured[model][where] = True
        for column in rows.select(pl.col(pl.Float64)):
            values[column.name, model] = np.full((len(trials), len(epochs)), np.nan)
            numbers = column.to_numpy()
            values[column.name, model][where] = np.where(np.isfinite(numbers), numbers, np.nan)
    observed = {
        model: [
            seen
            for trial in trials
            if (seen := read_observed(JobFiles.of(folder, int(trial) - 1, model).observed))
        ]
        for model in models
    }
    counts = frame.group_by("trial").agg(pl.col("^.*_images$").first()).sort("trial")
    starts, held_out = read_starts(folder), folder / HELD_OUT
    return Run(
        folder=folder,
        config=config,
        settings=settings,
        study=study,
        models=models,
        metrics=(*metrics_in(frame.columns, study), TRAIN_LOSS),
        trials=trials,
        epochs=epochs,
        measured=measured,
        values=values,
        ratios={
            part: (counts[f"{part}_images"] / counts["train_images"]).to_numpy()
            for part in PARTS
            if f"{part}_images" in counts.columns
        },
        codes=tuple(sorted(set(frame["code"]))) if "code" in frame.columns else (),
        damage=damage,
        held_out=held_out.read_text("utf-8", "replace") if held_out.is_file() else None,
        started=starts[-1] if starts else {},
        observed=observed,
    )


def read_settings(
    folder: Path, own: Study[Any] | None = None
) -> tuple[dict[str, Any], RunConfig, Study[Any] | None]:
    """Read a run's settings; the study is None if it is an own one that is not named."""
    settings, _ = read_config(folder)
    try:
        config = config_of(settings, folder / "config.toml", own)
        return settings, config, own or find_study(config.study)
    except NotImportedError:
        shared = {name: settings[name] for name in RunConfig.model_fields if name in settings}
        return settings, RunConfig(**shared), None


def _rows(
    folder: Path, config: RunConfig, study: Study[Any] | None
) -> tuple[pl.DataFrame, tuple[str, ...]]:
    """Return all epochs so far, and a clause for each corrupted file.

    The rows come from the jobs' own files; from the table if it was copied without those.
    """
    jobs = [(trial, model) for trial in range(config.trials) for model in config.models]
    damage = [JobFiles.of(folder, *job).read()[1] for job in jobs]
    path, name = folder / RESULTS, _name(config, study)
    frame = gather(folder, name, jobs)
    if frame is None:
        if not path.is_file():
            raise StudyError(
                f"No network in {folder} has finished its first epoch yet: there is nothing to "
                "report."
            )
        frame = read_table(path)
        if study is None:  # nothing but its file is known to compare the name with
            frame = frame.with_columns(study=pl.lit(name))
    metrics = [metric.name for metric in metrics_in(frame.columns, study)]
    whole = checked_table(frame, path, name, [TRAIN_LOSS.name, *metrics])
    return whole, tuple(text for text in damage if text is not None)


def _name(config: RunConfig, study: Study[Any] | None) -> str:
    """Return the study's name; of one that is not named, that of its file."""
    return Path(config.study.partition(":")[0]).stem if study is None else study.name


def metrics_in(columns: Sequence[str], study: Study[Any] | None) -> tuple[Metric, ...]:
    """Return the study's metrics that were measured; without the study, all columns but others'."""
    if study is not None:
        return tuple(metric for metric in study.measured if metric.name in columns)
    known = ("study", "model", "trial", "epoch", TRAIN_LOSS.name, *NOT_METRICS, "kept_at_epoch")
    names = [name for name in columns if name not in known and BY_CLASS not in name]
    return tuple(metric_by_name(name) for name in names if not name.startswith(TEST))
