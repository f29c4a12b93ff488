"""What `replace` and `fold_projections` report: what was done to each module, as a table."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ..shapes import Shape

THE_MODEL = "(the model)"  # the name of a module that is the whole model


@dataclass(frozen=True)
class Replacement:
    """One module that was replaced."""

    name: str
    was: str
    now: str
    in_shape: Shape
    out_shape: Shape
    parameters_before: int
    parameters_after: int
    note: str = ""


@dataclass(frozen=True)
class SkippedModule:
    """One module that was chosen but could not be replaced, and why."""

    name: str
    reason: str


@dataclass(frozen=True)
class ReplaceReport:
    """What :func:`replace` changed; ``print`` shows it as a table.

    The counts of parameters are those of the whole model.
    """

    changes: tuple[Replacement, ...]
    skipped: tuple[SkippedModule, ...]
    parameters_before: int
    parameters_after: int

    def __str__(self) -> str:
        rows = [
            [
                change.name or THE_MODEL,
                change.was,
                f"{change.in_shape} -> {change.out_shape}",
                f"{change.parameters_before:,} -> {change.parameters_after:,}",
                change.note,
            ]
            for change in self.changes
        ]
        parts = [_table(["replaced", "was", "shapes", "parameters", ""], rows)]
        parts += [f"kept {skip.name}: {skip.reason}" for skip in self.skipped]
        parts.append(
            f"parameters of the model: {self.parameters_before:,} -> {self.parameters_after:,}"
        )
        return "\n".join(parts)


@dataclass(frozen=True)
class FoldStep:
    """What became of one projection when its model was folded."""

    name: str
    in_shape: Shape
    out_shape: Shape
    became: str


@dataclass(frozen=True)
class FoldReport:
    """What :func:`fold_projections` did; ``print`` shows it as a table.

    Args:
        steps: one per projection, in the order of the graph.
        parameters_before: of the model.
        parameters_after: of the folded model, its constants included.
        difference: the largest difference of the outputs for the example.
    """

    steps: tuple[FoldStep, ...]
    parameters_before: int
    parameters_after: int
    difference: float

    def __str__(self) -> str:
        rows = [[s.name, f"{s.in_shape} -> {s.out_shape}", s.became] for s in self.steps]
        return "\n".join(
            [
                _table(["folded", "shapes", "became"], rows),
                f"parameters of the model: {self.parameters_before:,} -> {self.parameters_after:,}",
                f"largest difference of the example's outputs: {self.difference:.1e}",
            ]
        )


def _table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A table as text: left-aligned columns, two spaces apart."""
    lines = [head, *rows]
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    return "\n".join(
        "  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip()
        for line in lines
    )
