"""The benchmark's table in performance.md as a chart: times relative to this layer's."""

from __future__ import annotations

import re
from pathlib import Path

from matplotlib import rcParams
from matplotlib.figure import Figure

PAGE = Path(__file__).parents[2] / "performance.md"
INK = "#0a0b0c"
# What the chart calls a contender, and its column.
COLUMNS = {
    "the layer it replaces": "replaced / this",
    "textbook": "textbook / this",
    "TCL": "TCL / this",
    "geotorch": "geotorch / this",
}
NAMES = tuple(COLUMNS)


def rows(task: str = "Training") -> list[dict[str, str]]:
    """The table under that heading, by its column headings."""
    text = PAGE.read_text(encoding="utf-8").split(f"\n### {task}\n")[1]
    lines = re.findall(r"^\| .*\|$", text.split("\n#")[0], re.M)
    head, _, *cells = ([cell.strip() for cell in line.strip("|").split("|")] for line in lines)
    return [dict(zip(head, line, strict=True)) for line in cells]


def relative(row: dict[str, str]) -> dict[str, float]:
    """Medians of the times relative to this layer's; what a cell leaves empty is not there."""
    numbers = {name: re.match(r"[\d.]+", row.get(column, "")) for name, column in COLUMNS.items()}
    return {name: float(number[0]) for name, number in numbers.items() if number}


def draw() -> Figure:
    colours = dict(zip(NAMES, rcParams["axes.prop_cycle"].by_key()["color"], strict=False))
    figure = Figure(figsize=(8, 9.5), layout="constrained")
    tables = [rows("Training"), rows("Inference")]
    counts = [len({row["case"] for row in table}) for table in tables]
    panels = figure.subplots(2, 2, sharey="row", sharex=True, height_ratios=counts)
    for task, table, pair in zip(("training", "inference"), tables, panels, strict=True):
        for panel, last in zip(pair, (False, True), strict=True):
            chosen = [
                row for row in table if (row["format"] in ("NHWC", "NDHWC", "tokens")) == last
            ]
            cases = list(dict.fromkeys(row["case"] for row in table))
            for row in chosen:
                for k, (name, value) in enumerate(relative(row).items()):
                    place = cases.index(row["case"]) + 0.2 * k - 0.3
                    panel.barh(place, value - 1, 0.18, left=1, color=colours[name])
            panel.axvline(1, color=INK, linewidth=1.5)
            panel.set_yticks(range(len(cases)), cases)
            panel.set(xscale="log", title=f"{task}, channels {'last' if last else 'first'}")
            panel.set_xticks([0.1, 0.3, 1, 3, 10, 30], ["0.1×", "0.3×", "1×", "3×", "10×", "30×"])
            panel.set_xticks([], minor=True)
            panel.grid(axis="x")
        pair[0].invert_yaxis()
    for panel in panels[1]:
        panel.set_xlabel("time relative to this layer's")
    handles = [panels[0][0].barh(0, 0, color=colour) for colour in colours.values()]
    figure.legend(handles, colours, loc="outside lower center", ncols=4)
    return figure
