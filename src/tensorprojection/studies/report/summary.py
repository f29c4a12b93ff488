"""The paper's model tables, computed from the networks themselves (sections 3.1.2, 3.2.2, 3.3.2).

A row is a layer under the paper's name for it, with its activation, the shape it gives with
channels last, and its parameters. Footnotes say where the paper prints something else.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any, Literal

import torch
from rich import box, table, text
from rich.console import Group

from ..config import resolve
from ..models.layer_rows import ModelTable
from ..study import Study


def tables(study: Study[Any], **settings: Any) -> list[ModelTable]:
    """A table for every form of the study's network.

    >>> from ..chest import CHEST
    >>> [(table.form, table.total) for table in tables(CHEST)]
    [('base', 476484), ('tpl', 476420), ('tpl-mpca', 476420), ('tcl', 476420)]

    Args:
        study: whose networks.
        settings: those that change the networks, such as ``size``; the paper's unless given.
    """
    preset = "paper" if "paper" in study.presets else None
    config = resolve(study, preset, None, settings)
    # Nothing is computed on the meta device, shapes apart; the largest U-Net takes no time there.
    with torch.device("meta"), torch.random.fork_rng(devices=[]):
        return list(study.tables(config))


def render(tables: Sequence[ModelTable]) -> Group:
    """The tables one below the other, with their footnotes, for a rich console."""
    notes = list(dict.fromkeys(row.note for t in tables for row in t.rows if row.note))
    footnotes = (text.Text(f"[{k}] {note}") for k, note in enumerate(notes, start=1))
    return Group(*(_render(t, notes) for t in tables), *footnotes)


def _render(shown: ModelTable, notes: Sequence[str]) -> table.Table:
    # Narrow enough for 80 columns with the U-Net's longest names.
    result = table.Table(
        title=shown.title, title_justify="left", box=box.SIMPLE_HEAD, pad_edge=False
    )
    for title in ("Layer (activation)", "Name", "Output shape", "Param #"):
        justify: Literal["left", "right"] = "right" if title == "Param #" else "left"
        result.add_column(title, justify=justify, no_wrap=True)
    for row in shown.rows:
        mark = f" [{notes.index(row.note) + 1}]" if row.note else ""
        result.add_row(
            text.Text(row.layer + mark),
            row.name,
            f"({', '.join(map(str, ('n', *row.output)))})",
            "-" if row.parameters is None else f"{row.parameters:,}",
        )
    result.add_section()
    result.add_row("Total", "", "", f"{shown.total:,}")
    return result


def as_json(tables: Sequence[ModelTable]) -> str:
    """The tables as JSON: a list of objects with study, form, title, rows and total."""
    return json.dumps([{**asdict(t), "total": t.total} for t in tables], indent=1)
