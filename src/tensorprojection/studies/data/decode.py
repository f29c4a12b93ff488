"""Decoding: image files, which may be corrupted or something else, to arrays of one size."""

from __future__ import annotations

import errno
import io
import os
import stat
import warnings
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from io import BufferedReader
from pathlib import Path
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray
from PIL import Image, UnidentifiedImageError

from ..errors import StudyError
from .cache import create_array
from .folders import File, Item
from .images import ImageKind, Mode

STEP = 32  # rows between two reports of progress
MOST_BYTES = 2**29  # of one image's file; the largest of the data sets have a few million
# Values of fewer bits in files of 16 (12, as cameras and scanners give) would be nearly black.
FEWER_BITS = 2**14 - 1
# Share of a JPEG mask's pixels from 64 to 191: at quality 10 an outline leaves 1 to 3 %.
MOST_JPEG_NOISE = 0.1

T = TypeVar("T")
Progress = Callable[[str, int, int], None]  # what is being made, how much of it, out of how much


class UnreadableError(Exception):
    """Why a file gives no image, as a clause that follows the file's name."""


# Reading


def open_regular(path: str | Path) -> BufferedReader:
    """Open a regular file, or a link to one; anything else is an OSError and is never read.

    Reading a pipe would block, and a device may be endless.
    """
    if not stat.S_ISREG(os.stat(path).st_mode):
        raise OSError(errno.EINVAL, "not a regular file", str(path))
    return open(path, "rb")


def read_regular(path: str | Path, most: int = MOST_BYTES) -> bytes:
    """Read a whole file of at most so many bytes; the default is for an image."""
    with open_regular(path) as file:
        content = file.read(most + 1)
    if len(content) > most:
        raise OSError(errno.EFBIG, f"more than {most} bytes", str(path))
    return content


def read(file: File) -> bytes:
    """Read an image's whole file; whatever is wrong with it is an UnreadableError."""
    try:
        return read_regular(file.path)
    except OSError as error:
        raise UnreadableError(f"cannot be read ({error.strerror})") from error


# One image


def picture(file: File) -> Image.Image:
    """Return the decoded image of a file, or of an array's pixels."""
    return open_image(read(file)) if file.pixels is None else Image.fromarray(file.pixels)


def open_image(content: bytes) -> Image.Image:
    """Decode a whole image; files cut short and files that claim too many pixels are refused.

    The orientation that a camera may note beside the picture (EXIF) is not applied: masks have no
    such note, and would no longer fit.
    """
    if not content:
        raise UnreadableError("is empty")
    try:
        with Image.open(io.BytesIO(content)) as image:
            wide = any(";16" in str(part) for part in image.tile) and not image.mode.startswith("I")
            image.load()
            decoded = image.copy()
            decoded.format = image.format
    except (Image.DecompressionBombError, Image.DecompressionBombWarning) as error:
        raise UnreadableError("claims more pixels than can be right") from error
    except UnidentifiedImageError as error:
        raise UnreadableError("is not an image") from error
    # Pillow's decoders raise whatever their parsing runs into.
    except Exception as error:
        reason = str(error) or type(error).__name__
        raise UnreadableError(f"cannot be decoded ({reason})") from error
    if wide:  # of colours with 16 bits Pillow keeps the upper 8: the others may be anything
        colours = np.asarray(decoded.convert("RGB"))
        _refuse_fewer_bits(256 * int(colours.max(initial=0)) + 255)
    return decoded


def _refuse_fewer_bits(highest: int) -> None:
    if 0 < highest <= FEWER_BITS:
        raise UnreadableError(
            f"has 16 bits and values up to {highest} only, so it would be nearly black: are there "
            "fewer bits in it, such as 12? Scale them to 16 or 8 bits"
        )


def to_mode(image: Image.Image, mode: Mode) -> Image.Image:
    """Return gray or RGB of 8 bits; 16 bits are scaled, not cut off."""
    if image.mode.startswith("I"):
        wide = np.asarray(image).astype(np.int64)
        low, high = int(wide.min(initial=0)), int(wide.max(initial=0))
        if low < 0 or high > 65535:
            raise UnreadableError(f"has values from {low} to {high}, beyond 16 bits")
        _refuse_fewer_bits(high)
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


def fit_mask(mask: Image.Image, size: int) -> NDArray[np.uint8]:
    """Resize a mask to 0 and 1. It is binary before it is resized and after."""
    return (fit(binary(mask), size, "L") > 127).astype(np.uint8)


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
    *,
    skip_unreadable: bool = False,
    progress: Progress | None = None,
) -> tuple[list[int], tuple[str, ...]]:
    """Write ``images.npy`` (and ``masks.npy``); return the rows in them, and the files left out.

    Args:
        folder: where the files go.
        items: the images, in the order of the rows.
        kind: gray or RGB, with masks or not; a pair is stored or left out as a whole.
        size: height and width of the images.
        skip_unreadable: leave out what cannot be decoded, instead of an error at the first.
        progress: called with what is decoded, how many of them, out of how many.
    """
    arrays = {"images": create_array(folder / "images.npy", kind.shape(len(items), size), np.uint8)}
    if kind.masks:
        shape = (len(items), size, size)
        arrays["masks"] = create_array(folder / "masks.npy", shape, np.uint8)

    def one(row: int) -> str | None:
        item = items[row]
        file = item.image
        try:
            image = picture(file)
            arrays["images"][row] = fit(image, size, kind.mode)
            if kind.masks:
                if item.mask is None:
                    raise UnreadableError("has no mask of the same name")
                file = item.mask
                mask = picture(file)
                if mask.size != image.size:
                    raise UnreadableError(
                        f"is {mask.width} × {mask.height}, its image {image.width} × "
                        f"{image.height}: expected a mask of the image's size"
                    )
                arrays["masks"][row] = fit_mask(mask, size)
        except UnreadableError as error:
            if not skip_unreadable:
                raise StudyError(
                    f"{file.path or file.name} {error}. Replace it, or leave such files out with "
                    "`skip_unreadable`."
                ) from error
            return file.name
        return None

    unreadable = in_threads(one, len(items), "images", progress)
    rows = [row for row, name in enumerate(unreadable) if name is None]
    if not rows:
        raise StudyError(f"Expected at least one readable image, got none of {len(items)}.")
    if len(rows) < len(items):
        for name, array in arrays.items():
            part = folder / f"{name}.part"
            readable = create_array(part, (len(rows), *array.shape[1:]), array.dtype)
            for to, row in enumerate(rows):  # one by one: all of them may be more than the memory
                readable[to] = array[row]
            part.replace(folder / f"{name}.npy")
    return rows, tuple(name for name in unreadable if name is not None)
