"""Augmented copies of images, made in advance and cached (the paper's sections 3.2 and 3.3).

The paper used Keras' ImageDataGenerator, and a copy is made in its order: one affine map, whose
pixels from outside take the value of the nearest border pixel; then colour, flips and brightness.
A mask goes through the same geometry with nearest-pixel sampling, so it stays 0 and 1; colour and
brightness change in the image alone. Two differences remain: copies are made at the training size,
of images that were resized before, and grey levels are rounded once, at the end.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn.functional import grid_sample

from ..errors import StudyError
from .cache import cached, create_array, open_stored, save
from .images import KNOWN, ImageSet

CHUNK = 16  # images in memory at once; more are slower, as they leave the processor's cache


@dataclass(frozen=True)
class Augmentation:
    """The ranges of the differences between a copy and its original; draws are uniform in them.

    >>> Augmentation(rotation=10, shift=0.05, flip_horizontal=True).zoom
    0.0

    Args:
        rotation: degrees, in both directions.
        shift: share of the image's size, in both directions, along each axis.
        shear: radians, in both directions.
        zoom: the scale of each axis is 1 − zoom … 1 + zoom.
        colour: grey levels added to all channels, or taken from them.
        flip_horizontal: mirror left and right in half of the copies.
        flip_vertical: mirror top and bottom in half of the copies.
        brightness: the range of the factor on all grey levels.
    """

    rotation: float = 0.0
    shift: float = 0.0
    shear: float = 0.0
    zoom: float = 0.0
    colour: float = 0.0
    flip_horizontal: bool = False
    flip_vertical: bool = False
    brightness: tuple[float, float] = (1.0, 1.0)

    def __post_init__(self) -> None:
        for name in ("rotation", "shift", "shear", "zoom", "colour"):
            if not getattr(self, name) >= 0:
                raise ValueError(f"Expected {name} ≥ 0, got {getattr(self, name)}.")
        if self.zoom >= 1:
            raise ValueError(f"Expected a zoom below 1, got {self.zoom}.")
        low, high = self.brightness
        if not 0 <= low <= high:
            raise ValueError(f"Expected brightness as (low, high), got {self.brightness}.")


@dataclass(frozen=True)
class Change:
    """The change of one image, in the order in which it is applied; ``Change()`` is none.

    With p = (x, y) from the image's centre, right and down, the copy has at p what the original has
    at ``R(rotation) · (S(shear) · Z(zoom) · p + shift)``, as in Keras.

    Args:
        rotation: degrees; above 0 the content turns counter-clockwise.
        shift: share of the image's width and height; above 0 the content moves left and up.
        shear: radians; ``S = [[1, −sin], [0, cos]]``, so the content below the centre leans right.
        zoom: of width and height; above 1 the content shrinks.
        colour: grey levels added to all channels, within the image's lowest and highest level.
        flip: mirror left and right; top and bottom.
        brightness: factor on all grey levels.
    """

    rotation: float = 0.0
    shift: tuple[float, float] = (0.0, 0.0)
    shear: float = 0.0
    zoom: tuple[float, float] = (1.0, 1.0)
    colour: float = 0.0
    flip: tuple[bool, bool] = (False, False)
    brightness: float = 1.0


def draw(augmentation: Augmentation, seed: int, image: int, copy: int) -> Change:
    """Return the change that makes this copy of this image; it depends on these four alone.

    >>> turned = Augmentation(rotation=10)
    >>> draw(turned, seed=0, image=5, copy=1) == draw(turned, seed=0, image=5, copy=1)
    True
    >>> draw(Augmentation(), seed=0, image=5, copy=1) == Change()
    True
    """
    # All numbers are drawn, wanted or not: a range of 0 must not change what the others get.
    u: list[float] = np.random.default_rng([seed, image, copy]).random(10).tolist()
    low, high = augmentation.brightness

    def within(reach: float, k: int) -> float:
        return reach * (2 * u[k] - 1)

    return Change(
        rotation=within(augmentation.rotation, 0),
        shift=(within(augmentation.shift, 1), within(augmentation.shift, 2)),
        shear=within(augmentation.shear, 3),
        zoom=(1 + within(augmentation.zoom, 4), 1 + within(augmentation.zoom, 5)),
        colour=within(augmentation.colour, 6),
        flip=(
            augmentation.flip_horizontal and u[7] < 0.5,
            augmentation.flip_vertical and u[8] < 0.5,
        ),
        brightness=low + (high - low) * u[9],
    )


def augment(
    images: NDArray[np.uint8], masks: NDArray[np.uint8] | None, changes: Sequence[Change]
) -> tuple[NDArray[np.uint8], NDArray[np.uint8] | None]:
    """Return image k with change k, and its mask with the same geometry.

    Args:
        images: ``(N, H, W)`` gray or ``(N, H, W, 3)`` RGB.
        masks: ``(N, H, W)`` of 0 and 1, or none.
        changes: N of them, from :func:`draw` or written out.
    """
    if not len(images):
        return images.copy(), None if masks is None else masks.copy()
    grid = _grid(changes, *images.shape[1:3])
    gray = images.ndim == 3
    pixels = torch.from_numpy(images.astype(np.float32))
    seen = _sample(pixels[:, None] if gray else pixels.permute(0, 3, 1, 2), grid, "bilinear")
    for image, change in zip(seen, changes, strict=True):
        low, high = image.min(), image.max()
        image.add_(change.colour).clamp_(low, high).mul_(change.brightness)
    levels = seen.round_().clamp_(0, 255).to(torch.uint8)
    changed = (levels[:, 0] if gray else levels.permute(0, 2, 3, 1).contiguous()).numpy()
    if masks is None:
        return changed, None
    flat = torch.from_numpy(masks.astype(np.float32))[:, None]
    return changed, _sample(flat, grid, "nearest")[:, 0].to(torch.uint8).numpy()


def _sample(x: Tensor, grid: Tensor, mode: str) -> Tensor:
    # A pixel is a square and not a point: ±1 are the outer edges, so align_corners is False.
    return grid_sample(x, grid, mode=mode, padding_mode="border", align_corners=False)


def _grid(changes: Sequence[Change], height: int, width: int) -> Tensor:
    """Return each output pixel's source, ``(N, H, W, 2)``, as ``grid_sample`` takes it.

    ``affine_grid`` uses a matrix product, whose last bits may depend on the number of images. Here
    every pixel is computed by itself, so a copy does not depend on its chunk.
    """
    maps = [_source(change, height, width) for change in changes]
    A = torch.tensor(np.stack([a for a, _ in maps]), dtype=torch.float32)[..., None, None]
    b = torch.tensor(np.stack([b for _, b in maps]), dtype=torch.float32)[..., None, None]
    x = torch.arange(width) - (width - 1) / 2
    y = torch.arange(height)[:, None] - (height - 1) / 2
    from_x = A[:, 0, 0] * x + A[:, 0, 1] * y + b[:, 0]
    from_y = A[:, 1, 0] * x + A[:, 1, 1] * y + b[:, 1]
    return torch.stack([from_x * (2 / width), from_y * (2 / height)], dim=-1)


def _source(change: Change, height: int, width: int) -> tuple[NDArray[Any], NDArray[Any]]:
    """Return A and b of ``source = A · pixel + b`` in pixels from the centre."""
    angle = math.radians(change.rotation)
    cos, sin = math.cos(angle), math.sin(angle)
    R = np.array([[cos, -sin], [sin, cos]])
    S = np.array([[1, -math.sin(change.shear)], [0, math.cos(change.shear)]])
    # Mirrored with the map: colours do not depend on the place, so a flip may come before them.
    Z = np.diag(np.where(change.flip, -1.0, 1.0) * change.zoom)
    return R @ S @ Z, R @ (np.array(change.shift) * (width, height))


# Copies of a set


def make_copies(
    originals: Path,
    copies: Mapping[str, int] | int,
    augmentation: Augmentation,
    seed: int,
    progress: Callable[[int, int], None] | None = None,
) -> Path:
    """Return the cache's folder of the copies of these images; make them if there is none.

    It has an ImageSet and ``of.npy``: the row of each copy's original.

    An image's copies depend on its row, the seed and the augmentation only: the first two of seven
    are the same as both of two.

    Args:
        originals: the cache's folder of the originals; its name stands for their content.
        copies: how many of each image, or of each image of a class by the class's name.
        augmentation: how far they may differ from the original.
        seed: another seed gives other copies.
        progress: called with the number of copies made and to make.
    """
    images = open_stored(originals)
    numbers = _numbers(images, copies)

    def make(folder: Path) -> None:
        shape = (int(numbers.sum()), *images.images.shape[1:])
        to = create_array(folder / "images.npy", shape, np.uint8)
        masks = images.masks
        to_masks = (
            None if masks is None else create_array(folder / "masks.npy", shape[:3], np.uint8)
        )
        of = np.repeat(np.arange(len(images)), numbers)
        known = {name: getattr(images, name) for name in KNOWN}
        known = {name: None if array is None else array[of] for name, array in known.items()}
        save(folder, images.class_names, {**known, "of": of})
        copy = np.arange(len(of)) - np.searchsorted(of, of)  # 0, 1, … within each original
        for start in range(0, len(of), CHUNK):
            chunk = slice(start, start + CHUNK)
            rows = of[chunk]
            changes = [
                draw(augmentation, seed, int(i), int(k))
                for i, k in zip(rows, copy[chunk], strict=True)
            ]
            mask = None if masks is None else masks[rows]
            to[chunk], made = augment(images.images[rows], mask, changes)
            if to_masks is not None:
                to_masks[chunk] = made
            if progress is not None:
                progress(start + len(rows), len(of))

    key = {
        "originals": originals.name,
        "copies": copies if isinstance(copies, int) else dict(copies),
        "augmentation": asdict(augmentation),
        "seed": seed,
    }
    return cached("copies", key, make)


def _numbers(images: ImageSet, copies: Mapping[str, int] | int) -> NDArray[np.int64]:
    """Return the number of copies of each image."""
    given = [copies] if isinstance(copies, int) else list(copies.values())
    if min(given) < 0:
        raise StudyError(f"Expected 0 or more copies of each image, got {given}.")
    if isinstance(copies, int):
        return np.full(len(images), copies, np.int64)
    if images.labels is None or set(copies) != set(images.class_names):
        raise StudyError(
            f"Expected a number of copies for each of the classes {', '.join(images.class_names)}, "
            f"got {', '.join(copies)}."
        )
    return np.array([copies[name] for name in images.class_names], np.int64)[images.labels]
