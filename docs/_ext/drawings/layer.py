"""What the layer does: a tensor, a matrix for each of its axes, and a smaller tensor."""

from __future__ import annotations

from matplotlib import rcParams
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import FancyArrowPatch, Polygon, Rectangle

INK = "#0a0b0c"
DEPTH = (0.45, 0.45)  # how the third axis runs on paper


def draw() -> Figure:
    blue, orange, green = rcParams["axes.prop_cycle"].by_key()["color"][:3]
    figure = Figure(figsize=(8.4, 2.65), layout="none")
    axes = figure.add_axes((0, 0, 1, 1))
    axes.set(xlim=(0, 16.8), ylim=(0.2, 5.5), aspect="equal")
    axes.set_axis_off()
    _box(axes, (0.9, 1.2), (2.2, 2.2, 2.2), (blue, orange, green))
    axes.text(2.5, 5.15, "input, 32 × 12 × 12", ha="center", fontsize=11)
    _label(axes, (1.5, 0.75), "12", blue)
    _label(axes, (0.55, 2.3), "12", orange)
    _label(axes, (3.85, 1.35), "32", green)
    sizes = [(0.9, 1.7, "$U_3^{\\top}$: 6 × 12", blue), (0.9, 1.7, "$U_2^{\\top}$: 6 × 12", orange)]
    sizes.append((1.2, 2.0, "$U_1^{\\top}$: 20 × 32", green))
    x = 5.6
    for height, width, text, colour in sizes:
        rectangle = Rectangle((x, 2.3 - height / 2), width, height)
        rectangle.set(facecolor=colour, alpha=0.35, edgecolor=colour)
        axes.add_patch(rectangle)
        axes.text(x + width / 2, 3.35, text, ha="center", fontsize=10)
        x += width + 0.45
    axes.text(8.5, 0.75, "one small matrix per axis, learned,\nwith orthonormal rows", ha="center",
              va="center", fontsize=10)  # fmt: skip
    for start, end in ((4.4, 5.4), (12.15, 13.15)):
        arrow = FancyArrowPatch((start, 2.3), (end, 2.3), arrowstyle="-|>", mutation_scale=14)
        arrow.set(color=INK)
        axes.add_patch(arrow)
    _box(axes, (13.7, 1.7), (1.1, 1.1, 1.38), (blue, orange, green))
    axes.text(14.7, 5.15, "output, 20 × 6 × 6", ha="center", fontsize=11)
    _label(axes, (14.25, 1.25), "6", blue)
    _label(axes, (13.4, 2.25), "6", orange)
    _label(axes, (15.4, 1.7), "20", green)
    return figure


def _label(axes: Axes, where: tuple[float, float], text: str, colour: str) -> None:
    axes.text(*where, text, ha="center", va="center", fontsize=10, color=colour, weight="bold")


def _box(
    axes: Axes,
    corner: tuple[float, float],
    sizes: tuple[float, float, float],
    colours: tuple[str, str, str],
) -> None:
    """A box whose edges have the colours of their axes."""
    (x, y), (width, height, depth) = corner, sizes
    dx, dy = DEPTH[0] * depth, DEPTH[1] * depth
    front = [(x, y), (x + width, y), (x + width, y + height), (x, y + height)]
    back = [(a + dx, b + dy) for a, b in front]
    grey = rcParams["axes.prop_cycle"].by_key()["color"][-1]
    for face, alpha in (
        (front, 0.30),
        ([front[3], front[2], back[2], back[3]], 0.18),
        ([front[1], back[1], back[2], front[2]], 0.42),
    ):
        axes.add_patch(Polygon(face, facecolor=grey, alpha=alpha, edgecolor="none"))
    along, up, away = colours
    for a, b, colour in (
        (front[0], front[1], along),
        (front[3], front[2], along),
        (back[3], back[2], along),
        (front[0], front[3], up),
        (front[1], front[2], up),
        (back[1], back[2], up),
        (front[1], back[1], away),
        (front[2], back[2], away),
        (front[3], back[3], away),
    ):
        axes.plot(*zip(a, b, strict=True), color=colour, linewidth=2.2, solid_capstyle="round")
