"""Colonoscopy phantoms: folded mucosa with one or two polyps, and exactly where they are.

The mask is the very outline that the polyp is drawn with, less what the endoscope's frame hides.
Polyps differ from the mucosa in shading, texture and a little in colour, and folds, highlights and
the dark lumen look like parts of one. The image spans −1 … 1 in both directions.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from ..images import ImageSet
from .textures import Array, Draws, bell, images_of, ramp, to_uint8

CLASS_NAMES = ("background", "polyp")


def make(n: int, seed: int = 0, size: int = 192) -> ImageSet:
    """n RGB scenes of ``size × size`` with their masks; image i does not depend on n.

    No mask is empty; a polyp covers 15 % of the image on average, from about 1 % to more than half.
    """
    scenes = images_of(n, seed, size)
    images = np.empty((n, size, size, 3), np.uint8)
    masks = np.empty((n, size, size), np.uint8)
    for k, draws in enumerate(scenes):
        images[k], masks[k] = _scene(draws)
    return ImageSet(images, masks=masks, class_names=CLASS_NAMES)


def _scene(draws: Draws) -> tuple[NDArray[np.uint8], NDArray[np.bool_]]:
    u, size = draws.uniform, draws.size
    x = ((np.arange(size, dtype=np.float32) + 0.5) * (2 / size)) - 1
    y = x[:, None]
    boxed, wide, high = draws.chance(0.45), u(0.45, 0.68), u(0.4, 0.68)
    hidden = boxed & (x < wide - 1) & (y > 1 - high)  # by the frame's box at the lower left
    corner = u(1.3, 1.6) if draws.chance(0.85) else 3
    visible = (np.abs(x) + np.abs(y) < corner) & ~hidden

    shade, red = _mucosa(draws, x, y), np.zeros((size, size), np.float32)
    gloss, inside = 0.35 * draws.smooth(6), np.zeros((size, size), np.bool_)
    # Polyp areas follow those of real scenes: log-normal, median 0.11 of the image.
    area = float(np.clip(0.112 * np.exp(0.88 * draws.normal(1)[0]), 0.007, 0.62))
    areas = (area * u(0.4, 0.7), 0.75 * area) if draws.chance(0.15) else (area,)
    for one in areas:
        reach = _outline(draws, x, y, one, boxed)
        there, height = reach < 1, np.sqrt(np.maximum(1 - np.square(reach), 0))
        shade = np.where(there, _dome(draws, shade, height), _around(draws, shade, reach))
        red = np.where(there, u(-0.5, 1) * (0.7 + 0.3 * draws.smooth(12)), red)
        gloss = np.where(there, 0.3 + 0.5 * height + 0.5 * gloss, gloss)
        inside |= there
    colour = np.where(visible[..., None], _colour(draws, shade, red, gloss), u(0, 8))
    return to_uint8(colour), inside & visible


def _mucosa(draws: Draws, x: Array, y: Array) -> Array:
    """Brightness of the wall: the lamp's cone, folds around the lumen, the lumen itself."""
    u = draws.uniform
    from_x = x - u(-0.9, 0.9) + 0.16 * draws.smooth(5)
    from_y = y - u(-0.9, 0.9) + 0.16 * draws.smooth(5)
    far = np.hypot(from_x, u(0.7, 1.4) * from_y)
    folds = np.power(0.5 + 0.5 * np.sin(u(4, 11) * far + u(0, 6)), u(1, 5)) - 0.4
    folds = u(0, 0.8) * folds * np.clip(0.5 + 0.6 * draws.smooth(4), 0, 1)
    lamp = np.square(x - u(-0.5, 0.5)) + np.square(y - u(-0.5, 0.5))
    shade = u(0.75, 1.1) / (1 + u(0.1, 0.5) * lamp) * (1 + folds)
    if draws.chance(0.6):
        hole = np.maximum(ramp(u(0.1, 0.5) - far, 0.15), 0.6 * bell(far / 0.35))
        shade = shade * (1 - u(0.5, 0.95) * hole)
    wall: Array = shade * (1 + 0.05 * draws.smooth(10) + 0.03 * draws.smooth(40))
    return wall


def _outline(draws: Draws, x: Array, y: Array, area: float, boxed: bool) -> Array:
    """The distance from a polyp's centre, 1 at its outline: an ellipse with a few waves."""
    u = draws.uniform
    radius = (area * 4 / np.pi) ** 0.5  # the image's area is 4 in these units
    free = max(0.72 - 0.35 * radius, 0.2)
    at_x, at_y = free * u(-1, 1), free * u(-1, 1)
    if boxed and at_y > 0:  # never behind the frame's box, so that no mask is empty
        at_x = abs(at_x)
    turn, long = u(0, np.pi), np.exp(u(0, 0.35))
    along = (np.cos(turn) * (x - at_x) + np.sin(turn) * (y - at_y)) / (radius * long)
    beside = (np.cos(turn) * (y - at_y) - np.sin(turn) * (x - at_x)) * long / radius
    angle = np.arctan2(beside, along)
    waves = sum(u(0, 0.16 / k) * np.cos(k * angle + u(0, 6.28)) for k in (2, 3, 5))
    reach: Array = np.hypot(along, beside) / (1 + waves)
    return reach


def _dome(draws: Draws, shade: Array, height: Array) -> Array:
    """A lit dome with a texture of its own; half of its light is the place's."""
    u, light = draws.uniform, draws.uniform(0, 2 * np.pi)
    down_y, down_x = np.gradient(height)
    tilt = (np.cos(light) * down_x + np.sin(light) * down_y) * (draws.size / 40)
    bumps = u(0.01, 0.09) * draws.smooth(44) + u(0, 0.08) * draws.smooth(18)
    own = u(0.9, 1.3) * (1 - u(0.2, 0.6) * (1 - height))
    own = own * (1 - 0.35 * np.clip(tilt, -1, 1) + bumps)
    dome: Array = own * (0.45 + 0.55 * np.clip(shade, 0.2, 1.1))
    return dome


def _around(draws: Draws, shade: Array, reach: Array) -> Array:
    """The wall with the polyp's shadow along its outline."""
    return shade * (1 - draws.uniform(0.05, 0.4) * bell((reach - 1) / draws.uniform(0.05, 0.18)))


def _colour(draws: Draws, shade: Array, red: Array, gloss: Array) -> Array:
    """Mucosa's colours, the darker the browner, and white reflections where it is wet."""
    u, size = draws.uniform, draws.size
    warm, light, green = red + 0.25 * draws.smooth(5), np.clip(shade, 0.02, 1.3), u(108, 155)
    channels = (
        u(205, 250) * np.power(light, 0.8),
        green * np.power(light, 1.15) * (1 - 0.14 * warm),
        u(0.65, 0.9) * green * np.power(light, 1.25) * (1 - 0.12 * warm),
    )
    colour = np.stack(channels, axis=-1) + u(0.5, 4) * draws.normal(size, size, 1)
    wet = draws.smooth(38) + 0.9 * gloss + 0.6 * draws.smooth(7)
    white = ramp(wet - u(2.2, 3.4), 0.25)[..., None]
    return colour + white * (u(215, 255) - colour)
