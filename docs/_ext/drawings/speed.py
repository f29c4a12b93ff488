"""The benchmark's table in performance.md as a chart: times relative to this layer's."""

from __future__ import annotations

import re
from pathlib import Path

from matplotlib import rcParams
from matplotlib.figure import Figure

PAGE = Path(__file__).parents[2] / "performance.md"
INK = "#0a0b0c"
NAMES = ("the layer it replaces", "textbook", "TCL", "geotorch")


def rows() -> list[dict[str, str]]:
    """The table, by its headings."""
    lines = re.findall(r"^\| .*\|$", PAGE.read_text(encoding="utf-8"), re.M)
    cells = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]
    first = next(i for i, line in enumerate(cells) if line[:2] == ["case", "format"])
    found = []
    for line in cells[first + 2 :]:
        if len(line) != len(cells[first]) or line[1] not in ("NCHW", "NHWC"):
            break
        found.append(dict(zip(cells[first], line, strict=True)))
    return found


def relative(row: dict[str, str]) -> dict[str, float]:
    """Medians of the times relative to this layer's; what a cell leaves empty is not there."""
    columns = ("to what it replaces", "textbook / this", "TCL / this", "geotorch / this")
    found = {}
    for name, column in zip(NAMES, columns, strict=True):
        number = re.match(r"[\d.]+", row[column])
        if number:
            value = float(number[0])
            found[name] = 1 / value if column == columns[0] else value
    return found


def draw() -> Figure:
    colours = dict(zip(NAMES, rcParams["axes.prop_cycle"].by_key()["color"], strict=False))
    table = rows()
    figure = Figure(figsize=(8, 5.2), layout="constrained")
    panels = figure.subplots(1, 2, sharey=True, sharex=True)
    for panel, memory_format in zip(panels, ("NCHW", "NHWC"), strict=True):
        chosen = [row for row in table if row["format"] == memory_format]
        for y, row in enumerate(chosen):
            for k, name in enumerate(NAMES):
                value = relative(row).get(name)
                if value is not None:
                    place = y + 0.2 * k - 0.3
                    panel.barh(place, value - 1, 0.18, left=1, color=colours[name])
        panel.axvline(1, color=INK, linewidth=1.5)
        panel.set_yticks(range(len(chosen)), [row["case"] for row in chosen])
        panel.set(xscale="log", title=memory_format, xlabel="time relative to this layer's")
        panel.set_xticks([1, 3, 10, 30], ["1×", "3×", "10×", "30×"])
        panel.set_xticks([], minor=True)
        panel.grid(axis="x")
    panels[0].invert_yaxis()
    handles = [panels[0].barh(0, 0, color=colour) for colour in colours.values()]
    figure.legend(handles, colours, loc="outside lower center", ncols=4)
    return figure
