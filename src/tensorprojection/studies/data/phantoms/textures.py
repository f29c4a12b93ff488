"""Parts that the phantoms share: seeded draws in blocks, noise, blur and soft edges."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch.nn.functional import interpolate

from ..images import ImageSet

# float32 throughout; the stubs lose it in arithmetic with Python numbers.
Array = NDArray[np.floating[Any]]

# Note [Blocks]: images are made in whole blocks of this many, each from its own generator seeded
# by (seed, block), and surplus images are dropped. So image i is the same to the bit however many
# are asked for, and the arithmetic runs over a block at a time, small enough for the cache.
BLOCK = 32


@dataclass(frozen=True)
class Draws:
    """The random numbers of one block; every array has one row per image."""

    rng: np.random.Generator

    def uniform(self, low: float, high: float, *shape: int) -> Array:
        values = self.rng.random((BLOCK, *shape), dtype=np.float32)
        return np.float32(low) + np.float32(high - low) * values

    def normal(self, *shape: int) -> Array:
        return self.rng.standard_normal((BLOCK, *shape), dtype=np.float32)

    def chance(self, p: float, *shape: int) -> Array:
        """1 with probability p, else 0."""
        return (self.rng.random((BLOCK, *shape)) < p).astype(np.float32)

    def labels(self, classes: int) -> NDArray[np.int64]:
        """Classes in random order, each once in every ``classes`` images in a row."""
        deck = np.tile(np.arange(classes), (BLOCK // classes, 1))
        return self.rng.permuted(deck, axis=1).ravel()

    def smooth(self, cells: int, size: int) -> Array:
        """Smooth noise, of unit variance at its ``cells × cells`` grid points."""
        A = _bicubic(cells, size)
        grid = torch.from_numpy(self.normal(cells, cells))
        field: Array = (A @ (grid @ A.T)).numpy()
        return field

    def smooth_curve(self, cells: int, size: int) -> Array:
        """Smooth noise along a line, ``(BLOCK, size)``."""
        line: Array = (torch.from_numpy(self.normal(cells)) @ _bicubic(cells, size).T).numpy()
        return line


def blocks(n: int, seed: int, size: int) -> Iterator[Draws]:
    """The draws of as many blocks as n images need; see Note [Blocks]."""
    if size < 32:
        raise ValueError(f"Expected a size of at least 32 pixels, got {size}.")
    if n < 0:
        raise ValueError(f"Expected a number of images ≥ 0, got {n}.")
    if seed < 0:
        raise ValueError(f"Expected a seed ≥ 0, got {seed}.")
    for block in range(max(1, -(-n // BLOCK))):
        yield Draws(np.random.default_rng([seed, block]))


def labelled(
    make_block: Callable[[Draws, int], tuple[NDArray[np.uint8], NDArray[np.int64]]],
    n: int,
    seed: int,
    size: int,
    class_names: tuple[str, ...],
) -> ImageSet:
    """The first n images, with their classes, of as many blocks as that takes."""
    made = [make_block(draws, size) for draws in blocks(n, seed, size)]
    return ImageSet(
        np.concatenate([images for images, _ in made])[:n],
        labels=np.concatenate([labels for _, labels in made])[:n],
        class_names=class_names,
    )


@lru_cache(maxsize=64)
def _bicubic(cells: int, size: int) -> torch.Tensor:
    """The matrix that enlarges a line of ``cells`` points to ``size``."""
    # Two products with it are several times faster than torch's interpolation in two dimensions.
    unit = torch.eye(cells)[:, None, None]
    lines = interpolate(unit, size=(1, size), mode="bicubic", align_corners=True)
    return lines[:, 0, 0].T.contiguous()


def ramp(distance: Array, width: float = 1.0) -> Array:
    """0 below the edge, 1 above it, linear over ``width`` around it: an edge without jaggies."""
    share: Array = np.clip(distance / np.float32(width) + np.float32(0.5), 0, 1)
    return share


def bell(distance: Array) -> Array:
    """exp(−d²/2)."""
    return np.exp(np.float32(-0.5) * np.square(distance))


def to_uint8(x: Array) -> NDArray[np.uint8]:
    return np.rint(np.clip(x, 0, 255)).astype(np.uint8)
