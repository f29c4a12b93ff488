"""Arrays as pictures that are part of the page."""

from __future__ import annotations

import base64
import io
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

Bytes = NDArray[np.uint8]
Mask = NDArray[np.bool_]

TRUTH = (0, 255, 140)
FOUND = (255, 140, 0)
# From the least to the greatest value: blue, white, red, as in most plots of signed values.
LEAST, ZERO, GREATEST = (33, 102, 172), (247, 247, 247), (178, 24, 43)


def photo(image: Bytes) -> str:
    """A picture of an image, as the address of one that is written out in the page."""
    return _address(Image.fromarray(image), "JPEG", quality=85)


def outlined(image: Bytes, truth: Mask, found: Mask | None = None) -> str:
    """The image with the outlines of one mask or of two."""
    colours = image if image.ndim == 3 else np.repeat(image[..., None], 3, axis=2)
    drawn = colours.copy()
    drawn[_edge(truth)] = TRUTH
    if found is not None:
        drawn[_edge(found)] = FOUND
    return _address(Image.fromarray(drawn), "PNG")


def _edge(mask: Mask) -> Mask:
    """The pixels of a mask that have a neighbour outside of it; the image's border is none."""
    padded = np.pad(mask, 1, mode="edge")
    inner = padded[:-2, 1:-1] & padded[2:, 1:-1] & padded[1:-1, :-2] & padded[1:-1, 2:]
    edge: Mask = mask & ~inner
    return edge


def heat_map(matrix: NDArray[np.floating[Any]], top: float) -> str:
    """One pixel per entry, from −top (blue) over 0 (white) to top (red)."""
    scaled = np.clip(matrix.astype(np.float64) / (top or 1.0), -1, 1)[..., None]
    less = ZERO + (np.array(LEAST) - ZERO) * -scaled
    more = ZERO + (np.array(GREATEST) - ZERO) * scaled
    colours = np.where(scaled < 0, less, more).round().astype(np.uint8)
    # A palette of 256 colours is a third as large, and cannot be told apart.
    return _address(Image.fromarray(colours).quantize(256), "PNG", optimize=True)


def _address(image: Image.Image, kind: str, **options: Any) -> str:
    buffer = io.BytesIO()
    image.save(buffer, kind, **options)
    return f"data:image/{kind.lower()};base64,{base64.b64encode(buffer.getvalue()).decode()}"
