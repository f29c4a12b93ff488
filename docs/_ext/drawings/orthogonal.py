"""The times in guide/orthogonal.md as a chart: those of the others relative to tp.orthogonal's."""

from __future__ import annotations

import re
from pathlib import Path

from matplotlib import rcParams
from matplotlib.figure import Figure

PAGE = Path(__file__).parents[2] / "guide" / "orthogonal.md"
INK = "#0a0b0c"


def times() -> tuple[list[str], dict[str, list[float | None]]]:
    """Return the contenders, and milliseconds per step by weight; None if not timed."""
    lines = re.findall(r"^\| .*\|$", PAGE.read_text(encoding="utf-8"), re.M)
    cells = [[cell.strip(" *") for cell in line.strip("|").split("|")] for line in lines]
    first = next(i for i, line in enumerate(cells) if line[0] == "ms per step")
    rows = {}
    for label, *values in cells[first + 2 :]:
        if len(values) != len(cells[first]) - 1 or not re.match(r"\d|GRU", label):
            break
        rows[label] = [None if value == "–" else float(value) for value in values]
    return cells[first][1:], rows


def draw() -> Figure:
    names, rows = times()
    colours = rcParams["axes.prop_cycle"].by_key()["color"]
    figure = Figure(figsize=(8, 4.2), layout="constrained")
    panel = figure.subplots()
    for y, (own, *others) in enumerate(rows.values()):
        for k, value in enumerate(others):
            if value is not None and own is not None:
                ratio = value / own
                panel.barh(y + 0.2 * k - 0.3, ratio - 1, 0.18, left=1, color=colours[k])
    panel.axvline(1, color=INK, linewidth=1.5)
    panel.set_yticks(range(len(rows)), list(rows))
    panel.set(xscale="log", xlabel=f"time by that of {names[0]}")
    panel.grid(axis="x")
    panel.invert_yaxis()
    handles = [panel.barh(0, 0, color=colours[k]) for k in range(len(names) - 1)]
    figure.legend(handles, names[1:], loc="outside lower center", ncols=4)
    return figure
