"""Decoding: image files, which may be corrupted or something else, to arrays of one size."""

from __future__ import annotations

import io
import os
import warnings
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray
from PIL import Image, UnidentifiedImageError

from ..errors import StudyError
from .cache import create_array
from .images import ImageKind, Mode
from .read import Item, Picture, read_regular

STEP = 32  # rows between two reports of progress
# Values of fewer bits in files of 16 (12, as cameras and scanners give) would be nearly black.
FEWER_BITS = 2**14 - 1
# Share of a JPEG mask's pixels from 64 to 191: at quality 10 an outline leaves 1 to 3 %.
MOST_JPEG_NOISE = 0.1

T = TypeVar("T")
Progress = Callable[[str, int, int], None]  # what is being made, how much of it, out of how much


class UnreadableError(Exception):
    """Why a file gives no image, as a clause that follows the file's name."""


# One image


def open_image(picture: Picture) -> Image.Image:
    """Decode a whole image; files cut short and files that claim too many pixels are refused.

    The orientation that a camera may note beside the picture (EXIF) is not applied: masks have no
    such note, and would no longer fit.
    """
    if not isinstance(picture, str):
        return Image.fromarray(picture)
    try:
        content = read_regular(picture)
        with Image.open(io.BytesIO(content)) as image:
            image.load()
            decoded = image.copy()
            decoded.format = image.format
            return decoded
    except (Image.DecompressionBombError, Image.DecompressionBombWarning) as error:
        raise UnreadableError("claims more pixels than can be right") from error
    except UnidentifiedImageError as error:
        raise UnreadableError("is not an image" if content else "is empty") from error
    # Pillow's decoders raise whatever their parsing runs into.
    except Exception as error:
        reason = getattr(error, "strerror", None) or str(error) or type(error).__name__
        raise UnreadableError(f"cannot be read ({reason})") from error


def to_mode(image: Image.Image, mode: Mode) -> Image.Image:
    """Return gray or RGB of 8 bits; 16 bits are scaled, not cut off."""
    if image.mode.startswith("I"):
        wide = np.asarray(image).astype(np.int64)
        low, high = int(wide.min(initial=0)), int(wide.max(initial=0))
        if low < 0 or high > 65535:
            raise UnreadableError(f"has values from {low} to {high}, beyond 16 bits")
        if 0 < high <= FEWER_BITS:
            raise UnreadableError(
                f"has 16 bits and values up to {high} only, so it would be nearly black: are there "
                "fewer bits in it, such as 12? Scale them to 16 or 8 bits"
            )
        image = Image.fromarray(((wide * 255 + 32767) // 65535).astype(np.uint8))
    elif image.mode == "F":
        raise UnreadableError("has pixels of floating point, not of 8 or 16 bits")
    elif image.mode == "P" and "transparency" in image.info:
        image = image.convert("RGBA")
    return image if image.mode == mode else image.convert(mode)


def fit(image: Image.Image, size: int, mode: Mode) -> NDArray[np.uint8]:
    """Resize to ``size × size``, bilinear and antialiased, whatever the aspect ratio was.

    The paper resizes in the same way. Image.draft is not used: the JPEG decoder would scale with
    another filter, and give other pixels than the same picture stored as PNG.
    """
    image = to_mode(image, mode)
    if image.size != (size, size):
        image = image.resize((size, size), Image.Resampling.BILINEAR)
    return np.asarray(image, dtype=np.uint8)


def binary(mask: Image.Image) -> Image.Image:
    """Return the mask with the values 0 and 255.

    The mask has two values: 0 and 1, or 0 and one above 127. JPEG adds others, few of them far from
    0 and 255. Anything else is refused: a threshold would merge classes in silence.
    """
    pixels = np.asarray(mask if mask.mode.startswith("I") else to_mode(mask, "L"))
    values, counts = np.unique(pixels, return_counts=True)
    top = int(values[-1])
    if mask.format == "JPEG":
        between = counts[(values >= 64) & (values < 192)].sum()
        two = between <= MOST_JPEG_NOISE * pixels.size
    else:
        two = set(values.tolist()) <= {0, top}
    if not two or 1 < top <= 127:
        shown = ", ".join(map(str, values[:6].tolist())) + (", …" if len(values) > 6 else "")
        raise UnreadableError(f"has the values {shown}: a mask has two, 0 and 255 or 0 and 1")
    return Image.fromarray(np.where(pixels > (0 if top == 1 else 127), 255, 0).astype(np.uint8))


def open_item(item: Item, kind: ImageKind) -> tuple[Image.Image, Image.Image | None]:
    """Return an image and its binary mask; the message of an UnreadableError names the file."""
    file = item.image if isinstance(item.image, str) else item.name
    try:
        image = to_mode(open_image(item.image), kind.mode)
        if not kind.masks:
            return image, None
        if item.mask is None:
            raise UnreadableError("has no mask of the same name")
        file = item.mask if isinstance(item.mask, str) else f"the mask of {item.name}"
        mask = open_image(item.mask)
        if mask.size != image.size:
            raise UnreadableError(
                f"is {mask.width} × {mask.height}, its image {image.width} × {image.height}: "
                "expected a mask of the image's size"
            )
        return image, binary(mask)
    except UnreadableError as error:
        raise UnreadableError(f"{file} {error}") from error


# Many images


def in_threads(
    work: Callable[[int], T],
    count: int,
    what: str = "",
    progress: Progress | None = None,
) -> list[T]:
    """Return ``work(row)`` for every row. The first error stops the rest.

    There is one thread per core, as Pillow decodes and resizes without the GIL.
    """
    pool = ThreadPoolExecutor(os.cpu_count() or 1)
    results: list[T] = []
    try:
        # Warning filters are global to the process, so they are set once around all threads.
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", module=r"PIL\.")  # odd but readable files
            warnings.simplefilter("error", Image.DecompressionBombWarning)
            for result in pool.map(work, range(count)):
                results.append(result)
                if progress is not None and len(results) % STEP in (0, count % STEP):
                    progress(what, len(results), count)
        return results
    finally:
        pool.shutdown(cancel_futures=True)


def decode_into(
    folder: Path,
    items: Sequence[Item],
    kind: ImageKind,
    size: int,
    skip_unreadable: bool = False,
    progress: Progress | None = None,
) -> tuple[list[Item], list[str]]:
    """Write ``images.npy`` (and ``masks.npy``); return the items in them, and the names left out.

    Args:
        folder: where the files go.
        items: the images, in the order of the rows.
        kind: gray or RGB, with masks or not; a pair is stored or left out as a whole.
        size: height and width of the images.
        skip_unreadable: leave out what cannot be decoded, instead of an error at the first.
        progress: called with what is decoded, how many of them, out of how many.
    """
    shapes = {"images": kind.shape(len(items), size)}
    if kind.masks:
        shapes["masks"] = (len(items), size, size)
    arrays = {n: create_array(folder / f"{n}.npy", shape, np.uint8) for n, shape in shapes.items()}

    def one(row: int) -> bool:
        try:
            image, mask = open_item(items[row], kind)
        except UnreadableError as error:
            if skip_unreadable:
                return False
            raise StudyError(
                f"{error}. Replace it, or leave such files out with `skip_unreadable`."
            ) from error
        arrays["images"][row] = fit(image, size, kind.mode)
        if mask is not None:  # binary before it is resized and after
            arrays["masks"][row] = fit(mask, size, "L") > 127
        return True

    readable = np.array(in_threads(one, len(items), "images", progress), bool)
    if not readable.any():
        raise StudyError(f"Expected at least one readable image, got none of {len(items)}.")
    if not readable.all():
        for name, array in arrays.items():
            np.save(folder / f"{name}.npy", array[readable])
    pairs = list(zip(items, readable, strict=True))
    return [item for item, ok in pairs if ok], [item.name for item, ok in pairs if not ok]
