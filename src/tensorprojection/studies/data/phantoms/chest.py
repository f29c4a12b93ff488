"""Chest radiograph phantoms: a thorax and, by class, where and how the lungs are clouded.

Lung Opacity: one to three dense patches, anywhere. COVID: several faint ones near the chest wall,
on both sides, low rather than high. Viral Pneumonia: a net of streaks around the hila, both sides.
The body, its place and the film's brightness vary as much in every class. The image spans
−1 … 1 in both directions.
"""

from __future__ import annotations

import numpy as np

from ..images import ImageSet
from .textures import Array, Draws, bell, labelled, ramp

CLASS_NAMES = ("Normal", "Lung Opacity", "COVID", "Viral Pneumonia")
NORMAL, OPACITY, COVID, VIRAL = range(4)


def make(n: int, seed: int = 0, size: int = 160) -> ImageSet:
    """n radiographs of ``size × size``, classes in equal numbers; image i does not depend on n."""
    return labelled(_film, n, seed, size, CLASS_NAMES)


def _film(draws: Draws, label: int) -> Array:
    u, size = draws.uniform, draws.size
    line = np.linspace(-1, 1, size, dtype=np.float32)
    turn, scale = u(-0.06, 0.06), u(0.88, 1.25)
    across, down = (line - u(-0.14, 0.14)) / scale, (line[:, None] - u(-0.14, 0.14)) / scale
    x, y = across + turn * down, down - turn * across  # they lie straight in the body
    side, right = np.abs(x), ramp(x, 0.02)
    top, floor = u(-0.86, -0.72), u(0.38, 0.68)

    # The lungs lie between the heart, which leans to the image's right, the wall, the diaphragm.
    fall = np.clip((y - top) / (floor - top), 0, 1.3)
    wall = u(0.66, 0.8) * np.power(fall + 1e-3, u(0.3, 0.42))
    low = u(0.12, 0.3)
    bulge = u(0.18, 0.34) * bell((y - low) / u(0.24, 0.36))
    inner = u(0.1, 0.16) + (0.3 + 0.7 * right) * bulge
    diaphragm = floor + u(0.12, 0.3) * np.square((side - 0.36) / 0.4) - u(0, 0.09) * (1 - right)
    arms = u(0.88, 1.25) - 0.1 * bell((y + 0.1) / 0.4)
    neck = u(0.16, 0.26) + np.maximum(y + 0.98, 0) * u(2, 5)
    body = ramp(np.minimum(arms, neck) - side, 0.08)
    lungs = body * ramp(side - inner, 0.05) * ramp(wall - side, 0.05)
    lungs = lungs * ramp(diaphragm - y, 0.05) * ramp(y - top, 0.05)

    dense = u(0.5, 0.66) + u(0.1, 0.22) * bell(x / 0.15)  # soft tissue, spine and mediastinum
    dense = dense + u(0.05, 0.2) * ramp(y - diaphragm, 0.1) + 0.04 * draws.smooth(5)
    dense = dense + u(0, 0.08) * ramp(inner - side, 0.06) * bell((y - low) / 0.35)
    dense = body * dense - lungs * u(0.3, 0.46) * (1 - 0.25 * bell((side - 0.25) / 0.2))
    dense = dense + _bones(draws, x, y, top, floor) * ramp(wall + 0.05 - side, 0.05)
    dense = dense + lungs * _markings(draws, side, y, label == VIRAL)
    if label in (OPACITY, COVID):
        dense = dense + lungs * _patches(draws, x, y, top, floor, label == COVID)

    dense = dense + u(-0.08, 0.08) * y + u(-0.05, 0.05) * x  # uneven exposure
    light = np.power(np.clip((dense - u(-0.1, 0.1)) / u(0.85, 1.05), 0, 1), u(0.9, 1.6))
    film: Array = 255 * (light + u(0.004, 0.02) * draws.normal(size, size))
    return film


def _bones(draws: Draws, x: Array, y: Array, top: float, floor: float) -> Array:
    """Ribs behind and before, clavicles, and the spine's vertebrae."""
    u, side = draws.uniform, np.abs(x)
    step, sharp = u(0.15, 0.2), u(1.5, 3.5)
    drop = u(0.2, 0.4) * side + u(0.25, 0.6) * np.square(side)

    def stripes(height: Array) -> Array:
        striped: Array = 0.5 + 0.5 * np.cos(2 * np.pi * height)
        return striped

    back = np.power(stripes((y - drop) / step), sharp)
    front = np.power(stripes((y + 1.5 * drop) / step + u(0, 1)), sharp) * ramp(side - 0.3, 0.3)
    chest = ramp(y - top - 0.02, 0.1) * ramp(side - 0.1, 0.06) * ramp(floor + 0.1 - y, 0.4)
    clavicle = top + u(0.1, 0.25) - u(0.05, 0.45) * (side - 0.1)
    bones = chest * (u(0.05, 0.14) * back + u(0, 0.04) * front)
    edge = ramp(0.032 - np.abs(y - clavicle), 0.03) * ramp(side - 0.1, 0.05)
    bones = bones + u(0.05, 0.13) * edge * ramp(0.8 - side, 0.1)
    return bones + u(0, 0.07) * bell(x / 0.07) * stripes(y / u(0.1, 0.14))


def _markings(draws: Draws, side: Array, y: Array, viral: bool) -> Array:
    """Vessels that thin out from the hila; in viral pneumonia a denser, wider net of streaks."""
    u = draws.uniform
    net = bell(draws.smooth(30) / 0.35) + 0.8 * bell(draws.smooth(48) / 0.5)
    net = net * np.maximum(0.6 + 0.6 * draws.smooth(9), 0)
    strength = u(0.11, 0.2) if viral else u(0.02, 0.07)
    wide = u(0.25, 0.42) if viral else u(0.12, 0.25)
    haze = u(0, 0.1) if viral else u(0, 0.05)
    reach = bell((side - 0.22) / wide) * bell((y - u(-0.2, 0.05)) / (1.5 * wide))
    markings: Array = reach * (strength * net + haze)
    return markings


def _patches(draws: Draws, x: Array, y: Array, top: float, floor: float, covid: bool) -> Array:
    """Clouded places: few and dense (Lung Opacity), or many, faint and at the wall (COVID)."""
    u, clouds = draws.uniform, np.zeros_like(x)
    dense = u(0.13, 0.28) if covid else u(0.26, 0.48)
    for k in range(draws.number(4, 7) if covid else draws.number(1, 3)):
        fall = u(0.35, 0.95) if covid else u(0.15, 0.9)
        depth = u(0.03, 0.13) if covid else u(0.12, 0.47)
        radius = u(0.06, 0.16) if covid else u(0.1, 0.24)
        # COVID's patches take turns between the sides, so that both have some.
        side = (-1) ** k if covid or draws.chance(0.5) else 1
        across = (x - side * (0.72 * fall**0.36 - depth)) / radius
        along = (y - top - fall * (floor - top)) / (radius * u(0.7, 1.5))
        clouds = np.maximum(clouds, dense * bell(across) * bell(along))
    patches: Array = clouds * np.maximum(1 + u(0.3, 0.8) * draws.smooth(16), 0)
    return patches
