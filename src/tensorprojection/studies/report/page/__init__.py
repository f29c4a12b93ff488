"""``report.html``: a run, or several of one study, as one page that needs nothing else."""

from __future__ import annotations

from collections.abc import Sequence
from importlib.resources import files
from pathlib import Path
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined

from ...errors import StudyError
from ...files import write_whole
from .charts import beside_each_other, looks
from .numbers import shown
from .runs import Run, read_runs
from .sections import differing, run_view

PAGE = "report.html"


def write(folders: Sequence[Path], out: Path, epoch: int | None = None) -> Path:
    """Write the page of these runs into a folder; returns the file.

    Args:
        folders: of runs of one study, finished or not.
        out: the folder that the page goes to.
        epoch: as if the runs had ended with this epoch.
    """
    return write_runs(read_runs(folders, epoch), out)


def write_runs(runs: Sequence[Run], out: Path) -> Path:
    """Write the page of runs that have been read into a folder; returns the file."""
    content, path = as_html(runs), out / PAGE
    try:
        out.mkdir(parents=True, exist_ok=True)
        write_whole(path, content.encode())
    except OSError as error:
        raise StudyError(f"Could not write {path}: {error.strerror or error}.") from None
    return path


def as_html(runs: Sequence[Run]) -> str:
    """The page. All that comes from data is escaped: it is shown, and never run."""
    names = _names(runs)
    views = [run_view(run, f"run{k}", names[k - 1]) for k, run in enumerate(runs, start=1)]
    charts: dict[str, Any] = {view["key"]: view.pop("charts") for view in views}
    models: dict[str, Any] = {view["key"]: view["models"] for view in views}
    together = None
    if len(runs) > 1:
        together = _together(runs, names)
        charts["all"] = {"metrics": beside_each_other(runs, names)}
        every = list(dict.fromkeys(model for run in runs for model in run.curves.models))
        title = runs[0].curves.model_title
        models["all"] = [{"name": m, "title": title(m), **looks(every)[m]} for m in every]
    environment = Environment(
        loader=PackageLoader(__name__, "."),
        autoescape=True,
        trim_blocks=True,
        lstrip_blocks=True,
        undefined=StrictUndefined,
    )
    return environment.get_template("page.html.jinja").render(
        title=runs[0].curves.title if len(runs) == 1 else f"{len(runs)} runs side by side",
        runs=views,
        together=together,
        together_models=models.get("all", []),
        data={"charts": charts, "models": models},
        uplot=_text("vendor/uPlot.iife.min.js"),
        uplot_licence=_text("vendor/LICENSE.uPlot"),
        uplot_style=_text("vendor/uPlot.min.css"),
        script=_text("page.js"),
        style=_text("page.css"),
    )


def _text(name: str) -> str:
    return files(__name__).joinpath(name).read_text(encoding="utf-8")


def _names(runs: Sequence[Run]) -> list[str]:
    """What the runs are called: their folders' last parts, or all of it where those are equal."""
    short = [run.folder.resolve().name for run in runs]
    return short if len(set(short)) == len(short) else [str(run.folder) for run in runs]


def _together(runs: Sequence[Run], names: Sequence[str]) -> dict[str, Any]:
    """What sets the runs apart, and how their networks end."""
    from .numbers import scores

    by_run = [{(s.row.metric, s.row.model): s for s in scores(run.curves)} for run in runs]
    every = list(dict.fromkeys(model for run in runs for model in run.curves.models))
    tables = []
    for metric in runs[0].curves.metrics:
        rows = []
        for model in every:
            cells = []
            for found in by_run:
                score = found.get((metric, model))
                cells.append(
                    None
                    if score is None
                    else {
                        "last": shown(score.row.last_median),
                        "difference": shown(score.row.difference, "+") if score.row.pairs else "",
                        "better": f"{score.row.better} of {score.row.pairs}",
                    }
                )
            rows.append({"title": runs[0].curves.model_title(model), "cells": cells})
        tables.append({"title": runs[0].curves.metric_title(metric), "rows": rows})
    return {
        "names": list(names),
        "settings": differing(runs),
        "tables": tables,
        "held_out": runs[0].curves.held_out is not None,
    }
