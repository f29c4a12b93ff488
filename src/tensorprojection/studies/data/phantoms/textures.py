"""Parts that the phantoms share: seeded draws, noise, soft edges.

Each image has a generator of its own, seeded by (seed, its number): it is the same however many are
asked for. Arrays are float32.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch.nn.functional import interpolate

from ..images import ImageSet

Array = NDArray[np.floating[Any]]  # the stubs lose float32 in arithmetic with Python numbers


class Draws:
    """The random numbers of one image of ``size × size``."""

    def __init__(self, seed: int, image: int, size: int) -> None:
        self.rng = np.random.default_rng([seed, image])
        self.size = size

    def uniform(self, low: float, high: float) -> float:
        return float(self.rng.uniform(low, high))

    def chance(self, p: float) -> bool:
        return bool(self.rng.random() < p)

    def number(self, low: int, high: int) -> int:
        return int(self.rng.integers(low, high + 1))

    def normal(self, *shape: int) -> Array:
        return self.rng.standard_normal(shape, dtype=np.float32)

    def smooth(self, cells: int) -> Array:
        """Smooth noise over the image, of unit variance at its ``cells × cells`` grid points."""
        A = _bicubic(cells, self.size)
        field: Array = A @ self.normal(cells, cells) @ A.T
        return field

    def curve(self, cells: int) -> Array:
        """Smooth noise along a line."""
        line: Array = _bicubic(cells, self.size) @ self.normal(cells)
        return line


def images_of(n: int, seed: int, size: int) -> list[Draws]:
    """Return the draws of each of n images."""
    if size < 32:
        raise ValueError(f"Expected a size of at least 32 pixels, got {size}.")
    if n < 0:
        raise ValueError(f"Expected a number of images ≥ 0, got {n}.")
    if seed < 0:
        raise ValueError(f"Expected a seed ≥ 0, got {seed}.")
    return [Draws(seed, image, size) for image in range(n)]


def labelled(
    draw: Callable[[Draws, int], Array], n: int, seed: int, size: int, class_names: tuple[str, ...]
) -> ImageSet:
    """Return n images with their classes, each class once in every ``len(class_names)`` images."""
    count, draws = len(class_names), images_of(n, seed, size)
    decks = [np.random.default_rng([seed, deck, 1]).permutation(count) for deck in range(n)]
    labels = np.array([decks[k // count][k % count] for k in range(n)], np.int64)
    images = np.empty((n, size, size), np.uint8)
    for k, label in enumerate(labels.tolist()):
        images[k] = to_uint8(draw(draws[k], label))
    return ImageSet(images, labels=labels, class_names=class_names)


@lru_cache(maxsize=64)
def _bicubic(cells: int, size: int) -> Array:
    """The matrix that enlarges a line of ``cells`` points to ``size``."""
    unit = torch.eye(cells)[:, None, None]
    lines = interpolate(unit, size=(1, size), mode="bicubic", align_corners=True)
    enlarging: Array = lines[:, 0, 0].T.contiguous().numpy()
    return enlarging


def ramp(distance: Array, width: float = 1.0) -> Array:
    """0 below the edge, 1 above it, linear over ``width`` around it: an edge without jaggies."""
    share: Array = np.clip(distance / width + 0.5, 0, 1)
    return share


def bell(distance: Array) -> Array:
    """exp(−d²/2)."""
    height: Array = np.exp(-0.5 * np.square(distance))
    return height


def to_uint8(x: Array) -> NDArray[np.uint8]:
    return np.rint(np.clip(x, 0, 255)).astype(np.uint8)
