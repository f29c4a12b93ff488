"""``report.html``: a run, or several of one study, as one page that needs nothing else."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from dataclasses import replace
from datetime import timedelta
from importlib.resources import files
from pathlib import Path
from typing import Any

import numpy as np
from jinja2 import Environment, PackageLoader, StrictUndefined

from ..errors import StudyError
from ..files import write_whole
from ..observed import CHOSEN
from ..training.metrics import TRAIN_LOSS
from . import charts
from .charts import heat_map, outlined, photo
from .projections import ends
from .run import Run
from .statistics import BASE, finite
from .tables import (
    Grid,
    capital,
    cells,
    compares,
    count,
    difference,
    grids,
    headline,
    notes,
    number,
    ranked,
    trials_of,
    verdict,
)
from .verdicts import RULE, UNDECIDED, verdicts

PAGE = "report.html"
MOST_ON = 5  # networks whose curves are shown at first

Part = dict[str, Any]


def write(runs: Sequence[Run], out: Path) -> Path:
    """Write the page of these runs into a folder; returns the file."""
    content, path = as_html(runs), out / PAGE
    try:
        out.mkdir(parents=True, exist_ok=True)
        write_whole(path, content.encode())
    except OSError as error:
        raise StudyError(f"Could not write {path}: {error.strerror or error}.") from None
    return path


def as_html(runs: Sequence[Run]) -> str:
    """Return the page. All texts from data are escaped: they are shown, and never run."""
    short = [run.folder.resolve().name for run in runs]
    names = short if len(set(short)) == len(short) else [str(run.folder) for run in runs]
    views = [_view(run, f"run{k}", names[k - 1]) for k, run in enumerate(runs, start=1)]
    specs = {
        f"{view['key']}-{kind}-{k}": spec
        for view in views
        for kind, found in view["charts"].items()
        for k, spec in enumerate(found)
    }
    environment = Environment(
        loader=PackageLoader(__package__, "."),
        autoescape=True,
        trim_blocks=True,
        lstrip_blocks=True,
        undefined=StrictUndefined,
    )
    environment.filters["capitalize_first"] = capital
    return environment.get_template("page.html.jinja").render(
        title=runs[0].title if len(runs) == 1 else f"Comparison of {len(runs)} runs",
        runs=views,
        together=_together(runs, names) if len(runs) > 1 else None,
        rule=RULE,
        data={"specs": specs, "config": charts.template("config")},
        vega=charts.script(),
        style=files(__package__).joinpath("page.css").read_text(encoding="utf-8"),
    )


def _view(run: Run, key: str, name: str) -> Part:
    """Return the parts of one run in plain values. ``key`` is the run's in the page."""
    judged = verdicts(run)
    scores = [_scores(run, grid) for grid in grids(run)]
    best = [row.model for row in ranked(run, run.metrics[0].name)]
    on = [model for model in run.models if model == BASE] + [m for m in best if m != BASE]
    return {
        "key": key,
        "name": name,
        "title": run.title,
        "held_out": run.held_out is not None,
        "headline": headline(run),
        "about": _about(run),
        "models": [
            {"label": label, "colour": colour, "dash": dash, "on": model in on[:MOST_ON]}
            for (model, label), (colour, dash, _) in zip(
                charts.labels(run).items(), charts.looks(run).values(), strict=True
            )
        ],
        "scores": [grid for grid in scores if grid.texts == 1],
        "classes": [grid for grid in scores if grid.texts > 1],
        "notes": notes(run),
        "charts": {} if run.held_out is not None else _charts(run),
        "segments": any(t.get("dice") is not None for own in run.observed.values() for t in own)
        or (run.study is not None and run.study.images.masks),
        "confusions": _confusions(run),
        "gallery": _gallery(run),
        "matrices": _matrices(run),
        "seconds": _seconds(run),
        "samples": _samples(run),
        "networks": _networks(run),
        "facts": _facts(run),
        "settings": [(n, plain(v)) for n, v in sorted(run.settings.items())],
        "saved": run.networks,
        "decided": [one for one in judged if one.tested and one.word != UNDECIDED],
        "undecided": [one for one in judged if one.tested and one.word == UNDECIDED],
        "untested": [one for one in judged if not one.tested],
    }


def _charts(run: Run) -> dict[str, list[charts.Spec]]:
    names = [metric.name for metric in run.metrics]
    measured = [name for name in names if name != TRAIN_LOSS.name]
    sizes = charts.frontier(run, names[0]) if compares(run) else None
    return {
        "curves": [charts.curves(run, name) for name in measured],
        "forest": [charts.forest(run, name) for name in measured] if compares(run) else [],
        "sizes": [] if sizes is None else [sizes],
        "observed": charts.observations(run),
        "training": [charts.curves(run, name) for name in names if name not in measured],
    }


def _about(run: Run) -> str:
    """Return the data, trials and date of a run in one line."""
    facts = dict(_facts(run))
    found = [f"Data: {facts['Data']}", facts["Trials"]]
    if "Epochs" in facts:
        found.append(f"epochs: {facts['Epochs']}")
    found.append(facts["Started"][:10] if "Started" in facts else "date not recorded")
    return " · ".join(found)


def _scores(run: Run, grid: Grid) -> Grid:
    """Return a metric's table with the best network first, and the verdicts."""
    if grid.texts > 1 or not compares(run):
        return grid
    rows = ranked(run, grid.name)
    lines = [[*cells(run, r), verdict(run, r) if r.difference else ""] for r in rows]
    for line in (header := [*grid.header, "verdict"], *lines):
        line.insert(5, line.pop())  # beside its difference, before the last epoch
    return replace(grid, header=header, rows=lines)


def _confusions(run: Run) -> list[Part]:
    """Return counts over all trials at the last epoch, with sensitivity and specificity."""
    found = []
    names = run.samples.images.class_names if run.samples else ()
    for model, trials in run.observed.items():
        counted = [c[-1] for trial in trials if (c := trial.get("confusion")) is not None]
        if not counted:
            continue
        whole = np.sum(counted, axis=0)
        actual, right = whole.sum(axis=1), whole.diagonal()
        others = whole.sum() - actual
        with np.errstate(invalid="ignore"):  # a class that is not there
            shares = whole / actual[:, None]
            specificity = (others - whole.sum(axis=0) + right) / others
        known = [str(name) for name in names]
        if len(known) != len(whole):
            known = [f"class {k}" for k in range(len(whole))]
        title = f"{run.model_title(model)} ({count(len(counted), 'trial')})"
        rows = zip(known, whole.tolist(), shares.tolist(), specificity.tolist(), strict=True)
        found.append({"title": title, "classes": known, "rows": list(rows)})
    return found


def _gallery(run: Run) -> list[Part]:
    """Return predictions of the first trial that has some: not one chosen by its scores."""
    found = []
    for model, trials in run.observed.items():
        first = next((t.arrays for t in trials if t.get("predictions") is not None), None)
        if first is None:
            continue
        arrays = (first[name] for name in ("dice", "images", "masks", "predictions"))
        pictures = [
            (f"{which}: Dice {dice:.3f}", photo(image), outlined(image, mask, prediction))
            for which, dice, image, mask, prediction in zip(CHOSEN, *arrays, strict=True)
        ]
        title = run.model_title(model)
        if run.held_out is None:
            title += f", epoch {int(first['epochs'][-1])}"
        found.append({"title": title, "pictures": pictures})
    return found


def _matrices(run: Run) -> list[Part]:
    """Return every U at the init and at the end of the first trial, with numbers of all trials."""
    found = []
    for U in ends(run):
        first, last = U.pairs[0]
        top = float(max(np.abs(first).max(), np.abs(last).max()))
        p, q = first.shape
        shown = f"{run.model_title(U.model)}: {U.layer}, mode {U.mode} ({p} × {q}), ±{number(top)}."
        pictures = {"init": heat_map(first.T, top), "end": heat_map(last.T, top)}
        about = f"{shown} {U.about()}"
        found.append({"about": about, "epoch": U.epoch, "wide": p > 64, **pictures})
    return found


def _seconds(run: Run) -> list[list[str]]:
    """Return the median and the quartiles of the seconds for an epoch."""
    found = []
    for model, seconds in (run.seconds or {}).items():
        if len(own := finite(seconds.ravel())):
            low, median, high = (number(float(v)) for v in np.quantile(own, (0.25, 0.5, 0.75)))
            found.append([run.model_title(model), median, f"{low}–{high}"])
    return found


def _samples(run: Run) -> list[Part]:
    if run.samples is None:
        return []
    found, masks = run.samples.images, run.samples.images.masks
    assert found.labels is not None
    assert found.names is not None
    pictures = [
        (str(name), photo(image), None if masks is None else outlined(image, masks[k] > 0))
        for k, (name, image) in enumerate(zip(found.names, found.images, strict=True))
    ]
    return [
        {"name": name, "count": total}
        | {"pictures": [pictures[k] for k in np.flatnonzero(found.labels == label)]}
        for label, (name, total) in enumerate(
            zip(found.class_names, run.samples.counts, strict=True)
        )
    ]


def _networks(run: Run) -> Part:
    """Return the layers of the run's networks; footnotes are numbered over all of them."""
    forms, why = run.layers
    titles = {t.form: f"{capital(run.model_title(t.form))} ({t.form})" for t in forms}
    footnotes = dict.fromkeys(row.note for t in forms for row in t.rows if row.note)
    return {"tables": forms, "titles": titles, "notes": list(footnotes), "why": why}


def _facts(run: Run) -> list[tuple[str, str]]:
    """Return the folder, trials, data, code, machine and time of a run."""
    facts = [("Folder", str(run.folder)), ("Trials", trials_of(run))]
    if run.held_out is not None:
        total = f", {sum(run.samples.counts):,} images" if run.samples else ""
        return [*facts, ("Data", f"{run.config.data}{total}")]
    facts += [
        ("Epochs", f"{run.epochs[-1]} of {run.config.epochs} planned"),
        ("Data", run.config.data),
        ("Code", "; ".join(run.codes) or "not recorded"),
    ]
    for name, value in run.recorded.items():
        if name == "unreadable" and not value["count"]:
            continue
        facts.append((name.capitalize(), shlex.join(value) if name == "command" else plain(value)))
    if run.seconds is not None:
        whole = round(sum(float(np.nansum(own)) for own in run.seconds.values()))
        facts.append(("Time of training", f"{timedelta(seconds=whole)} hours, all processes"))
    return facts


def plain(value: Any) -> str:
    """Return a setting or a record as text."""
    if isinstance(value, dict):
        return ", ".join(f"{name} {plain(one)}" for name, one in value.items())
    return ", ".join(map(plain, value)) if isinstance(value, list | tuple) else str(value)


def _together(runs: Sequence[Run], names: Sequence[str]) -> Part:
    """Return the settings that differ, and a table of medians for each metric."""
    settings = []
    for name in sorted({name for run in runs for name in run.settings}):
        values = [plain(run.settings.get(name, "–")) for run in runs]
        if len(set(values)) > 1:
            settings.append([name, *values])
    by_run = [{(row.metric, row.model): row for row in run.comparisons} for run in runs]
    every = dict.fromkeys(model for run in runs for model in run.models)
    tables = []
    for metric in runs[0].metrics:  # of the first: an archive may lack some
        lines = []
        for model in every:
            found = [rows.get((metric.name, model)) for rows in by_run]
            texts = ["–" if row is None else number(row.score[1]) for row in found]
            for k, row in enumerate(found):
                if row is not None and row.difference is not None:
                    texts[k] += f" ({difference(row.difference)})"
            lines.append([runs[0].model_title(model), *texts])
        tables.append({"title": capital(runs[0].score_title(metric.name)), "rows": lines})
    return {"names": list(names), "settings": settings, "tables": tables}
