"""Seeded generators of images like those of the paper's three studies; nothing is downloaded.

>>> oct_phantoms(8)
ImageSet(8 images of 96 × 96, labels: NORMAL 2, CNV 2, DME 2, DRUSEN 2)

A class shows in small structures, whose place, size and contrast vary, in images whose shape and
brightness vary as much in every class. Each image has random numbers of its own: image i does not
depend on how many are asked for. Lengths of OCT scans are in 1/96 of the image; the other images
span −1 … 1 in both directions.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.random import Generator
from numpy.typing import NDArray
from PIL import Image

from .images import ImageSet

OCT_CLASSES = ("NORMAL", "CNV", "DME", "DRUSEN")
CHEST_CLASSES = ("Normal", "Lung Opacity", "COVID", "Viral Pneumonia")
POLYP_CLASSES = ("background", "polyp")

Array = NDArray[Any]


def oct_phantoms(n: int, seed: int = 0, size: int = 96) -> ImageSet:
    """Return n retinal scans: layers and, by class, drusen, fluid or a membrane."""
    return _labelled(_oct, n, seed, size, OCT_CLASSES)


def chest_phantoms(n: int, seed: int = 0, size: int = 160) -> ImageSet:
    """Return n radiographs of a thorax; by class, the lungs are clouded elsewhere and otherwise."""
    return _labelled(_chest, n, seed, size, CHEST_CLASSES)


def polyp_phantoms(n: int, seed: int = 0, size: int = 192) -> ImageSet:
    """Return n colonoscopy scenes with a polyp, and as masks the outline it is drawn with.

    No mask is empty; a polyp covers 15 % of the image on average, from about 1 % to more than half.
    """
    made = [_polyp(rng, size) for rng in _generators(n, seed, size)]
    images = np.array([image for image, _ in made], np.uint8).reshape(n, size, size, 3)
    masks = np.array([mask for _, mask in made], np.uint8).reshape(n, size, size)
    return ImageSet(images, masks=masks, class_names=POLYP_CLASSES)


def _generators(n: int, seed: int, size: int) -> list[Generator]:
    if size < 32:
        raise ValueError(f"Expected a size of at least 32 pixels, got {size}.")
    if n < 0 or seed < 0:
        raise ValueError(f"Expected a number of images and a seed ≥ 0, got {n} and {seed}.")
    return [np.random.default_rng([seed, image]) for image in range(n)]


def _labelled(
    draw: Callable[[Generator, str, int], Array],
    n: int,
    seed: int,
    size: int,
    class_names: Sequence[str],
) -> ImageSet:
    """Return n images with their classes, each class once in every ``len(class_names)`` images."""
    count, generators = len(class_names), _generators(n, seed, size)
    decks = [np.random.default_rng([seed, deck, 1]).permutation(count) for deck in range(n)]
    labels = np.array([decks[k // count][k % count] for k in range(n)], np.int64)
    images = np.empty((n, size, size), np.uint8)
    for k, rng in enumerate(generators):
        images[k] = np.clip(draw(rng, class_names[labels[k]], size), 0, 255)
    return ImageSet(images, labels=labels, class_names=tuple(class_names))


def _smooth(rng: Generator, cells: int, size: int, rows: int | None = None) -> Array:
    """Return smooth noise of about unit variance, enlarged from ``cells × cells`` or one row."""
    grid = rng.standard_normal((cells if rows is None else rows, cells), dtype=np.float32)
    enlarged = Image.fromarray(grid).resize((size, rows or size), Image.Resampling.BICUBIC)
    return np.asarray(enlarged)


def _bell(distance: Array) -> Array:
    height: Array = np.exp(-0.5 * np.square(distance))
    return height


def _ramp(distance: Array, width: float = 1.0) -> Array:
    """0 below the edge, 1 above it, linear over ``width`` around it."""
    share: Array = np.clip(distance / width + 0.5, 0, 1)
    return share


def _oct(rng: Generator, label: str, size: int) -> Array:
    u = rng.uniform
    x = np.linspace(-1, 1, size)
    y = (np.arange(size)[:, None] + 0.5) * (96 / size)
    # Bruch's membrane, the retina's thickness with the foveal pit, the pigment epithelium (RPE).
    membrane = u(43, 62) - u(-3, 12) * np.square(x - u(-0.4, 0.4)) + u(-8, 8) * x
    membrane = membrane + u(0, 1.2) * _smooth(rng, 7, size, 1)[0]
    rise: Array = np.zeros(size)
    fovea, fluid = u(-0.45, 0.45), np.zeros(size)
    thickness = u(12, 18) * (1 - u(0, 0.6) * _bell((x - fovea) / u(0.07, 0.18)))
    place = np.clip(fovea + u(-0.5, 0.5), -0.85, 0.85)
    if label == "DRUSEN":
        for _ in range(rng.integers(3, 9)):
            bump = u(2.2, 5) * _bell((x - place - u(-0.4, 0.4)) / u(0.025, 0.065))
            rise = np.maximum(rise, bump)
    if label == "CNV":
        reach, rough = u(0.1, 0.3), 1 + u(0.15, 0.45) * _smooth(rng, 24, size, 1)[0]
        rise = u(4, 11) * np.maximum(rough, 0) * _bell((x - place) / reach)
        fluid = u(0, 6) * _bell((x - place - u(-1.6, 1.6) * reach) / reach)
    if label == "DME":
        thickness = thickness + u(1, 11) * _bell((x - place) / u(0.12, 0.4))
    rpe, above, thickness = membrane - rise, membrane - rise - y, np.maximum(thickness, 5) + fluid

    # Photoreceptors, nuclear and plexiform layers, nerve fibres, vitreous; the choroid fades below.
    edges = [0.0, 0.12, 0.18, 0.38, 0.44, 0.54, 0.62, 0.82, 0.97, 1.03]
    levels = [u(70, 110), u(100, 170), u(34, 56), u(34, 56), u(58, 85), u(45, 65)]
    levels += [u(60, 90), u(85, 140), u(85, 140), u(3, 8)]
    retina = np.interp(above / thickness, edges, levels)
    choroid = u(60, 120) * np.exp((membrane - y) / u(5, 18)) * (1 + 0.3 * _smooth(rng, 26, size))
    filling = (u(80, 190) if label == "CNV" else u(40, 110)) * (1 + 0.2 * _smooth(rng, 30, size))
    image = np.where(above > 0, retina, np.where(y < membrane, filling, choroid))
    image = np.where((above > 0) & (above < fluid), u(8, 26), image)
    image = image + u(80, 150) * _bell(above / 1.2)
    if label == "DME":  # dark cysts inside the retina
        for _ in range(rng.integers(2, 8)):
            column = int(np.clip((place + u(-0.3, 0.3) + 1) / 2, 0.05, 0.95) * size)
            row = rpe[column] - u(0.3, 0.8) * thickness[column]
            wide, high = u(2, 7), u(0.15, 0.35) * thickness[column]
            away = np.hypot((x - x[column]) * 48 / wide, (y - row) / high)
            image = image + _ramp(1 - away, 1 / wide) * (u(3, 18) - image)

    for _ in range(rng.integers(0, 4)):  # shadows of vessels
        image = image * (1 - u(0.1, 0.7) * _bell((x - u(-1, 1)) / u(0.01, 0.05)) * (above < 0))
    grain = rng.standard_normal((size, size))
    grain[:, 1:] += u(0, 0.6) * grain[:, :-1]  # wider than high
    image = image * (1 + u(-0.4, 0.4) * x) * u(0.75, 1.2) * (1 + u(0.03, 0.13) * grain)
    image += u(5, 24) * np.exp(u(0.1, 0.45) * grain)
    return image


def _chest(rng: Generator, label: str, size: int) -> Array:
    u = rng.uniform
    line, scale = np.linspace(-1, 1, size), u(0.88, 1.25)
    across, down = (line - u(-0.14, 0.14)) / scale, (line[:, None] - u(-0.14, 0.14)) / scale
    turn = u(-0.06, 0.06)
    x, y = across + turn * down, down - turn * across
    side, right = np.abs(x), _ramp(x, 0.02)
    # The lungs lie between the heart, which leans to the image's right, the wall, the diaphragm.
    top, floor, low = u(-0.86, -0.72), u(0.38, 0.68), u(0.12, 0.3)
    wall = u(0.66, 0.8) * np.clip((y - top) / (floor - top), 1e-3, 1.3) ** u(0.3, 0.42)
    inner = u(0.1, 0.16) + (0.3 + 0.7 * right) * u(0.18, 0.34) * _bell((y - low) / u(0.24, 0.36))
    diaphragm = floor + u(0.12, 0.3) * np.square((side - 0.36) / 0.4)
    body = _ramp(np.minimum(u(0.88, 1.25), u(0.16, 0.26) + 3 * np.maximum(y + 0.98, 0)) - side, 0.1)
    lungs = body * _ramp(np.minimum(side - inner, wall - side), 0.05)
    lungs = lungs * _ramp(np.minimum(diaphragm - y, y - top), 0.05)
    dense = body * (u(0.5, 0.66) + u(0.1, 0.22) * _bell(x / 0.15) + 0.04 * _smooth(rng, 5, size))
    dense = dense - lungs * u(0.3, 0.46)

    ribs = (y - u(0.2, 0.4) * side - u(0.25, 0.6) * np.square(side)) / u(0.15, 0.2)
    ribs = (0.5 + 0.5 * np.cos(2 * np.pi * ribs)) ** u(1.5, 3.5)
    dense = dense + u(0.05, 0.14) * ribs * body * _ramp(wall + 0.05 - side, 0.05)
    # Vessels thin out from the hila; viral pneumonia is a denser, wider net of streaks.
    viral = label == "Viral Pneumonia"
    net = _bell(_smooth(rng, 30, size) / 0.35) + 0.8 * _bell(_smooth(rng, 48, size) / 0.5)
    wide = u(0.25, 0.42) if viral else u(0.12, 0.25)
    reach = _bell((side - 0.22) / wide) * _bell((y + 0.08) / (1.5 * wide))
    strength, haze = (u(0.11, 0.2), u(0, 0.1)) if viral else (u(0.02, 0.07), u(0, 0.05))
    dense = dense + lungs * reach * (strength * net + haze)
    # Lung Opacity has few, dense patches; COVID many faint ones near the wall, on both sides.
    covid, clouds = label == "COVID", np.zeros((size, size))
    count = {"COVID": rng.integers(4, 8), "Lung Opacity": rng.integers(1, 4)}.get(label, 0)
    for k in range(count):
        fall = u(0.35, 0.95) if covid else u(0.15, 0.9)
        radius, depth = (u(0.06, 0.16), u(0.03, 0.13)) if covid else (u(0.1, 0.24), u(0.12, 0.47))
        at = (-1) ** (k if covid else rng.integers(2)) * (0.72 * fall**0.36 - depth)
        along = (y - top - fall * (floor - top)) / (radius * u(0.7, 1.5))
        clouds = np.maximum(clouds, _bell((x - at) / radius) * _bell(along))
    clouds = clouds * np.maximum(1 + u(0.3, 0.8) * _smooth(rng, 16, size), 0)
    dense = dense + lungs * (u(0.13, 0.28) if covid else u(0.26, 0.48)) * clouds

    dense = dense + u(-0.08, 0.08) * y + u(-0.05, 0.05) * x  # uneven exposure
    light = np.clip((dense - u(-0.1, 0.1)) / u(0.85, 1.05), 0, 1) ** u(0.9, 1.6)
    light += u(0.004, 0.02) * rng.standard_normal((size, size))
    film: Array = 255 * light
    return film


def _polyp(rng: Generator, size: int) -> tuple[Array, NDArray[np.bool_]]:
    """Return a scene in colour and the mask: the polyp's outline within the endoscope's frame.

    Polyps differ from the wall in shading and a little in colour; folds look like parts of one.
    """
    u = rng.uniform
    x = (np.arange(size) + 0.5) * (2 / size) - 1
    y = x[:, None]
    visible = np.abs(x) + np.abs(y) < u(1.3, 1.6)
    # The wall: the lamp's cone, and folds around the dark lumen.
    far = np.hypot(x - u(-0.9, 0.9), u(0.7, 1.4) * (y - u(-0.9, 0.9))) + 0.1 * _smooth(rng, 5, size)
    folds = u(0, 0.4) * np.sin(u(4, 11) * far + u(0, 6)) * np.clip(_smooth(rng, 4, size), 0, 1)
    shade = u(0.75, 1.1) / (1 + u(0.1, 0.5) * (np.square(x) + np.square(y))) * (1 + folds)
    shade = shade * (1 - u(0, 0.95) * _ramp(u(0.1, 0.5) - far, 0.3))
    shade = shade * (1 + 0.05 * _smooth(rng, 10, size) + 0.03 * _smooth(rng, 40, size))
    # The polyp: an ellipse with waves. Areas follow real scenes: log-normal, median 0.11.
    area = np.clip(0.125 * np.exp(0.88 * rng.standard_normal()), 0.007, 0.62)
    radius = np.sqrt(area * 4 / np.pi)  # the image's area is 4 in these units
    free, turn, long = max(0.72 - 0.35 * radius, 0.2), u(0, np.pi), np.exp(u(0, 0.35))
    at_x, at_y = x - free * u(-1, 1), y - free * u(-1, 1)
    along = (np.cos(turn) * at_x + np.sin(turn) * at_y) / (radius * long)
    beside = (np.cos(turn) * at_y - np.sin(turn) * at_x) * long / radius
    angle = np.arctan2(beside, along)
    waves = sum(u(0, 0.16 / k) * np.cos(k * angle + u(0, 6.28)) for k in (2, 3, 5))
    reach = np.hypot(along, beside) / (1 + waves)
    inside, height = reach < 1, np.sqrt(np.maximum(1 - np.square(reach), 0))
    # A lit dome with a texture of its own, and its shadow on the wall.
    light, (down_y, down_x) = u(0, 2 * np.pi), np.gradient(height)
    tilt = (np.cos(light) * down_x + np.sin(light) * down_y) * (size / 40)
    dome = u(0.9, 1.3) * (1 - u(0.2, 0.6) * (1 - height)) * (1 - 0.35 * np.clip(tilt, -1, 1))
    dome = dome * (1 + u(0.02, 0.08) * _smooth(rng, 18, size)) * (0.45 + 0.55 * shade)
    shadow = shade * (1 - u(0.05, 0.4) * _bell((reach - 1) / u(0.05, 0.18)))
    shade = np.clip(np.where(inside, dome, shadow), 0.02, 1.3)

    warm, green = np.where(inside, u(-0.5, 1), 0) + 0.25 * _smooth(rng, 5, size), u(108, 155)
    colours = (
        u(205, 250) * shade**0.8,
        green * shade**1.15 * (1 - 0.14 * warm),
        u(0.65, 0.9) * green * shade**1.25 * (1 - 0.12 * warm),
    )
    colour = np.stack(colours, axis=-1) + u(0.5, 4) * rng.standard_normal((size, size, 1))
    wet = _smooth(rng, 38, size) + 0.6 * _smooth(rng, 7, size) + 0.8 * height
    colour = colour + _ramp(wet - u(2.2, 3.4), 0.25)[..., None] * (u(215, 255) - colour)
    seen = np.where(visible[..., None], colour, u(0, 8))
    return np.clip(seen, 0, 255), inside & visible
