"""Retinal OCT phantoms: B-scans with layers and, by class, drusen, fluid or a membrane.

A class shows in a small structure only, whose place, size and contrast vary, in a retina whose
place, shape and brightness vary as much in every class. Lengths are in 1/96 of the image.
"""

from __future__ import annotations

import numpy as np

from ..images import ImageSet
from .textures import Array, Draws, bell, labelled, ramp

CLASS_NAMES = ("NORMAL", "CNV", "DME", "DRUSEN")
NORMAL, CNV, DME, DRUSEN = range(4)


def make(n: int, seed: int = 0, size: int = 96) -> ImageSet:
    """n scans of ``size × size``, the classes in equal numbers; image i does not depend on n."""
    return labelled(_scan, n, seed, size, CLASS_NAMES)


def _scan(draws: Draws, label: int) -> Array:
    u, size = draws.uniform, draws.size
    x = np.linspace(-1, 1, size, dtype=np.float32)
    y = ((np.arange(size, dtype=np.float32) + 0.5) * (96 / size))[:, None]

    # Bruch's membrane and, above it, the surface with the foveal pit: rows counted downwards.
    membrane = u(43, 62) - u(-3, 12) * np.square(x - u(-0.4, 0.4)) + u(-8, 8) * x
    membrane = membrane + u(0, 1.2) * draws.curve(7) + u(0, 0.3) * draws.curve(40)
    fovea, wide = u(-0.45, 0.45), u(0.07, 0.18)
    pit = u(0, 0.6) * (bell((x - fovea) / wide) - 0.45 * bell((x - fovea) / (3 * wide)))
    thickness = u(12, 18) * (1 + u(-0.15, 0.15) * x - pit) + u(0, 0.5) * draws.curve(12)

    # The lesion: how far it raises the pigment epithelium (RPE), fluid on it, a thicker retina.
    place = float(np.clip(fovea + u(-0.5, 0.5), -0.85, 0.85))
    rise, fluid, streaks = np.zeros_like(x), np.zeros_like(x), np.zeros_like(x)
    if label == DRUSEN:
        for at in place + 0.25 * draws.normal(draws.number(3, 8)):
            bump = u(2.2, 5) * bell((x - np.clip(at, -0.9, 0.9)) / u(0.025, 0.065))
            rise = np.maximum(rise, bump)
    if label == CNV:
        reach = u(0.1, 0.3)
        rough = np.maximum(1 + u(0.15, 0.45) * draws.curve(24), 0)
        rise = u(4, 11) * rough * bell((x - place) / reach)
        flank = place + u(-1.6, 1.6) * reach
        fluid = draws.chance(0.85) * u(2.5, 6) * bell((x - flank) / (u(0.5, 1.2) * reach))
        streaks = u(0, 1.2) * bell((x - place) / reach) * (1 + 0.6 * draws.curve(32))
    if label == DME:
        thickness = thickness + u(1, 11) * bell((x - place) / u(0.12, 0.4))
    thickness = np.maximum(thickness + fluid - 0.7 * rise, 4)
    rpe = membrane - rise

    image = _layers(draws, rpe - y, y - membrane, thickness)
    inside = ramp(y - rpe - 1.4) * ramp(membrane - y)  # between the membrane and a risen RPE
    filling = (u(80, 190) if label == CNV else u(40, 110)) * (1 + u(0.1, 0.5) * draws.smooth(30))
    image = image + inside * (filling - image)
    lens = ramp(rpe - y - 1.2) * ramp(fluid - (rpe - y) + 0.7)
    image = image + lens * (u(8, 26) - image)
    if label == DME:
        image = _cysts(draws, image, x, y, rpe, thickness, place)
    image = image * (1 + np.maximum(streaks, -0.5) * ramp(y - membrane))
    for _ in range(draws.number(0, 3)):  # shadows of vessels
        image = image * (1 - u(0.1, 0.7) * bell((x - u(-1, 1)) / u(0.01, 0.05)) * ramp(y - rpe, 9))
    return _seen(draws, image, x, y)


def _layers(draws: Draws, above: Array, depth: Array, thickness: Array) -> Array:
    """Vitreous, the retina's bright and dark bands, and the choroid that fades below."""
    u = draws.uniform
    # The nuclear layer keeps its height in the pit; the layers over it thin out there.
    nuclear = np.minimum(u(5, 7), 0.8 * thickness)
    inner = thickness - nuclear
    edges: list[tuple[Array | float, Array | float]] = [  # from below: an edge, the level over it
        (-1.4, u(150, 230) * (1 + u(0, 0.2) * draws.curve(30))),  # RPE
        (0.9, u(70, 110)),
        (1.7, u(100, 170)),  # the photoreceptors' line
        (2.6, u(34, 56)),  # outer nuclear layer, dark
        (nuclear, u(58, 85)),  # outer plexiform
        (nuclear + 0.14 * inner, u(45, 65)),  # inner nuclear, dark
        (nuclear + 0.34 * inner, u(60, 90)),  # inner plexiform
        (nuclear + 0.78 * inner, u(85, 140)),  # nerve fibres
        (thickness, u(3, 8)),  # vitreous
    ]
    image: Array = np.zeros_like(above)
    below: Array | float = 0.0
    for edge, level in edges:
        image = image + (level - below) * ramp(above - edge)
        below = level
    vessels = np.maximum(draws.smooth(26) - 0.2, 0) * bell((depth - 7) / 4)
    choroid: Array = u(60, 120) * np.exp(-np.maximum(depth, 0) / u(5, 18))
    choroid = choroid * np.maximum(1 - u(0.1, 0.6) * vessels, 0.1)
    image += (choroid + 4) * ramp(-above - 1.4)
    return image


def _cysts(
    draws: Draws, image: Array, x: Array, y: Array, rpe: Array, thickness: Array, place: float
) -> Array:
    """Dark pockets of fluid inside the retina, with bright specks beside them."""
    u = draws.uniform
    wall = ramp(y - (rpe - thickness) - 1.2)  # a cyst never opens
    specks = draws.number(0, 2)
    for k in range(draws.number(2, 7) + specks):
        at = float(np.clip(place + u(0.05, 0.25) * draws.normal(1)[0], -0.9, 0.9))
        column = round((at + 1) / 2 * (len(x) - 1))
        row = rpe[column] - u(0.3, 0.8) * thickness[column]
        wide = 0.8 if k < specks else u(2, 7)
        high = 0.8 if k < specks else min(wide * u(0.6, 1.6), 0.36 * float(thickness[column]))
        away = np.hypot((x - at) * 48 / wide, (y - row) / high)
        level = u(90, 170) if k < specks else u(3, 18)
        image = image + ramp(1 - away, 1 / wide) * wall * (level - image)
    return image


def _seen(draws: Draws, image: Array, x: Array, y: Array) -> Array:
    """Uneven light, the device's gain, floor and speckle, and white corners of a turned scan."""
    u, size = draws.uniform, draws.size
    image = image * np.maximum(1 + u(0, 0.2) * draws.curve(4) + u(-0.4, 0.4) * x, 0.05)
    grain = draws.normal(size, size)
    grain[:, 1:] += u(0, 0.6) * grain[:, :-1]  # wider than high
    image = image * u(0.75, 1.2) * (1 + u(0.03, 0.13) * grain)
    image = image + u(5, 24) * np.exp(u(0.1, 0.45) * grain)
    image = 255 * np.power(np.clip(image / 255, 0, 1), u(0.85, 1.2))
    slope = u(-9, 9)
    for side, edge in ((-1, u(-4, 14)), (1, 96 - u(-4, 16))):
        if draws.chance(0.3):
            image = image + ramp(side * (y - edge - slope * x)) * (255 - image)
    return image
