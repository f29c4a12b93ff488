"""Drawings inside of a page: their text has the page's colour, in light and in dark."""

from __future__ import annotations

import io
import re
from html import escape

from matplotlib.figure import Figure

INK = "#0a0b0c"  # as in _style/matplotlibrc


def of_figure(figure: Figure) -> str:
    """A figure as SVG."""
    stream = io.StringIO()
    figure.savefig(stream, format="svg", metadata={"Date": None}, bbox_inches="tight")
    return stream.getvalue()


def inline(svg: str, alt: str, name: str) -> str:
    """An SVG file's text as an element of a page.

    Args:
        svg: the file's text.
        alt: what it shows, in words.
        name: one that no other drawing of the page has: an SVG's own names would be the page's.
    """
    svg = svg[svg.index("<svg") :]
    svg = re.sub(r"<metadata>.*?</metadata>", "", svg, flags=re.DOTALL)
    svg = re.sub(r'\bid="([^"]+)"', rf'id="{name}-\1"', svg)
    svg = re.sub(r'href="#([^"]+)"', rf'href="#{name}-\1"', svg)
    svg = re.sub(r"url\(#([^)]+)\)", rf"url(#{name}-\1)", svg)
    svg = svg.replace(INK, "currentColor")
    label = escape(" ".join(alt.split()), quote=True)
    return svg.replace("<svg", f'<svg class="drawing" role="img" aria-label="{label}"', 1)
