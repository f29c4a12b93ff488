"""Pictures for the page, as addresses that hold them, and what pictures of U's show in numbers."""

from __future__ import annotations

import base64
import io
import math
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from .statistics import Floats

# From the least to the greatest value: blue, white, red, as in most plots of signed values.
HEAT = (33, 102, 172), (247, 247, 247), (178, 24, 43)
TRUTH, FOUND = (0, 255, 140), (255, 140, 0)
Bytes = NDArray[np.uint8]
Mask = NDArray[np.bool_]


def heat_map(matrix: Floats, top: float) -> str:
    """Return a picture with a pixel for each entry, from −top (blue) over 0 to top (red)."""
    scaled = matrix / (top or 1.0)
    rgb = [np.interp(scaled, (-1, 0, 1), ends) for ends in zip(*HEAT, strict=True)]
    image = Image.fromarray(np.stack(rgb, axis=-1).round().astype(np.uint8))
    # A palette of 256 colours is a third as large, and looks the same.
    return _address(image.quantize(256), "PNG", optimize=True)


def photo(image: Bytes) -> str:
    """Return a picture of a gray or RGB image."""
    return _address(Image.fromarray(image.squeeze()), "JPEG", quality=85)


def outlined(image: Bytes, truth: Mask, found: Mask) -> str:
    """Return the image with the outlines of two masks."""
    drawn = np.array(Image.fromarray(image.squeeze()).convert("RGB"))
    drawn[_edge(truth)] = TRUTH
    drawn[_edge(found)] = FOUND
    return _address(Image.fromarray(drawn), "PNG")


def _edge(mask: Mask) -> Mask:
    """Return the pixels of a mask with a neighbour outside of it; the image's border is none."""
    from scipy.ndimage import binary_erosion

    edge: Mask = mask & ~binary_erosion(mask, border_value=1)
    return edge


def _address(image: Image.Image, kind: str, **options: Any) -> str:
    buffer = io.BytesIO()
    image.save(buffer, kind, **options)
    return f"data:image/{kind.lower()};base64,{base64.b64encode(buffer.getvalue()).decode()}"


# Projections


def low_pass(U: Floats) -> float:
    """Return the share of U's columns in the span of the lowest cosines: 1 for a low-pass.

    The cosines are those of the DCT-II. Random columns have about q/p. Any rotation of U's columns
    has the same share.

    >>> round(low_pass(np.ones((4, 1)) / 2), 6)
    1.0
    """
    from scipy.fft import dct

    low: Floats = dct(U, axis=0, norm="ortho")[: U.shape[1]]
    total = float(np.square(U).sum())
    return float(np.square(low).sum()) / total if total else math.nan


def overlap(first: Floats, last: Floats) -> float:
    """Return the share of the first U's span that lies in the last's, for orthonormal columns.

    >>> overlap(np.eye(4)[:, :2], np.eye(4)[:, 1:3])
    0.5
    """
    return float(np.square(first.T @ last).sum() / first.shape[1])
