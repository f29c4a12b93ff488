"""Retinal OCT phantoms: B-scans with layers and, by class, drusen, fluid or a membrane.

A class shows in a small structure only, whose place, size and contrast vary, in a retina whose
place, shape and brightness vary as much in every class. Lengths are in 1/96 of the image.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ..images import ImageSet
from .textures import BLOCK, Array, Draws, bell, labelled, ramp, to_uint8

CLASS_NAMES = ("NORMAL", "CNV", "DME", "DRUSEN")
NORMAL, CNV, DME, DRUSEN = range(4)


def make(n: int, seed: int = 0, size: int = 96) -> ImageSet:
    """n scans of ``size × size``, the classes in equal numbers; image i does not depend on n."""
    return labelled(_block, n, seed, size, CLASS_NAMES)


@dataclass
class _Retina:
    """The layers' places in each column: arrays ``(BLOCK, size)`` of rows counted downwards."""

    x: Array  # −1 … 1 across the image
    membrane: Array  # Bruch's membrane, on which all rests
    rise: Array  # of the pigment epithelium (RPE) over it
    thickness: Array  # of the retina over the RPE
    fovea: Array  # (BLOCK, 1), the pit's place

    @property
    def rpe(self) -> Array:
        return self.membrane - self.rise


def _block(draws: Draws, size: int) -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
    labels = draws.labels(len(CLASS_NAMES))
    retina = _healthy(draws, size)
    y = ((np.arange(size, dtype=np.float32) + 0.5) * (96 / size))[None, :, None]

    # Each lesion is drawn for all images and has no size where the class is another.
    drusen = _drusen(draws, retina, labels == DRUSEN)
    lump, fluid, streaks = _membrane(draws, retina, labels == CNV)
    centre, swelling = _swelling(draws, retina, labels == DME)
    retina.rise = drusen + lump
    # The surface hardly follows a small bump, and a large lump in part.
    flat = draws.uniform(0.6, 1, 1) * drusen + draws.uniform(0.1, 0.7, 1) * lump
    retina.thickness = np.maximum(retina.thickness + swelling + fluid - flat, 4)

    image = _layers(draws, retina, y, size)
    image = _fill_rise(draws, image, retina, y, labels)
    image = _fill_fluid(draws, image, retina, y, fluid)
    image = _cysts(draws, image, retina, y, centre, labels)
    image = _light(draws, image, retina, y, streaks, size)
    return to_uint8(_wedges(draws, _speckle(draws, image, size), retina, y)), labels


def _healthy(draws: Draws, size: int) -> _Retina:
    """Curvature, tilt, thickness and the foveal pit, drawn alike for every class."""
    x = np.linspace(-1, 1, size, dtype=np.float32)[None]
    place = draws.uniform(43, 62, 1)
    bend = draws.uniform(-3, 12, 1) * np.square(x - draws.uniform(-0.4, 0.4, 1))
    tilt = draws.uniform(-8, 8, 1) * x
    wave = draws.uniform(0, 1.2, 1) * draws.smooth_curve(7, size)
    waviness = draws.uniform(0, 0.3, 1) * draws.smooth_curve(40, size)

    fovea = draws.uniform(-0.45, 0.45, 1)
    depth = draws.chance(0.85, 1) * draws.uniform(0.2, 0.6, 1)
    width = draws.uniform(0.07, 0.18, 1)
    pit = depth * (bell((x - fovea) / width) - 0.45 * bell((x - fovea) / (3 * width)))
    slope = 1 + draws.uniform(-0.15, 0.15, 1) * x
    thickness = draws.uniform(12, 18, 1) * (slope - pit)
    thickness = thickness + draws.uniform(0, 0.5, 1) * draws.smooth_curve(12, size)
    membrane = place - bend + tilt + wave + waviness
    return _Retina(x, membrane, np.zeros_like(membrane), thickness, fovea)


def _near_fovea(draws: Draws, retina: _Retina, spread: float, *shape: int) -> Array:
    return np.clip(retina.fovea + draws.uniform(-spread, spread, *shape), -0.85, 0.85)


def _drusen(draws: Draws, retina: _Retina, here: NDArray[np.bool_]) -> Array:
    """Small bumps of the RPE: their height by column."""
    many = 8
    there = draws.uniform(0, 1, many) < draws.uniform(0.3, 1, 1)
    there[:, :2] = True
    centre = _near_fovea(draws, retina, 0.5, 1)
    places = np.clip(centre + 0.25 * draws.normal(many), -0.9, 0.9)
    widths = draws.uniform(0.025, 0.065, many)
    heights = draws.uniform(2.2, 3.8, many) * draws.uniform(0.9, 1.6, 1)
    heights = heights * there * here[:, None]
    away = (retina.x[:, None] - places[:, :, None]) / widths[:, :, None]
    highest: Array = (heights[:, :, None] * bell(away)).max(1)
    return highest


def _membrane(draws: Draws, retina: _Retina, here: NDArray[np.bool_]) -> tuple[Array, Array, Array]:
    """A lump of vessels under the RPE, fluid over its flank, and streaks of light below it."""
    size = retina.x.shape[1]
    place = _near_fovea(draws, retina, 0.5, 1)
    width = draws.uniform(0.1, 0.3, 1)
    rough = 1 + draws.uniform(0.15, 0.45, 1) * draws.smooth_curve(24, size)
    lump = draws.uniform(4, 11, 1) * np.maximum(rough, 0) * bell((retina.x - place) / width)
    flank = place + draws.uniform(-1.6, 1.6, 1) * width
    fluid = draws.chance(0.85, 1) * draws.uniform(2.5, 6, 1)
    fluid = fluid * bell((retina.x - flank) / (draws.uniform(0.5, 1.2, 1) * width))
    streaks = draws.chance(0.6, 1) * draws.uniform(0.3, 1.5, 1)
    streaks = streaks * bell((retina.x - place) / width) * (1 + 0.6 * draws.smooth_curve(32, size))
    there = here[:, None].astype(np.float32)
    return lump * there, fluid * there, streaks * there


def _swelling(draws: Draws, retina: _Retina, here: NDArray[np.bool_]) -> tuple[Array, Array]:
    """The place where a DME's cysts gather, and how much thicker the retina is there."""
    centre = _near_fovea(draws, retina, 0.45, 1)
    height = draws.chance(0.85, 1) * draws.uniform(2, 11, 1) * here[:, None]
    return centre, height * bell((retina.x - centre) / draws.uniform(0.12, 0.4, 1))


def _layers(draws: Draws, retina: _Retina, y: Array, size: int) -> Array:
    """Vitreous, the retina's bright and dark bands, and the choroid that fades below."""
    above = retina.rpe[:, None] - y  # height over the RPE
    thickness = retina.thickness[:, None]
    # The nuclear layer keeps its height in the pit; the layers over it thin out there.
    nuclear = np.minimum(draws.uniform(0.34, 0.46, 1, 1) * 15, 0.8 * thickness)
    inner = thickness - nuclear

    def level(low: float, high: float) -> Array:
        return draws.uniform(low, high, 1, 1)

    rough = 1 + level(0, 0.2) * draws.smooth_curve(30, size)[:, None]
    edges: list[tuple[Array | float, Array]] = [  # from below: an edge, and the level over it
        (-1.4, level(150, 230) * rough),  # RPE
        (0.9, level(70, 110)),
        (1.7, level(100, 170)),  # the photoreceptors' line
        (2.6, level(34, 56)),  # outer nuclear layer, dark
        (nuclear, level(58, 85)),  # outer plexiform
        (nuclear + 0.14 * inner, level(45, 65)),  # inner nuclear, dark
        (nuclear + 0.34 * inner, level(60, 90)),  # inner plexiform
        (nuclear + 0.78 * inner, level(85, 140)),  # nerve fibres
        (thickness, level(3, 8)),  # vitreous
    ]
    image = np.zeros((BLOCK, size, size), np.float32)
    below: Array | float = 0.0
    for edge, value in edges:
        image += (value - below) * ramp(above - edge)
        below = value

    depth = y - retina.membrane[:, None]
    vessels = np.maximum(draws.smooth(26, size) - 0.2, 0) * bell((depth - 7) / 4)
    choroid = level(60, 120) * np.exp(-np.maximum(depth, 0) / level(5, 18))
    choroid *= np.maximum(1 - level(0.1, 0.6) * vessels, 0.1)
    image += (choroid + 4) * ramp(-above - 1.4)
    return image


def _fill_rise(
    draws: Draws, image: Array, retina: _Retina, y: Array, labels: NDArray[np.int64]
) -> Array:
    """Between the membrane and a risen RPE: gray under drusen, brighter and uneven in a lump."""
    uneven = draws.uniform(0.1, 0.5, 1, 1) * draws.smooth(30, image.shape[1])
    gray, bright = draws.uniform(40, 110, 1, 1), draws.uniform(80, 190, 1, 1)
    filling = np.where((labels == CNV)[:, None, None], bright, gray) * (1 + uneven)
    inside = ramp(y - retina.rpe[:, None] - 1.4) * ramp(retina.membrane[:, None] - y)
    return image + inside * (filling - image)


def _fill_fluid(draws: Draws, image: Array, retina: _Retina, y: Array, fluid: Array) -> Array:
    """A dark lens on the RPE."""
    above = retina.rpe[:, None] - y - 1.2
    inside = ramp(above) * ramp(fluid[:, None] - above - 0.5)
    return image + inside * (draws.uniform(8, 26, 1, 1) - image)


def _cysts(
    draws: Draws, image: Array, retina: _Retina, y: Array, centre: Array, labels: NDArray[np.int64]
) -> Array:
    """Dark pockets of fluid inside the retina, with bright specks beside them (DME)."""
    many, specks = 7, 4
    size = retina.x.shape[1]
    there = draws.uniform(0, 1, many) < draws.uniform(0.2, 1, 1)
    there[:, :2] = True
    place = np.clip(centre + draws.uniform(0.05, 0.25, 1) * draws.normal(many + specks), -0.9, 0.9)
    column = np.rint((place + 1) / 2 * (size - 1)).astype(np.int64)
    thickness = np.take_along_axis(retina.thickness, column, 1)
    row = np.take_along_axis(retina.rpe, column, 1)
    row = row - thickness * draws.uniform(0.3, 0.8, many + specks)
    wide = draws.uniform(2.5, 5.0, many) * draws.uniform(0.8, 1.5, 1)
    high = np.minimum(wide * draws.uniform(0.6, 1.6, many), 0.36 * thickness[:, :many])
    dark = draws.uniform(3, 18, many)
    speck = draws.uniform(90, 170, specks) * draws.chance(0.4, specks) * draws.chance(0.6, 1)

    x = (retina.x[:, None] + 1) * 48
    wall = ramp(y - (retina.rpe - retina.thickness)[:, None] - 1.2)  # a cyst never opens
    for i in np.flatnonzero(labels == DME):
        for k in np.flatnonzero(there[i]):
            across = (x[0] - (place[i, k] + 1) * 48) / wide[i, k]
            reach = np.sqrt(np.square(across) + np.square((y[0] - row[i, k]) / high[i, k]))
            image[i] += wall[i] * ramp((1 - reach) * high[i, k], 1.2) * (dark[i, k] - image[i])
        for k in np.flatnonzero(speck[i]):
            across = x[0] - (place[i, many + k] + 1) * 48
            image[i] += speck[i, k] * bell(across / 0.8) * bell((y[0] - row[i, many + k]) / 0.8)
    return image


def _light(
    draws: Draws, image: Array, retina: _Retina, y: Array, streaks: Array, size: int
) -> Array:
    """Shadows of vessels, light let through under a lump, uneven light, a line in the vitreous."""
    many = 4
    depth = y - retina.membrane[:, None]
    image = image * (1 + np.maximum(streaks[:, None], -0.5) * ramp(depth))

    place = draws.uniform(-1, 1, many, 1)
    width = draws.uniform(0.01, 0.05, many, 1)
    dark = draws.chance(0.4, many, 1) * draws.uniform(0.1, 0.7, many, 1)
    shadow = 1 - (dark * bell((retina.x[:, None] - place) / width)).max(1)
    start = retina.rpe - draws.uniform(0.3, 0.7, 1) * retina.thickness
    image = image * (1 - (1 - shadow[:, None]) * ramp(y - start[:, None], 3))

    line = retina.rpe - retina.thickness - draws.uniform(3, 25, 1) + 3 * draws.smooth_curve(5, size)
    faint = draws.chance(0.25, 1, 1) * draws.uniform(5, 45, 1, 1)
    image += faint * bell((y - line[:, None]) / 0.6)

    uneven = draws.uniform(0, 0.2, 1) * draws.smooth_curve(4, size)
    edge = draws.chance(0.3, 1) * draws.uniform(0.2, 0.9, 1)
    fall = 1 - edge * np.square(np.clip(retina.x * draws.uniform(-1, 1, 1).round(), 0, 1)) ** 2
    lit: Array = image * np.maximum((1 + uneven) * fall, 0.05)[:, None]
    return lit


def _speckle(draws: Draws, image: Array, size: int) -> Array:
    """Gain, floor and contrast of the device, and speckle: weak in tissue, strong in the dark."""
    grain = draws.normal(size, size)
    grain[:, :, 1:] += draws.uniform(0, 0.6, 1, 1) * grain[:, :, :-1]  # wider than high
    signal = image * draws.uniform(0.75, 1.2, 1, 1)
    signal *= 1 + draws.uniform(0.03, 0.13, 1, 1) * grain
    signal += draws.uniform(5, 24, 1, 1) * np.exp(draws.uniform(0.1, 0.45, 1, 1) * grain)
    contrast = draws.uniform(0.85, 1.2, 1, 1)
    return np.float32(255) * np.power(np.clip(signal / 255, 0, 1), contrast)


def _wedges(draws: Draws, image: Array, retina: _Retina, y: Array) -> Array:
    """White corners, left where the device turned the scan: above, below or none."""
    slope = draws.uniform(-9, 9, 1)
    top = draws.uniform(-4, 14, 1) + slope * retina.x
    bottom = 96 - draws.uniform(-4, 16, 1) + slope * retina.x
    top = np.where(draws.chance(0.3, 1) > 0, top, -1)
    bottom = np.where(draws.chance(0.3, 1) > 0, bottom, 97)
    white = np.maximum(ramp(top[:, None] - y), ramp(y - bottom[:, None]))
    return image + white * (255 - image)
