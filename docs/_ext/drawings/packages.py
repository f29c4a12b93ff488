"""Draw the packages from the import graph: an arrow leads from the importer to the imported."""

from __future__ import annotations

import sys
from collections import Counter
from pathlib import Path

from matplotlib import rcParams
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import FancyArrowPatch, FancyBboxPatch

sys.path.append(str(Path(__file__).parents[3] / "tests"))  # the test of imports has the graph

from import_graph import RULES, edges, modules, package

# Packages drawn as one box, and the places of the boxes; others are drawn on the side.
GROUPS = dict.fromkeys(RULES, "rules")
GROUPS |= dict.fromkeys(("functional", "init", "penalties"), "functions")
GROUPS |= {"__main__": "cli", "": "public names"}
PLACES = {
    "rules": (2, 0),
    "ops": (2, 1),
    "functions": (2, 2),
    "nn": (2, 3),
    "mpca": (2, 4),
    "surgery": (2, 5),
    "public names": (2, 6),
    "studies": (2, 7),
    "bench": (0.2, 8),
    "cli": (2, 9),
    "keras": (3.8, 6),
}


def group(module: str) -> str:
    return GROUPS.get(package(module), package(module))


def imports() -> Counter[tuple[str, str]]:
    """How many imports lead from one group to another."""
    found = Counter((group(a), group(b)) for a, b in edges())
    return Counter({pair: count for pair, count in found.items() if pair[0] != pair[1]})


def draw() -> Figure:
    colours = rcParams["axes.prop_cycle"].by_key()["color"]
    found = imports()
    sizes = Counter(group(".".join(name)) for _, name, _ in modules() if name)
    names = {*sizes, *(name for pair in found for name in pair)}
    places = PLACES | {name: (3.6, 4 + k) for k, name in enumerate(sorted(names - {*PLACES}))}
    figure = Figure(figsize=(6.6, 7.6), layout="none")
    axes = figure.add_axes((0, 0, 1, 1))
    axes.set(xlim=(-0.5, 4.5), ylim=(-0.4, 9.4))
    axes.set_axis_off()
    for (source, target), count in found.items():
        _arrow(axes, places[source], places[target], count, colours[-1])
    for name in sorted(names):
        x, y = places[name]
        colour = colours[2 if name == "keras" else 1 if y >= 7 else 0]
        box = FancyBboxPatch((x - 0.52, y - 0.22), 1.04, 0.44, boxstyle="round,pad=0.04")
        box.set(facecolor=colour, alpha=0.25, edgecolor=colour, linewidth=1.5)
        axes.add_patch(box)
        count = sizes.get(name, 0)
        text = name if not count else f"{name}\n{count} {'file' if count == 1 else 'files'}"
        axes.text(x, y, text, ha="center", va="center", fontsize=9.5)
    return figure


def _arrow(
    axes: Axes, start: tuple[float, float], end: tuple[float, float], count: int, colour: str
) -> None:
    """Draw it straight to the next box or to another column; around the boxes in between."""
    (x0, y0), (x1, y1) = start, end
    rise = y0 - y1
    if rise <= 0:
        raise ValueError(f"Expected imports to lead downward, got one from {start} to {end}.")
    bend = 0.0
    if x0 == x1 and rise > 1:
        side = 1 if (y0 + y1) % 2 else -1
        x0, x1 = x0 + 0.56 * side, x1 + 0.56 * side
        bend = -side * 1.7 * (0.2 + 0.1 * rise) / rise  # so far beside the boxes
    else:
        y0, y1 = y0 - 0.27, y1 + 0.27
    arrow = FancyArrowPatch(
        (x0, y0),
        (x1, y1),
        connectionstyle=f"arc3,rad={bend}",
        arrowstyle="-|>",
        mutation_scale=9,
        linewidth=0.6 + 0.4 * min(count, 12) ** 0.5,
        color=colour,
        alpha=0.75,
    )
    axes.add_patch(arrow)
