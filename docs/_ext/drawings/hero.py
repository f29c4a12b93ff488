"""Draw rows of the tables in guide/orthogonal.md and performance.md as bars.

The start page has this drawing. ``python docs/_ext/drawings/hero.py`` writes the README's two
files, for light and dark pages.
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

from drawings import orthogonal  # noqa: E402
from drawings.speed import NAMES, relative, rows  # noqa: E402

INKS = {"light": "#1f2328", "dark": "#e6edf3"}
# The benchmark's cases, the shapes in words, and the layer that stood in each place.
PLACES = {
    "Kvasir-64 up": ("Up-sampling, 512×8×8 → 512×16×16", "ConvTranspose2d"),
    "Kvasir-64": ("Pooling, 512×16×16 → 512×8×8", "MaxPool2d"),
    "chest": ("Channels, 1024×5×5 → 64×5×5", "1×1 convolution"),
}
OTHERS = {"geotorch": "geotorch", "textbook": "SVD and autograd"}


WEIGHT = "64 × 576 (a 3×3 convolution)"
TORCH = {"cayley": "torch, Cayley map", "householder": "torch, Householder"}


def bars() -> dict[str, list[tuple[str, float]]]:
    """Return by title the names and their times relative to the first one's."""
    contenders, weights = orthogonal.times()
    times = dict(zip(contenders, weights[WEIGHT], strict=True))
    own = times["tp.orthogonal"]
    assert own is not None
    groups = {
        f"Orthogonal weight, {WEIGHT.partition(' (')[0]}": [
            ("tp.orthogonal", 1.0),
            *((title, time / own) for name, title in TORCH.items() if (time := times[name])),
        ]
    }
    found = {row["case"]: relative(row) for row in rows() if row["format"] == "NCHW"}
    for case, (title, replaced) in PLACES.items():
        others = [(OTHERS[name], found[case][name]) for name in OTHERS if name in found[case]]
        first = (replaced, digits_of_table(found[case]))
        groups[title] = [("TensorProjection", 1.0), first, *others]
    return groups


def digits_of_table(times: dict[str, float]) -> float:
    """Return the time of the layer that is replaced, with the digits that the table has.

    >>> digits_of_table({NAMES[0]: 1 / 0.03}), digits_of_table({NAMES[0]: 1 / 0.30})
    (30.0, 3.3)
    """
    time = times[NAMES[0]]
    return float(f"{time:.1g}") if time >= 10 else round(time, 1)


def label(value: float) -> str:
    return f"{value:.0f}×" if value >= 10 else f"{value:.1f}×"


def draw(width: float = 4.8) -> Figure:
    """Return the figure; it is narrow for a phone, unless it is for the README."""
    colours = rcParams["axes.prop_cycle"].by_key()["color"]
    figure = Figure(figsize=(width, 5.4), layout="constrained")
    axes = figure.subplots()
    y, ticks = 0.0, []
    for title, group in bars().items():
        axes.text(0, y, title, fontsize=11, weight="bold", va="center")
        for k, (name, value) in enumerate(group):
            y += 1
            axes.barh(y, value, 0.72, color=colours[-1 if k else 0])
            axes.text(value + 0.25, y, label(value), va="center", fontsize=11)
            ticks.append((y, name))
        y += 1.6
    axes.set_yticks([y for y, _ in ticks], [name for _, name in ticks], fontsize=11)
    axes.tick_params(length=0)
    axes.set_xticks([])
    axes.set_ylim(y - 1, -1.1)
    axes.spines[:].set_visible(False)
    axes.margins(x=0.06 * 8.3 / width)
    axes.set_title("Time of a forward and backward pass, relative to ours", fontsize=11)
    return figure


def main() -> None:
    with rc_context(fname=EXTENSIONS.parent / "_style" / "matplotlibrc"):
        drawn = svg.of_figure(draw(width=8.3))
    for theme, ink in INKS.items():
        text = drawn.replace(svg.INK, ink)
        (IMAGES / f"speed-{theme}.svg").write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
