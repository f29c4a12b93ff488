"""Colonoscopy phantoms: folded mucosa with one or two polyps, and exactly where they are.

The mask is the very outline that the polyp is drawn with, less what the endoscope's frame hides.
Polyps differ from the mucosa in shading, texture and a little in colour, and folds, highlights and
the dark lumen look like parts of one. The image spans −1 … 1 in both directions.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ..images import ImageSet
from .textures import Array, Draws, bell, blocks, ramp, to_uint8

CLASS_NAMES = ("background", "polyp")


def make(n: int, seed: int = 0, size: int = 192) -> ImageSet:
    """n RGB scenes of ``size × size`` with their masks; image i does not depend on n.

    No mask is empty; a polyp covers 15 % of the image on average, from about 1 % to more than half.
    """
    made = [_block(draws, size) for draws in blocks(n, seed, size)]
    return ImageSet(
        np.concatenate([images for images, _ in made])[:n],
        masks=np.concatenate([masks for _, masks in made])[:n],
        class_names=CLASS_NAMES,
    )


@dataclass
class _View:
    """The image's axes, what the frame leaves to see, and where the light comes from."""

    x: Array  # (1, 1, size)
    y: Array  # (1, size, 1)
    visible: NDArray[np.bool_]  # (BLOCK, size, size)
    box: Array  # (BLOCK, 1, 1): 1 where the frame's box hides the lower left
    light: Array  # (BLOCK, 1, 1), an angle


def _block(draws: Draws, size: int) -> tuple[NDArray[np.uint8], NDArray[np.uint8]]:
    view = _frame(draws, size)
    shade = _mucosa(draws, view, size)
    red = np.zeros_like(shade)
    gloss = 0.35 * draws.smooth(6, size)
    inside = np.zeros(shade.shape, np.bool_)

    # Polyp areas follow those of real scenes: log-normal, median 0.11 of the image.
    area = np.clip(0.112 * np.exp(0.88 * draws.normal(1, 1)), 0.007, 0.62)
    second = draws.chance(0.15, 1, 1)
    for size_factor, present in ((draws.uniform(0.5, 0.9, 1, 1), second), (1 - 0.25 * second, 1)):
        reach, height, there = _polyp(draws, view, area * size_factor, present)
        shade, red = _paint(draws, view, shade, red, reach, height, there, size)
        gloss = np.where(there, 0.3 + 0.5 * height + 0.5 * gloss, gloss)
        inside |= there

    colour = _colour(draws, shade, red, size)
    colour = _highlights(draws, colour, gloss, size)
    frame = draws.uniform(0, 8, 1, 1, 1)
    colour = np.where(view.visible[..., None], colour, frame)
    return to_uint8(colour), (inside & view.visible).astype(np.uint8)


def _frame(draws: Draws, size: int) -> _View:
    line = ((np.arange(size, dtype=np.float32) + 0.5) * (2 / size) - 1).astype(np.float32)
    x, y = line[None, None], line[None, :, None]
    corners = np.where(draws.chance(0.85, 1, 1) > 0, draws.uniform(1.3, 1.6, 1, 1), 3)
    box = draws.chance(0.45, 1, 1)
    wide, high = draws.uniform(0.45, 0.68, 1, 1), draws.uniform(0.4, 0.68, 1, 1)
    hidden = (box > 0) & (x < wide - 1) & (y > 1 - high)
    visible = (np.abs(x) + np.abs(y) < corners) & ~hidden
    return _View(x, y, visible, box, draws.uniform(0, 2 * np.pi, 1, 1))


def _mucosa(draws: Draws, view: _View, size: int) -> Array:
    """Brightness of the wall: the lamp's cone, folds around the lumen, the lumen itself, veins."""
    from_x = view.x - draws.uniform(-0.9, 0.9, 1, 1) + 0.16 * draws.smooth(5, size)
    from_y = view.y - draws.uniform(-0.9, 0.9, 1, 1) + 0.16 * draws.smooth(5, size)
    far = np.sqrt(np.square(from_x) + np.square(draws.uniform(0.7, 1.4, 1, 1) * from_y))
    bends = 0.5 + 0.5 * np.sin(draws.uniform(4, 11, 1, 1) * far + draws.uniform(0, 6, 1, 1))
    folds = draws.uniform(0, 0.8, 1, 1) * (np.power(bends, draws.uniform(1, 5, 1, 1)) - 0.4)
    patchy = np.clip(0.5 + 0.6 * draws.smooth(4, size), 0, 1)
    lamp_x, lamp_y = draws.uniform(-0.5, 0.5, 1, 1), draws.uniform(-0.5, 0.5, 1, 1)
    lamp = np.square(view.x - lamp_x) + np.square(view.y - lamp_y)
    shade = draws.uniform(0.75, 1.1, 1, 1) / (1 + draws.uniform(0.1, 0.5, 1, 1) * lamp)
    shade = shade * (1 + folds * patchy)
    lumen = draws.chance(0.6, 1, 1) * draws.uniform(0.5, 0.95, 1, 1)
    hole = ramp(draws.uniform(0.1, 0.5, 1, 1) - far, 0.15)
    shade = shade * (1 - lumen * np.maximum(hole, 0.6 * bell(far / 0.35)))
    veins = draws.uniform(-0.05, 0.1, 1, 1).clip(0) * bell(draws.smooth(14, size) / 0.16)
    grain = 0.05 * draws.smooth(10, size) + 0.03 * draws.smooth(40, size)
    wall: Array = shade * (1 - veins + grain)
    return wall


def _polyp(
    draws: Draws, view: _View, area: Array, present: Array | int
) -> tuple[Array, Array, NDArray[np.bool_]]:
    """Distance to the centre (1 at the outline), height of the dome, and where it is."""
    radius = np.sqrt(area * np.float32(4 / np.pi))  # the image's area is 4 in these units
    room = np.maximum(0.72 - 0.35 * radius, 0.2)
    at_x = room * draws.uniform(-1, 1, 1, 1)
    at_y = room * draws.uniform(-1, 1, 1, 1)
    # Never behind the frame's box, so that no mask is empty.
    at_x = np.where((view.box > 0) & (at_y > 0), np.abs(at_x), at_x)
    turn = draws.uniform(0, np.pi, 1, 1)
    long = np.exp(draws.uniform(0, 0.35, 1, 1))
    away_x, away_y = view.x - at_x, view.y - at_y
    along = (np.cos(turn) * away_x + np.sin(turn) * away_y) / (radius * long)
    beside = (np.cos(turn) * away_y - np.sin(turn) * away_x) * long / radius
    angle = np.arctan2(beside, along)
    outline = np.ones_like(angle)
    for k in (2, 3, 5):
        wave = np.cos(k * angle + draws.uniform(0, 6.28, 1, 1))
        outline += draws.uniform(0, 0.16 / k, 1, 1) * wave
    reach = np.hypot(along, beside) / outline
    reach = reach + np.float32(9) * (1 - present)
    height = np.sqrt(np.maximum(1 - np.square(reach), 0))
    return reach, height, reach < 1


def _paint(
    draws: Draws,
    view: _View,
    shade: Array,
    red: Array,
    reach: Array,
    height: Array,
    there: NDArray[np.bool_],
    size: int,
) -> tuple[Array, Array]:
    """A lit dome with a texture of its own over the wall, and its shadow beside it."""
    toward = np.cos(view.light) * view.x + np.sin(view.light) * view.y
    down_x = np.gradient(height, axis=2)
    down_y = np.gradient(height, axis=1)
    tilt = (np.cos(view.light) * down_x + np.sin(view.light) * down_y) * np.float32(size / 40)
    round_ = draws.uniform(0.2, 0.6, 1, 1)
    bumps = draws.uniform(0.01, 0.09, 1, 1) * draws.smooth(44, size)
    bumps += draws.uniform(0, 0.08, 1, 1) * draws.smooth(18, size)
    own = draws.uniform(0.9, 1.3, 1, 1) * (1 - round_ + round_ * height)
    own = own * (1 - 0.35 * np.clip(tilt, -1, 1) + bumps)
    # Half of its light is the place's, so that a polyp in the dark is dark too.
    dome = own * (0.45 + 0.55 * np.clip(shade, 0.2, 1.1))
    depth = draws.uniform(0.05, 0.4, 1, 1)
    shadow = 1 - depth * bell((reach - 1) / draws.uniform(0.05, 0.18, 1, 1)) * ramp(toward, 2.5)
    shade = np.where(there, dome, shade * shadow)
    tint = draws.uniform(-0.5, 1, 1, 1) * (0.7 + 0.3 * draws.smooth(12, size))
    return shade, np.where(there, tint, red)


def _colour(draws: Draws, shade: Array, red: Array, size: int) -> Array:
    """Mucosa's colours from brightness and redness: what is darker is browner."""
    warm = red + 0.25 * draws.smooth(5, size)
    light = np.clip(shade, 0.02, 1.3)
    green = draws.uniform(108, 155, 1, 1)
    blue = draws.uniform(0.65, 0.9, 1, 1) * green
    full = np.stack(
        [
            draws.uniform(205, 250, 1, 1) * np.power(light, 0.8),
            green * np.power(light, 1.15) * (1 - 0.14 * warm),
            blue * np.power(light, 1.25) * (1 - 0.12 * warm),
        ],
        axis=-1,
    )
    noisy: Array = full + draws.uniform(0.5, 4, 1, 1, 1) * draws.normal(size, size, 1)
    return noisy


def _highlights(draws: Draws, colour: Array, gloss: Array, size: int) -> Array:
    """White reflections of the lamp, small and sharp, where the surface is wet."""
    wet = draws.smooth(38, size) + 0.9 * gloss + 0.6 * draws.smooth(7, size)
    white = ramp(wet - draws.uniform(2.2, 3.4, 1, 1), 0.25)[..., None]
    return colour + white * (draws.uniform(215, 255, 1, 1, 1) - colour)
