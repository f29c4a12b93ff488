"""The angles in guide/mpca.md as a chart: how far the directions of two batches are apart."""

from __future__ import annotations

import re
from pathlib import Path

from matplotlib import rcParams
from matplotlib.figure import Figure

PAGE = Path(__file__).parents[2] / "guide" / "mpca.md"
ANGLES = re.compile(r"(\d+)° \[(\d+)–(\d+)\]")


def angles() -> tuple[list[int], dict[str, list[tuple[int, ...]]]]:
    """Return the sizes of batches, and by column the median, lower and upper quartile of each."""
    lines = re.findall(r"^\| .*\|$", PAGE.read_text(encoding="utf-8"), re.M)
    cells = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]
    first = next(i for i, line in enumerate(cells) if line[0] == "batch")
    rows = [line for line in cells[first + 2 :] if ANGLES.fullmatch(line[-1])]
    columns = zip(*(line[1:] for line in rows), strict=True)
    values = [[tuple(map(int, ANGLES.findall(cell)[0])) for cell in column] for column in columns]
    return [int(line[0]) for line in rows], dict(zip(cells[first][1:], values, strict=True))


def draw() -> Figure:
    sizes, columns = angles()
    colours = rcParams["axes.prop_cycle"].by_key()["color"]
    figure = Figure(figsize=(7, 3.6), layout="constrained")
    panel = figure.subplots()
    for k, (name, values) in enumerate(columns.items()):
        median, low, high = zip(*values, strict=True)
        style = {"color": colours[k % 2], "linestyle": "--" if k < 2 else "-"}
        panel.plot(sizes, median, marker="os"[k % 2], label=name, **style)
        panel.fill_between(sizes, low, high, color=colours[k % 2], alpha=0.12)
    panel.set(xscale="log", xlabel="images in a batch", ylim=(0, 90))
    panel.set_ylabel("largest angle in degrees")
    panel.set_xticks(sizes, list(map(str, sizes)))
    panel.minorticks_off()
    panel.set_yticks(range(0, 91, 15))
    panel.grid(axis="y")
    figure.legend(loc="outside lower center", ncols=2)
    return figure
