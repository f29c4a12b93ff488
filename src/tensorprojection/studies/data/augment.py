"""Changed copies of images: the paper's augmentation, made in advance (sections 3.2 and 3.3).

A copy is the image under one affine map; what lies outside takes the value of the nearest border
pixel. A mask goes through the same map, by its nearest pixel, and so stays 0 and 1; brightness and
colour change in the image alone.

What the paper leaves open is done as in Keras, which it used: every number is uniform in its range,
and shift and zoom are drawn for each axis.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn.functional import grid_sample


@dataclass(frozen=True)
class Augmentation:
    """How far the copies may differ from their original.

    Args:
        rotation: degrees, to either side.
        shift: share of the side, to either side, along each axis.
        zoom: the scale of each axis is 1 − zoom … 1 + zoom.
        shear: radians, to either side.
        flip_horizontal: mirror left and right in half of the copies.
        flip_vertical: mirror top and bottom in half of the copies.
        brightness: the range of the factor on all grey levels.
        colour: grey levels added to or taken from each channel.
    """

    rotation: float = 0.0
    shift: float = 0.0
    zoom: float = 0.0
    shear: float = 0.0
    flip_horizontal: bool = False
    flip_vertical: bool = False
    brightness: tuple[float, float] = (1.0, 1.0)
    colour: float = 0.0

    def __post_init__(self) -> None:
        for name in ("rotation", "shift", "zoom", "shear", "colour"):
            if not getattr(self, name) >= 0:
                raise ValueError(f"Expected {name} ≥ 0, got {getattr(self, name)}.")
        if self.zoom >= 1:
            raise ValueError(f"Expected a zoom below 1, got {self.zoom}.")
        low, high = self.brightness
        if not 0 <= low <= high:
            raise ValueError(f"Expected brightness as (low, high), got {self.brightness}.")


@dataclass(frozen=True)
class Change:
    """What is done to one image: flip, zoom, shear, rotate, shift, in this order, then colours.

    ``Change()`` leaves the image as it is. Pairs are ``(x, y)``; x points right and y down.

    Args:
        rotation: degrees, counter-clockwise as seen.
        shift: share of the side; positive moves the content right and down.
        zoom: above 1 the content grows.
        shear: radians; the content below the centre leans right.
        flip: mirror left and right; top and bottom.
        brightness: factor on all grey levels.
        colour: grey levels added to each channel; a gray image takes the first.
    """

    rotation: float = 0.0
    shift: tuple[float, float] = (0.0, 0.0)
    zoom: tuple[float, float] = (1.0, 1.0)
    shear: float = 0.0
    flip: tuple[bool, bool] = (False, False)
    brightness: float = 1.0
    colour: tuple[float, float, float] = (0.0, 0.0, 0.0)


def draw(augmentation: Augmentation, seed: int, image: int, copy: int) -> Change:
    """The change that makes this copy of this image; it depends on these four alone.

    >>> turned = Augmentation(rotation=10)
    >>> draw(turned, seed=0, image=5, copy=1) == draw(turned, seed=0, image=5, copy=1)
    True
    >>> draw(Augmentation(), seed=0, image=5, copy=1) == Change()
    True
    """
    # All numbers are drawn, wanted or not: a range of 0 must not change what the others get.
    u: list[float] = np.random.default_rng([seed, image, copy]).random(12).tolist()
    low, high = augmentation.brightness

    def within(reach: float, k: int) -> float:
        return reach * (2 * u[k] - 1)

    return Change(
        rotation=within(augmentation.rotation, 0),
        shift=(within(augmentation.shift, 1), within(augmentation.shift, 2)),
        zoom=(1 + within(augmentation.zoom, 3), 1 + within(augmentation.zoom, 4)),
        shear=within(augmentation.shear, 5),
        flip=(
            augmentation.flip_horizontal and u[6] < 0.5,
            augmentation.flip_vertical and u[7] < 0.5,
        ),
        brightness=low + (high - low) * u[8],
        colour=(
            within(augmentation.colour, 9),
            within(augmentation.colour, 10),
            within(augmentation.colour, 11),
        ),
    )


def augment(
    images: NDArray[np.uint8], masks: NDArray[np.uint8] | None, changes: Sequence[Change]
) -> tuple[NDArray[np.uint8], NDArray[np.uint8] | None]:
    """Image k with change k, and its mask with the same geometry.

    Args:
        images: ``(N, H, W)`` gray or ``(N, H, W, 3)`` RGB.
        masks: ``(N, H, W)`` of 0 and 1, or none.
        changes: N of them, from :func:`draw` or written out.
    """
    if len(changes) != len(images):
        raise ValueError(f"Expected a change for each of {len(images)} images, got {len(changes)}.")
    if masks is not None and masks.shape != images.shape[:3]:
        raise ValueError(f"Expected masks of shape {images.shape[:3]}, got {masks.shape}.")
    if not len(images):
        return images.copy(), None if masks is None else masks.copy()
    grid = _grid(changes, *images.shape[1:3])
    gray = images.ndim == 3
    pixels = torch.from_numpy(images.astype(np.float32))
    seen = _sample(pixels[:, None] if gray else pixels.permute(0, 3, 1, 2), grid, "bilinear")
    for k, change in enumerate(changes):
        colour = torch.tensor(change.colour[: seen.shape[1]])[:, None, None]
        seen[k].mul_(change.brightness).add_(colour)
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
    """Where each output pixel comes from, ``(N, H, W, 2)``, as ``grid_sample`` wants it.

    ``affine_grid`` would do this by a matrix product, whose last bits may depend on how many images
    there are. Here every pixel is computed by itself, so a copy does not depend on its chunk.
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
    """A and b of ``source = A · pixel + b``, in pixels from the centre: the change undone."""
    angle = math.radians(change.rotation)
    cos, sin = math.cos(angle), math.sin(angle)
    unrotate = np.array([[cos, -sin], [sin, cos]])
    unshear = np.array([[1, -math.tan(change.shear)], [0, 1]])
    sign = np.where(change.flip, -1.0, 1.0)
    A = np.diag(sign / change.zoom) @ unshear @ unrotate
    return A, -A @ (np.array(change.shift) * (width, height))
