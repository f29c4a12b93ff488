"""Colours can be told from the page, in light and in dark: WCAG's contrast."""

import re
from pathlib import Path

STYLE = Path(__file__).parents[2] / "docs" / "_style" / "matplotlibrc"

GRAPHICS, TEXT = 3.0, 4.5  # WCAG 2.2, 1.4.11 and 1.4.3


def luminance(colour):
    """Of "#rgb" or "#rrggbb", as WCAG defines it."""
    digits = colour.lstrip("#")
    if len(digits) == 3:
        digits = "".join(2 * d for d in digits)
    values = [int(digits[i : i + 2], 16) / 255 for i in (0, 2, 4)]
    linear = [v / 12.92 if v <= 0.04045 else ((v + 0.055) / 1.055) ** 2.4 for v in values]
    return sum(w * v for w, v in zip((0.2126, 0.7152, 0.0722), linear, strict=True))


def contrast(one, other):
    low, high = sorted((luminance(one), luminance(other)))
    return (high + 0.05) / (low + 0.05)


def backgrounds(site):
    """The page's, light and dark, as the theme's style sheet has them."""
    style = (site.folder / "_static" / "styles" / "furo.css").read_text("utf-8")
    found = set(re.findall(r"--color-background-primary:(#[0-9a-f]+)", style))
    assert len(found) == 2  # one light, one dark
    return found


def cycle():
    return re.findall(r'"([0-9a-f]{6})"', re.search(r"prop_cycle:(.*)", STYLE.read_text())[1])


def test_the_measure_itself():
    assert contrast("#000", "#fff") == 21
    assert round(contrast("#777777", "#ffffff"), 2) == 4.48


def test_plots_can_be_told_from_both_backgrounds(site):
    assert len(cycle()) >= 5
    for background in backgrounds(site):
        for colour in cycle():
            assert contrast(colour, background) >= GRAPHICS, (colour, background)


def test_drawings_use_the_colours_of_plots_and_the_colour_of_text(site):
    allowed = {f"#{colour}" for colour in cycle()}
    for name, page in site.pages.items():
        for drawing in page.find_all("svg", class_="drawing"):
            used = set(re.findall(r"#[0-9a-f]{6}\b", str(drawing)))
            assert used <= allowed, (name, used - allowed)
            assert "currentcolor" in str(drawing).lower()


def test_code_can_be_read(site):
    style = (site.folder / "_static" / "pygments.css").read_text("utf-8")
    light, _, dark = style.partition("@media")
    for part in (light, dark):
        background = re.search(r"\.highlight \{ background: (#[0-9a-f]{3,6})", part)[1]
        rules = re.findall(r"\.highlight [^{}]*\{([^}]*)\}", part)
        checked = 0
        for rule in rules:
            colour = re.search(r"(?<!-)color: (#[0-9a-fA-F]{3,6})", rule)
            if colour is not None:
                own = re.search(r"background(?:-color)?: (#[0-9a-fA-F]{3,6})", rule)
                against = own[1] if own else background
                assert contrast(colour[1], against) >= TEXT, (rule, against)
                checked += 1
        assert checked > 10
