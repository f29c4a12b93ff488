"""``report.html``: a run as one page that needs nothing else."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from datetime import timedelta
from importlib.resources import files
from pathlib import Path
from typing import Any

import numpy as np
from jinja2 import Environment, PackageLoader, StrictUndefined

from ..errors import StudyError
from ..files import write_whole
from ..training.metrics import TRAIN_LOSS
from . import charts
from .pictures import heat_map, low_pass, outlined, overlap, photo
from .run import Run
from .statistics import BASE
from .tables import best_first, capital, count, headline, notes, number, tables, trials_of
from .verdicts import RULE, UNDECIDED, verdicts

PAGE = "report.html"
MOST_ON = 5  # networks whose curves are shown at first
CHANNELS = "1"  # the mode that has no order, and so no frequencies

Part = dict[str, Any]


def write(run: Run, out: Path) -> Path:
    """Write the page of the run into a folder; returns the file."""
    content, path = as_html(run), out / PAGE
    try:
        out.mkdir(parents=True, exist_ok=True)
        write_whole(path, content.encode())
    except OSError as error:
        raise StudyError(f"Could not write {path}: {error.strerror or error}.") from None
    return path


def as_html(run: Run) -> str:
    """Return the page. All texts from data are escaped: they are shown, and never run."""
    found, held_out = tables(run), run.held_out is not None
    drawn = {} if held_out else charts.charts_of(run)
    judged = verdicts(run)
    forms, why = run.layers
    best = [row.model for row in best_first(run, run.metrics[0].name) if row.model != BASE]
    on = [*(model for model in run.models if model == BASE), *best][:MOST_ON]
    return _rendered(
        "page",
        title=run.title,
        held_out=held_out,
        about=_about(run),
        headline=headline(run),
        networks=[
            {"title": run.model_title(model), "colour": colour, "dash": dash, "on": model in on}
            for model, (colour, dash, _) in charts.looks(run).items()
        ],
        scores=[table for table in found if table.texts == 1],
        classes=[table for table in found if table.texts > 1],
        notes=notes(run),
        charts=drawn,
        measured=[m.name for m in run.metrics if m != TRAIN_LOSS],
        confusions=_confusions(run),
        gallery=_gallery(run),
        matrices=_matrices(run),
        forms=forms,
        form_titles={t.form: f"{capital(run.model_title(t.form))} ({t.form})" for t in forms},
        footnotes=list(dict.fromkeys(row.note for t in forms for row in t.rows if row.note)),
        why=why,
        facts=_facts(run),
        settings=[(name, plain(value)) for name, value in sorted(run.settings.items())],
        decided=[one for one in judged if one.tested and one.word != UNDECIDED],
        undecided=[one for one in judged if one.tested and one.word == UNDECIDED],
        untested=[one for one in judged if not one.tested],
        rule=RULE,
        data={"specs": drawn, "config": charts.template("config")},
        vega=charts.script(),
    )


def _rendered(template: str, **parts: Any) -> str:
    environment = Environment(
        loader=PackageLoader(__package__, "."),
        autoescape=True,
        trim_blocks=True,
        lstrip_blocks=True,
        undefined=StrictUndefined,
    )
    environment.filters["capitalize_first"] = capital
    style = files(__package__).joinpath("page.css").read_text(encoding="utf-8")
    return environment.get_template(f"{template}.html.jinja").render(style=style, **parts)


def write_several(runs: Sequence[Run], out: Path) -> Path:
    """Write the panels of several runs of one study, and a page with these and their scores."""
    charts.draw(charts.overview(runs), out / "figures" / "overview")
    names = [run.folder.resolve().name for run in runs]
    apart = []
    for name in runs[0].settings:
        values = [plain(run.settings.get(name)) for run in runs]
        if len(set(values)) > 1:
            apart.append([name, *values])
    path = out / PAGE
    content = _rendered(
        "several",
        title=f"Comparison of {len(runs)} runs",
        names=names,
        apart=apart,
        overview=(out / "figures" / "overview.svg").read_text(encoding="utf-8"),
        runs=[(_about(run), headline(run), tables(run)[0]) for run in runs],
    )
    write_whole(path, content.encode())
    return path


def _about(run: Run) -> str:
    """Return the data, trials and date of a run in one line."""
    found = [f"Data: {run.config.data}", trials_of(run)]
    if run.held_out is None:
        found.append(f"epochs: {run.epochs[-1]} of {run.config.epochs} planned")
    found.append(str(run.started.get("started", ""))[:10] or "date not recorded")
    return " · ".join(found)


def _confusions(run: Run) -> list[Part]:
    """Return counts over all trials at their last epoch."""
    found = []
    for model, trials in run.observed.items():
        counted = [seen["confusion_matrix"] for seen in trials if "confusion_matrix" in seen]
        if not counted:
            continue
        whole, names = np.sum(counted, axis=0), [*map(str, trials[0]["class_names"])]
        with np.errstate(invalid="ignore"):  # a class that is not there
            shares = whole / whole.sum(axis=1)[:, None]
        names = names if len(names) == len(whole) else [f"class {k}" for k in range(len(whole))]
        title = f"{run.model_title(model)} ({count(len(counted), 'trial')})"
        rows = list(zip(names, whole.tolist(), shares.tolist(), strict=True))
        found.append({"title": title, "classes": names, "rows": rows})
    return found


def _gallery(run: Run) -> list[Part]:
    """Return predictions of the first trial that has some: not one chosen by its scores."""
    found = []
    for model, trials in run.observed.items():
        seen = next((seen for seen in trials if "predictions" in seen), None)
        if seen is None:
            continue
        arrays = (seen[name] for name in ("dice", "images", "masks", "predictions"))
        pictures = [
            (f"{which}: Dice {dice:.3f}", photo(image), outlined(image, mask, prediction))
            for which, dice, image, mask, prediction in zip(
                ("best", "median", "worst"), *arrays, strict=True
            )
        ]
        epoch = "" if run.held_out else f", epoch {int(seen['epoch'])}"
        found.append({"title": f"{run.model_title(model)}{epoch}", "pictures": pictures})
    return found


def _matrices(run: Run) -> list[Part]:
    """Return every U at the init and at the end of the first trial, with numbers of all trials."""
    found = []
    for model, trials in run.observed.items():
        for name in trials[0] if trials else ():
            end = name.replace("start/", "U/", 1)
            there = [seen for seen in trials if name in seen and end in seen]
            if not name.startswith("start/") or not there:
                continue
            pairs = [(seen[name].astype(float), seen[end].astype(float)) for seen in there]
            (first, last), (_, layer, mode) = pairs[0], name.split("/")
            top, (p, q) = float(max(np.abs(first).max(), np.abs(last).max())), first.shape
            about = f"{run.model_title(model)}: {layer}, mode {mode} ({p} × {q}), ±{number(top)}. "
            if mode != CHANNELS:
                shares = np.median([[low_pass(U) for U in pair] for pair in pairs], axis=0)
                low, high = (f"{100 * share:.0f} %" for share in shares)
                about += f"Low-pass share {low} → {high} ({100 * q / p:.0f} % by chance). "
            left = 100 * np.median([overlap(*pair) for pair in pairs])
            about += f"{left:.1f} % of the first subspace left."
            pictures = {"init": heat_map(first.T, top), "end": heat_map(last.T, top)}
            found.append(
                {"about": about, "epoch": int(there[0]["epoch"]), "wide": p > 64, **pictures}
            )
    return found


def _facts(run: Run) -> list[tuple[str, str]]:
    """Return the folder, trials, data, code, machine and time of a run."""
    facts = {"Folder": run.folder, "Data": run.config.data, "Trials": trials_of(run)}
    facts |= {"Code": "; ".join(run.codes) or "not recorded"}
    for name, value in run.started.items():
        if name not in ("settings", "code"):
            facts[name.capitalize()] = shlex.join(value) if name == "command" else value
    if run.seconds is not None:
        whole = round(sum(float(np.nansum(own)) for own in run.seconds.values()))
        each = {m: number(float(np.nanmedian(own))) for m, own in run.seconds.items()}
        facts["Time of training"] = f"{timedelta(seconds=whole)} hours, all processes"
        facts["Seconds for an epoch"] = {run.model_title(m): own for m, own in each.items()}
    return [(name, plain(value)) for name, value in facts.items()]


def plain(value: Any) -> str:
    """Return a setting or a record as text."""
    if isinstance(value, dict):
        return ", ".join(f"{name} {plain(one)}" for name, one in value.items())
    return ", ".join(map(plain, value)) if isinstance(value, list | tuple) else str(value)
