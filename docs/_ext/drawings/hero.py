"""Draw three rows of the benchmark's table in performance.md as bars, for README and start page.

``python docs/_ext/drawings/hero.py`` writes the README's two files, for light and dark pages.
"""

from __future__ import annotations

import sys
from pathlib import Path

from matplotlib import rc_context, rcParams
from matplotlib.figure import Figure

EXTENSIONS = Path(__file__).parents[1]
IMAGES = EXTENSIONS.parent / "images"
sys.path.append(str(EXTENSIONS))

import svg  # noqa: E402

from drawings.speed import NAMES, relative, rows  # noqa: E402

INKS = {"light": "#1f2328", "dark": "#e6edf3"}
# The benchmark's cases, the shapes in words, and the layer that stood in each place.
PLACES = {
    "Kvasir-64 up": ("Up-sampling, 512×8×8 → 512×16×16", "ConvTranspose2d"),
    "Kvasir-64": ("Pooling, 512×16×16 → 512×8×8", "MaxPool2d"),
    "chest": ("Channels, 1024×5×5 → 64×5×5", "1×1 convolution"),
}
OTHERS = {"geotorch": "geotorch", "textbook": "autograd through an SVD"}


def bars() -> list[list[tuple[str, float]]]:
    """Return by place the names and their times relative to this layer's, in NCHW."""
    found = {row["case"]: relative(row) for row in rows() if row["format"] == "NCHW"}
    return [
        [
            ("TensorProjection", 1.0),
            (replaced, found[case][NAMES[0]]),
            *((OTHERS[name], found[case][name]) for name in OTHERS if name in found[case]),
        ]
        for case, (_, replaced) in PLACES.items()
    ]


def label(value: float) -> str:
    """Return as many digits as the table has.

    >>> label(33.3), label(3.33)
    ('30×', '3.3×')
    """
    return f"{float(f'{value:.1g}'):.0f}×" if value >= 10 else f"{value:.1f}×"


def draw() -> Figure:
    colours = rcParams["axes.prop_cycle"].by_key()["color"]
    groups = bars()
    figure = Figure(figsize=(8.3, 4.2), layout="constrained")
    axes = figure.subplots()
    y, ticks = 0.0, []
    for (title, _), group in zip(PLACES.values(), groups, strict=True):
        axes.text(0, y, title, fontsize=11, weight="bold", va="center")
        for name, value in group:
            y += 1
            axes.barh(y, value, 0.72, color=colours[0 if name == "TensorProjection" else -1])
            axes.text(value + 0.25, y, label(value), va="center", fontsize=11)
            ticks.append((y, name))
        y += 1.6
    axes.set_yticks([y for y, _ in ticks], [name for _, name in ticks], fontsize=11)
    axes.tick_params(length=0)
    axes.set_xticks([])
    axes.set_ylim(y - 1, -1.1)
    axes.spines[:].set_visible(False)
    axes.margins(x=0.06)
    axes.set_title("Forward and backward pass: time relative to TensorProjection", fontsize=11)
    return figure


def main() -> None:
    with rc_context(fname=EXTENSIONS.parent / "_style" / "matplotlibrc"):
        drawn = svg.of_figure(draw())
    for theme, ink in INKS.items():
        text = drawn.replace(svg.INK, ink)
        (IMAGES / f"speed-{theme}.svg").write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
