"""Chest radiograph phantoms: a thorax and, by class, where and how the lungs are clouded.

Lung Opacity: one to three dense patches, anywhere. COVID: several faint ones near the chest wall,
on both sides, low rather than high. Viral Pneumonia: a net of streaks around the hila, both sides.
The body, its place and the film's brightness vary as much in every class. The image spans
−1 … 1 in both directions.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ..images import ImageSet
from .textures import BLOCK, Array, Draws, bell, labelled, ramp, to_uint8

CLASS_NAMES = ("Normal", "Lung Opacity", "COVID", "Viral Pneumonia")
NORMAL, OPACITY, COVID, VIRAL = range(4)


def make(n: int, seed: int = 0, size: int = 160) -> ImageSet:
    """n radiographs of ``size × size``, classes in equal numbers; image i does not depend on n."""
    return labelled(_block, n, seed, size, CLASS_NAMES)


@dataclass
class _Thorax:
    """Coordinates that lie straight in the body, and the lungs in them; ``(BLOCK, size, size)``."""

    x: Array
    y: Array
    lungs: Array  # 1 inside
    wall: Array  # distance |x| of the chest wall from the midline, by row
    top: Array  # (BLOCK, 1, 1)
    floor: Array  # (BLOCK, 1, 1), the diaphragm's mean height


def _block(draws: Draws, size: int) -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
    labels = draws.labels(len(CLASS_NAMES))
    thorax, dense = _body(draws, size)
    dense += _bones(draws, thorax)
    dense += thorax.lungs * _markings(draws, thorax, labels == VIRAL, size)
    dense += thorax.lungs * _patches(draws, thorax, labels, size)
    return to_uint8(_film(draws, dense, thorax, size)), labels


def _body(draws: Draws, size: int) -> tuple[_Thorax, Array]:
    """Soft tissue, lungs, heart, spine and diaphragm as a map of density."""
    line = np.linspace(-1, 1, size, dtype=np.float32)
    turn = draws.uniform(-0.06, 0.06, 1, 1)
    scale = draws.uniform(0.88, 1.25, 1, 1)
    across = (line[None, None] + draws.uniform(-0.14, 0.14, 1, 1)) / scale
    down = (line[None, :, None] + draws.uniform(-0.14, 0.14, 1, 1)) / scale
    x, y = across + turn * down, down - turn * across
    side = np.abs(x)

    top = draws.uniform(-0.86, -0.72, 1, 1)
    floor = draws.uniform(0.38, 0.68, 1, 1)
    fall = np.clip((y - top) / (floor - top), 0, 1.3)
    wall = draws.uniform(0.66, 0.8, 1, 1) * np.power(fall + 1e-3, draws.uniform(0.3, 0.42, 1, 1))
    wall = wall - 0.06 * np.square(np.maximum(fall - 0.75, 0)) * 8

    # The heart leans to the image's right; its edge is that side's inner border of the lung.
    right = ramp(x, 0.02)
    low = draws.uniform(0.12, 0.3, 1, 1)
    bulge = draws.uniform(0.18, 0.34, 1, 1) * bell((y - low) / draws.uniform(0.24, 0.36, 1, 1))
    knob = draws.uniform(0, 0.07, 1, 1) * bell((y + 0.38) / 0.1)
    inner = draws.uniform(0.1, 0.16, 1, 1) + right * (bulge + knob) + (1 - right) * 0.3 * bulge

    dome = draws.uniform(0.12, 0.3, 1, 1) * np.square((side - 0.36) / 0.4)
    higher = draws.uniform(0.0, 0.09, 1, 1) * (1 - right)
    diaphragm = floor + dome - higher
    soft = 0.05
    lungs = ramp(side - inner, soft) * ramp(wall - side, soft) * ramp(diaphragm - y, soft)
    lungs *= ramp(y - top, soft)

    arms = draws.uniform(0.88, 1.25, 1, 1) - 0.1 * bell((y + 0.1) / 0.4)
    neck = draws.uniform(0.16, 0.26, 1, 1) + np.maximum(y + 0.98, 0) * draws.uniform(2, 5, 1, 1)
    body = ramp(np.minimum(arms, neck) - side, 0.08)
    dense = body * draws.uniform(0.5, 0.66, 1, 1)
    dense += body * draws.uniform(0.1, 0.22, 1, 1) * bell(x / 0.15)  # spine and mediastinum
    dense += body * draws.uniform(0.05, 0.2, 1, 1) * ramp(y - diaphragm, 0.1)
    heart = ramp(inner - side, 0.06) * bell((y - low) / 0.35)
    dense += body * draws.uniform(0, 0.08, 1, 1) * heart
    bubble = bell((x - 0.4) / 0.14) * bell((y - floor - 0.22) / 0.07)  # air in the stomach
    dense -= draws.chance(0.5, 1, 1) * draws.uniform(0.05, 0.25, 1, 1) * bubble
    air = draws.uniform(0.3, 0.46, 1, 1) * (1 - 0.25 * bell((side - 0.25) / 0.2))
    dense -= lungs * body * air
    dense += 0.04 * body * draws.smooth(5, size)
    return _Thorax(x, y, lungs * body, wall, top, floor), dense


def _bones(draws: Draws, thorax: _Thorax) -> Array:
    """Ribs behind and before, clavicles, and the spine's vertebrae."""
    x, y, side = thorax.x, thorax.y, np.abs(thorax.x)
    chest = ramp(thorax.wall + 0.05 - side, 0.05) * ramp(y - thorax.top - 0.02, 0.1)
    chest *= ramp(side - 0.1, 0.06) * ramp(thorax.floor + 0.1 - y, 0.4)
    step = draws.uniform(0.15, 0.2, 1, 1)
    sharp = draws.uniform(1.5, 3.5, 1, 1)
    outward = draws.uniform(0.2, 0.4, 1, 1) * side
    drop = outward + draws.uniform(0.25, 0.6, 1, 1) * np.square(side)

    def ribs(height: Array) -> Array:
        return np.power(0.5 + 0.5 * np.cos(np.float32(2 * np.pi) * height / step), sharp)

    phase = draws.uniform(0, 1, 1, 1) * step
    back = ribs(y - drop + phase)
    front = ribs(y + 1.5 * drop + phase) * ramp(side - 0.3, 0.3)
    bones = chest * (draws.uniform(0.05, 0.14, 1, 1) * back + draws.uniform(0, 0.04, 1, 1) * front)

    slope = draws.uniform(0.05, 0.45, 1, 1)
    bow = draws.uniform(0, 0.04, 1, 1) * np.sin(np.float32(9) * (side - 0.1))
    clavicle = thorax.top + draws.uniform(0.1, 0.25, 1, 1) - slope * (side - 0.1) + bow
    reach = ramp(side - 0.1, 0.05) * ramp(0.8 - side, 0.1)
    edge = ramp(0.032 - np.abs(y - clavicle), 0.03)
    bones += draws.uniform(0.05, 0.13, 1, 1) * reach * edge
    discs = 0.5 + 0.5 * np.cos(np.float32(2 * np.pi) * y / draws.uniform(0.1, 0.14, 1, 1))
    return bones + draws.uniform(0, 0.07, 1, 1) * bell(x / 0.07) * discs


def _markings(draws: Draws, thorax: _Thorax, viral: NDArray[np.bool_], size: int) -> Array:
    """Vessels that thin out from the hila; in viral pneumonia a denser, wider net of streaks."""
    side = np.abs(thorax.x)
    fine = bell(draws.smooth(30, size) / 0.35) + 0.8 * bell(draws.smooth(48, size) / 0.5)
    net = fine * np.maximum(0.6 + 0.6 * draws.smooth(9, size), 0)
    ill = viral[:, None, None]
    strength = np.where(ill, draws.uniform(0.11, 0.2, 1, 1), draws.uniform(0.02, 0.07, 1, 1))
    wide = np.where(ill, draws.uniform(0.25, 0.42, 1, 1), draws.uniform(0.12, 0.25, 1, 1))
    hilum = draws.uniform(-0.2, 0.05, 1, 1)
    reach = bell((side - 0.22) / wide) * bell((thorax.y - hilum) / (1.5 * wide))
    haze = np.where(ill, draws.uniform(0, 0.1, 1, 1), draws.uniform(0, 0.05, 1, 1))
    markings: Array = reach * (strength * net + haze)
    return markings


def _patches(draws: Draws, thorax: _Thorax, labels: NDArray[np.int64], size: int) -> Array:
    """Clouded places: few and dense (Lung Opacity), or many, faint and at the wall (COVID)."""
    many = 7
    uneven = np.maximum(1 + draws.uniform(0.3, 0.8, 1, 1) * draws.smooth(16, size), 0)
    sides = np.where(draws.rng.random((BLOCK, many)) < 0.5, -1, 1).astype(np.float32)
    along = draws.uniform(0, 1, many)  # from the lungs' top to their floor
    inward = draws.uniform(0, 1, many)  # from the wall to the midline
    number = draws.uniform(0, 1, 1)
    strength = draws.uniform(0, 1, 1)
    radius = draws.uniform(0, 1, many)
    long = draws.uniform(0.7, 1.5, many)

    clouds = np.zeros((BLOCK, size, size), np.float32)
    for i in np.flatnonzero((labels == OPACITY) | (labels == COVID)):
        covid = labels[i] == COVID
        count = int(4 + 4 * number[i, 0]) if covid else int(1 + 3 * number[i, 0])
        dense = (0.13 + 0.15 * strength[i, 0]) if covid else (0.26 + 0.22 * strength[i, 0])
        for k in range(count):
            fall = (0.35 + 0.6 * along[i, k]) if covid else (0.15 + 0.75 * along[i, k])
            row = thorax.top[i] + fall * (thorax.floor[i] - thorax.top[i])
            depth = (0.03 + 0.1 * inward[i, k]) if covid else (0.12 + 0.35 * inward[i, k])
            wall = 0.72 * np.power(fall, 0.36)
            # COVID's patches take turns between the sides, so that both have some.
            side = (-1.0) ** k if covid else sides[i, k]
            r = (0.06 + 0.1 * radius[i, k]) if covid else (0.1 + 0.14 * radius[i, k])
            across = (thorax.x[i] - side * (wall - depth)) / r
            clouds[i] = np.maximum(
                clouds[i], dense * bell(across) * bell((thorax.y[i] - row) / (r * long[i, k]))
            )
    return clouds * uneven


def _film(draws: Draws, dense: Array, thorax: _Thorax, size: int) -> Array:
    """Exposure, contrast, scatter and grain of the film, and at times a marker letter."""
    dense = dense + draws.uniform(-0.08, 0.08, 1, 1) * thorax.y
    dense = dense + draws.uniform(-0.05, 0.05, 1, 1) * thorax.x
    low, span = draws.uniform(-0.1, 0.1, 1, 1), draws.uniform(0.85, 1.05, 1, 1)
    light = np.clip((dense - low) / span, 0, 1)
    light = np.power(light, draws.uniform(0.9, 1.6, 1, 1))
    grain = draws.normal(size, size) * draws.uniform(0.004, 0.02, 1, 1)
    line = np.linspace(-1, 1, size, dtype=np.float32)
    right = line[None, None] - draws.uniform(0.7, 0.9, 1, 1) * np.sign(draws.uniform(-1, 1, 1, 1))
    below = line[None, :, None] - draws.uniform(-0.92, 0.2, 1, 1)
    stem = ramp(0.012 - np.abs(right + 0.03), 0.02) * ramp(0.05 - np.abs(below), 0.02)
    foot = ramp(0.035 - np.abs(right), 0.02) * ramp(0.012 - np.abs(below - 0.045), 0.02)
    marker = draws.chance(0.5, 1, 1) * np.maximum(stem, foot)
    return np.float32(255) * np.maximum(light + grain, marker)
