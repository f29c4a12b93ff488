"""Columns of text."""

from __future__ import annotations

from collections.abc import Sequence

THE_MODEL = "(the model)"  # the name of a module that is the whole model


def table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A table as text: left-aligned columns, two spaces apart."""
    lines = [head, *rows]
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    return "\n".join(
        "  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip()
        for line in lines
    )
