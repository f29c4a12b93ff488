"""What the page says of one run, part by part, in plain values for the template."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from typing import Any

import numpy as np

from ...config import own_settings
from ...errors import StudyError
from ...observed import CHOSEN
from ..curves import BASE
from ..summary import tables
from ..table import notes
from . import numbers
from .charts import difference_charts, looks, metric_charts, observed_charts
from .matrices import last_row, matrices
from .numbers import shown
from .pictures import outlined, photo
from .runs import Run
from .verdicts import RULE, WORDS, verdicts

Part = dict[str, Any]


def run_view(run: Run, key: str, name: str) -> Part:
    """All parts. ``key`` is the run's in the page, ``name`` what it is called there."""
    curves = run.curves
    found = numbers.differences(curves)
    styles = looks(curves.models)
    judged = verdicts(curves, curves.study.claims)
    return {
        "key": key,
        "name": name,
        "title": curves.title,
        "held_out": curves.held_out is not None,
        "facts": _facts(run),
        "settings": [(n, _plain(v)) for n, v in sorted(run.settings.items())],
        "samples": _samples(run),
        "networks": _networks(run),
        "models": [{"name": m, "title": curves.model_title(m), **styles[m]} for m in curves.models],
        "claims": [
            {"text": v.claim.text, "word": v.word, "evidence": v.evidence, "heard": v.heard}
            for v in judged
        ],
        "counted": ", ".join(
            f"{count} {word}" for word in WORDS if (count := sum(v.word == word for v in judged))
        ),
        "rule": RULE,
        "scores": _scores(run),
        "notes": notes(curves, [score.row for score in numbers.scores(curves)]),
        "differences": _differences(run, found),
        "reaches": _reaches(run),
        "confusions": _confusions(run),
        "segments": bool(run.samples and run.samples.masks is not None)
        or curves.study.images.masks,
        "gallery": _gallery(run),
        "matrices": matrices(run),
        "seconds": _seconds(run),
        "kept": list(run.kept),
        "charts": {
            "metrics": metric_charts(curves),
            "differences": {
                reference: difference_charts(curves, found, reference)
                for reference in numbers.references(curves)
            },
            "observed": observed_charts(run),
        },
    }


def _plain(value: Any) -> str:
    return ", ".join(map(str, value)) if isinstance(value, list | tuple) else str(value)


def _facts(run: Run) -> list[tuple[str, str]]:
    """What was run, on what, by what, and how long."""
    curves, settings = run.curves, run.settings
    done = {curves.model_title(m): curves.count(m) for m in curves.models}
    same = len(set(done.values())) == 1
    trials = (
        str(next(iter(done.values()))) if same else "; ".join(f"{k}: {v}" for k, v in done.items())
    )
    facts = [
        ("Folder", str(run.folder)),
        ("Networks", ", ".join(done)),
        ("Trials", f"{trials} of {curves.config.trials} planned"),
    ]
    if curves.held_out is not None:
        count = f", {sum(run.samples.counts):,} images" if run.samples else ""
        return [*facts, ("Data", f"{curves.config.data}{count}")]
    facts.append(("Epochs", f"{curves.epochs[-1]} of {settings.get('epochs', '?')} planned"))
    if not run.starts:
        return [*facts, ("Data and machine", "not recorded")]
    first, last = run.starts[0], run.starts[-1]
    machine, versions = last.get("machine", {}), last.get("versions", {})
    gpu = f", {machine['gpu']}" if machine.get("gpu") else ""
    facts += [
        ("Data", str(first.get("images", "not recorded"))),
        ("Command", " ".join(map(str, first.get("command", ["not recorded"])))),
        ("Started", ", ".join(str(start.get("started", "?")) for start in run.starts)),
        (
            "Machine",
            f"{machine.get('system', '?')}, {machine.get('cores', '?')} cores{gpu}; "
            f"processes: {last.get('jobs', '?')}, threads of each: {last.get('threads', '?')}",
        ),
        ("Versions", ", ".join(f"{name} {number}" for name, number in versions.items())),
        ("Code", "; ".join(curves.codes) or "not recorded"),
    ]
    if unreadable := first.get("unreadable", {}).get("count"):
        facts.append(("Unreadable files", f"{unreadable} left out"))
    if run.seconds is not None and run.seconds["seconds"].sum():
        whole = timedelta(seconds=round(float(run.seconds["seconds"].sum())))
        facts.append(("Time of training", f"{whole} hours, all processes together"))
    return facts


def _samples(run: Run) -> list[Part]:
    samples = run.samples
    if samples is None:
        return []
    found = []
    for label, (name, count) in enumerate(zip(samples.class_names, samples.counts, strict=False)):
        rows = np.flatnonzero(samples.labels == label)
        pictures = []
        for k in rows:
            image = samples.images[k]
            mask = None if samples.masks is None else outlined(image, samples.masks[k])
            pictures.append({"name": samples.names[k], "image": photo(image), "mask": mask})
        found.append({"name": name, "count": count, "pictures": pictures})
    return found


def _networks(run: Run) -> Part:
    """The tables of the run's networks; footnotes are numbered over all of them."""
    study, settings = run.curves.study, run.settings
    names = ("size", *own_settings(study.settings))
    try:
        all_forms = tables(study, **{name: settings[name] for name in names if name in settings})
    except (ValueError, StudyError):  # no network can have such settings; edited by hand
        return {"tables": [], "notes": []}
    made = [t for t in all_forms if t.form in run.curves.models]
    footnotes = list(dict.fromkeys(row.note for t in made for row in t.rows if row.note))
    return {
        "tables": [
            {
                "title": t.title,
                "total": f"{t.total:,}",
                "rows": [
                    {
                        "layer": row.layer,
                        "name": row.name,
                        "output": " × ".join(map(str, row.output)),
                        "parameters": "–" if row.parameters is None else f"{row.parameters:,}",
                        "note": footnotes.index(row.note) + 1 if row.note else None,
                    }
                    for row in t.rows
                ],
            }
            for t in made
        ],
        "notes": footnotes,
    }


def _scores(run: Run) -> list[Part]:
    found = []
    all_scores = numbers.scores(run.curves)
    for metric in run.curves.metrics:
        own = [score for score in all_scores if score.row.metric == metric]
        found.append(
            {
                "title": run.curves.metric_title(metric),
                "last_epoch": own[0].row.last_epoch,
                "rows": [
                    {
                        "title": s.row.title,
                        "trials": s.row.trials,
                        "last": shown(s.row.last_median),
                        "last_interval": _interval(s.last_interval),
                        "last_quartiles": f"{shown(s.row.last_25)}–{shown(s.row.last_75)}",
                        "best": shown(s.row.best_median),
                        "best_quartiles": f"{shown(s.row.best_25)}–{shown(s.row.best_75)}",
                        "best_epoch": s.row.best_epoch,
                        "best_interval": _interval(s.best_interval),
                        "difference": shown(s.row.difference, "+") if s.row.pairs else "",
                        "bootstrap": _interval((s.row.difference_low, s.row.difference_high), "+"),
                        "corrected": _interval((s.row.corrected_low, s.row.corrected_high), "+"),
                        "better": f"{s.row.better} of {s.row.pairs}" if s.row.pairs else "",
                    }
                    for s in own
                ],
            }
        )
    return found


def _interval(ends: tuple[float, float], sign: str = "") -> str:
    return "" if np.isnan(ends).any() else f"{shown(ends[0], sign)} to {shown(ends[1], sign)}"


def _differences(run: Run, found: Sequence[numbers.Difference]) -> Part:
    """The tables below the charts, from the first reference; the charts have all of them."""
    references = numbers.references(run.curves)
    title = run.curves.model_title
    if not references:
        return {"references": [], "tables": []}
    parts = []
    for metric in run.curves.metrics:
        own = [d for d in found if d.metric == metric and d.reference == references[0]]
        rows = [
            {
                "epoch": int(epoch),
                "cells": [
                    {
                        "median": shown(float(d.median[k]), "+"),
                        "interval": _interval((float(d.low[k]), float(d.high[k])), "+"),
                        "ahead": f"{d.ahead[k]} of {d.pairs[k]}",
                    }
                    for d in own
                ],
            }
            for k, epoch in enumerate(run.curves.epochs)
        ]
        titles = [title(d.model) for d in own]
        parts.append({"title": run.curves.metric_title(metric), "titles": titles, "rows": rows})
    named = [{"name": r, "title": title(r)} for r in references]
    return {"references": named, "tables": parts}


def _reaches(run: Run) -> Part:
    found = numbers.reaches(run.curves)
    return {
        "base": run.curves.model_title(BASE),
        "rows": [
            {
                "metric": run.curves.metric_title(r.metric),
                "title": run.curves.model_title(r.model),
                "median": "–" if np.isnan(r.median) else f"{r.median:g}",
                "base": "–" if np.isnan(r.base_median) else f"{r.base_median:g}",
                "reached": f"{r.reached} of {r.trials}",
            }
            for r in found
        ],
    }


def _confusions(run: Run) -> list[Part]:
    """Counts over all trials, at the last epoch that was observed."""
    found = []
    names = run.samples.class_names if run.samples else ()
    for model, trials in run.observed.items():
        counted = [c[last_row(run, t)] for t in trials if (c := t.get("confusion")) is not None]
        if not counted:
            continue
        whole = np.sum(counted, axis=0)
        classes = [str(n) for n in names] if len(names) == len(whole) else _numbered(len(whole))
        shares = whole / np.maximum(whole.sum(axis=1, keepdims=True), 1)
        found.append(
            {
                "title": run.curves.model_title(model),
                "trials": len(counted),
                "classes": classes,
                "rows": [
                    {
                        "name": classes[i],
                        "cells": [
                            {
                                "count": f"{int(whole[i, j]):,}",
                                "share": f"{100 * shares[i, j]:.1f} %",
                                "weight": round(float(shares[i, j]), 3),
                                "right": i == j,
                            }
                            for j in range(len(whole))
                        ],
                    }
                    for i in range(len(whole))
                ],
            }
        )
    return found


def _numbered(count: int) -> list[str]:
    return [f"class {k}" for k in range(count)]


def _gallery(run: Run) -> list[Part]:
    """Of the first trial that has one: which trial is shown is not chosen by its scores."""
    found = []
    for model, trials in run.observed.items():
        first = next((t for t in trials if t.get("predictions") is not None), None)
        if first is None:
            continue
        arrays = first.arrays
        found.append(
            {
                "title": run.curves.model_title(model),
                "epoch": first.epochs[-1],
                "pictures": [
                    {
                        "which": which,
                        "dice": f"{float(arrays['dice'][k]):.3f}",
                        "image": photo(arrays["images"][k]),
                        "drawn": outlined(
                            arrays["images"][k], arrays["masks"][k], arrays["predictions"][k]
                        ),
                    }
                    for k, which in enumerate(CHOSEN)
                ],
            }
        )
    return found


def _seconds(run: Run) -> list[Part]:
    if run.seconds is None:
        return []
    found = []
    for model in run.curves.models:
        own = run.seconds.filter(run.seconds["model"] == model)["seconds"].drop_nulls().to_numpy()
        if len(own):
            low, median, high = np.quantile(own, (0.25, 0.5, 0.75))
            row = {"median": f"{median:.3g}", "low": f"{low:.3g}", "high": f"{high:.3g}"}
            found.append({"title": run.curves.model_title(model), **row})
    return found


def differing(runs: Sequence[Run]) -> list[tuple[str, list[str]]]:
    """The settings in which the runs differ, with what each has."""
    names = sorted({name for run in runs for name in run.settings})
    found = []
    for name in names:
        values = [_plain(run.settings.get(name, "–")) for run in runs]
        if len(set(values)) > 1:
            found.append((name, values))
    return found
