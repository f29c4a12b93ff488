"""What the layer does: a tensor, a matrix for each of its axes, and a smaller tensor."""

from __future__ import annotations

from matplotlib import rcParams
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import FancyArrowPatch, Polygon, Rectangle

INK = "#0a0b0c"
DEPTH = (0.45, 0.45)  # how the third axis runs on paper


def draw() -> Figure:
    """Draw narrowly: the whole is shown on a phone, with its text still legible."""
    blue, orange, green = rcParams["axes.prop_cycle"].by_key()["color"][:3]
    figure = Figure(figsize=(5.2, 2.7), layout="none")
    axes = figure.add_axes((0, 0, 1, 1))
    axes.set(xlim=(0, 10.4), ylim=(0.1, 5.5), aspect="equal")
    axes.set_axis_off()
    _box(axes, (0.6, 1.3), (2.0, 2.0, 2.0), (blue, orange, green))
    axes.text(1.95, 5.1, "32 × 12 × 12", ha="center", fontsize=11)
    _label(axes, (1.6, 0.85), "12", blue)
    _label(axes, (0.25, 2.3), "12", orange)
    _label(axes, (3.3, 1.45), "32", green)
    sizes = [(1.0, 1.9, "$U_1^{\\top}$  20 × 32", green)]
    sizes += [
        (0.75, 1.5, "$U_2^{\\top}$  6 × 12", orange),
        (0.75, 1.5, "$U_3^{\\top}$  6 × 12", blue),
    ]
    y = 4.75
    for height, width, text, colour in sizes:
        rectangle = Rectangle((5.55 - width / 2, y - height), width, height)
        rectangle.set(facecolor=colour, alpha=0.35, edgecolor=colour)
        axes.add_patch(rectangle)
        axes.text(5.55, y - height / 2, text, ha="center", va="center", fontsize=9.5)
        y -= height + 0.3
    axes.text(5.55, 0.7, "learned, orthonormal rows", ha="center", fontsize=10)
    for start, end in ((3.75, 4.5), (6.6, 7.35)):
        arrow = FancyArrowPatch((start, 2.8), (end, 2.8), arrowstyle="-|>", mutation_scale=14)
        arrow.set(color=INK)
        axes.add_patch(arrow)
    _box(axes, (7.9, 1.9), (1.0, 1.0, 1.25), (blue, orange, green))
    axes.text(8.7, 5.1, "20 × 6 × 6", ha="center", fontsize=11)
    _label(axes, (8.4, 1.5), "6", blue)
    _label(axes, (7.6, 2.4), "6", orange)
    _label(axes, (9.45, 1.95), "20", green)
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
