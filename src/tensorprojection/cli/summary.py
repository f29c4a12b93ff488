"""``tpl summary``: the paper's model tables, computed from the networks themselves.

A row is a layer under the paper's name for it (sections 3.1.2, 3.2.2, 3.3.2), with its activation,
its output shape with channels last, and its parameters. Footnotes name the differences from the
paper's tables.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from ..studies.config import RunConfig
from .settings import StudyName, given_settings
from .terminal import table

if TYPE_CHECKING:
    from rich.console import Group, RenderableType

    from ..studies.networks.layer_rows import ModelTable
    from ..studies.study import Study


def of_networks(study: Study[Any], name: str) -> bool:
    """Return True for a setting that changes the networks."""
    if name in RunConfig.model_fields:
        return name in ("size", "models") or (name, study.name) == ("data", "images")
    return study.source is not None or name not in ("copies", "weights")


def summary(study: StudyName, /, **given: Any) -> None:
    """Show the networks of a study, layer by layer, with notes where the paper's tables differ."""
    from rich.console import Console

    from ..studies.registry import import_study

    settings = given_settings(given)
    made = tables(import_study(study).for_data(settings, None), **settings)
    Console(highlight=False).print(render(made))


def tables(study: Study[Any], **settings: Any) -> list[ModelTable]:
    """Return a table for every network of the study, or for the ``models`` among the settings.

    >>> from ..studies.chest import CHEST
    >>> [(table.form, table.total) for table in tables(CHEST)]
    [('base', 476484), ('tpl', 476420), ('tpl-mpca', 476420), ('tcl', 476420), ('gap', 263428)]

    Args:
        study: whose networks.
        settings: those that change the networks, such as ``size``; the paper's unless given.
    """
    from ..studies.config import resolve

    preset = "paper" if "paper" in study.presets else None
    every = {"models": tuple(study.models)}
    return study.tables(resolve(study, preset, None, every | settings))


def render(tables: Sequence[ModelTable]) -> Group:
    """Return the tables one below the other, with their footnotes, for a rich console."""
    from rich.console import Group
    from rich.text import Text

    notes = list(dict.fromkeys(row.note for t in tables for row in t.rows if row.note))
    parts: list[RenderableType] = []
    for shown in tables:
        rows = []
        for row in shown.rows:
            mark = f" [{notes.index(row.note) + 1}]" if row.note else ""
            shape = f"({', '.join(map(str, ('n', *row.output)))})"
            count = "-" if row.parameters is None else f"{row.parameters:,}"
            rows.append((row.layer + mark, row.name, shape, count))
        # Narrow enough for 80 columns with the U-Net's longest names.
        made = table(("Layer (activation)", "Name", "Output shape", "Param #"), rows, texts=3)
        made.add_section()
        made.add_row("Total", "", "", f"{shown.total:,}")
        parts += [Text(shown.title, "italic"), made, Text()]
    return Group(*parts, *(Text(f"[{k}] {note}") for k, note in enumerate(notes, start=1)))
