"""Image files, which may not be what their names say, to arrays of one size."""

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

import numpy as np
from numpy.typing import NDArray
from PIL import Image, UnidentifiedImageError

from ..errors import StudyError
from .folders import File, Item
from .images import ImageKind, Mode
from .stored import create_array

CHUNK = 32  # rows of a task
MOST_BYTES = 2**29  # of one image's file; the largest of the data sets have a few million
# Values of fewer bits in files of 16 (12, as cameras and scanners give) would be nearly black.
FEWER_BITS = 2**14 - 1
# Share of a JPEG mask's pixels from 64 to 191: at quality 10 an outline leaves 1 to 3 %.
MOST_JPEG_NOISE = 0.1
OTHERS = {
    stat.S_IFDIR: "a folder",
    stat.S_IFIFO: "a pipe",
    stat.S_IFCHR: "a device",
    stat.S_IFBLK: "a device",
    stat.S_IFSOCK: "a socket",
}

Progress = Callable[[str, int, int], None]  # what is being made, how much of it, out of how much


class UnreadableError(Exception):
    """Why a file gives no image, as a clause that follows the file's name."""


# Reading


def open_regular(path: str | Path) -> BufferedReader:
    """Open a regular file, or a link to one; anything else is an OSError and is never read.

    A pipe would wait for ever, a device may be endless.
    """
    kind = stat.S_IFMT(os.stat(path).st_mode)
    if kind != stat.S_IFREG:
        what = OTHERS.get(kind, "something else")
        raise OSError(errno.EINVAL, f"{what}, not a regular file", str(path))
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


def open_image(content: bytes) -> Image.Image:
    """The whole image, decoded; files cut short and files that claim too much are refused.

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
    """Gray or RGB of 8 bits; 16 bits are scaled, not cut off."""
    if image.mode.startswith("I"):
        wide = np.asarray(image).astype(np.int64)
        if wide.size and (wide.min() < 0 or wide.max() > 65535):
            raise UnreadableError(f"has values from {wide.min()} to {wide.max()}, beyond 16 bits")
        _refuse_fewer_bits(int(wide.max(initial=0)))
        image = Image.fromarray(((wide * 255 + 32767) // 65535).astype(np.uint8))
    elif image.mode == "F":
        raise UnreadableError("has pixels of floating point, not of 8 or 16 bits")
    elif image.mode == "P" and "transparency" in image.info:
        image = image.convert("RGBA")
    return image if image.mode == mode else image.convert(mode)


def fit(image: Image.Image, size: int, mode: Mode) -> NDArray[np.uint8]:
    """``size × size``, bilinear and antialiased; the aspect ratio is not kept, as in the paper."""
    image = to_mode(image, mode)
    # No shortcut by Image.draft, which has the JPEG decoder do part of the scaling by its own
    # filter: the pixels would no longer be those of the same picture stored as PNG.
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
    """0 and 1. Binary before it is resized and after."""
    return (fit(binary(mask), size, "L") > 127).astype(np.uint8)


# Many files


def in_threads(
    work: Callable[[int], None],
    count: int,
    workers: int | None,
    what: str = "",
    progress: Progress | None = None,
) -> None:
    """Call ``work(row)`` for every row. The first error stops it all."""
    pool = ThreadPoolExecutor(workers or os.cpu_count() or 1)
    done = 0

    def some(start: int) -> int:
        rows = range(start, min(start + CHUNK, count))
        for row in rows:
            work(row)
        return len(rows)

    try:
        # Warning filters are global to the process, so they are set once around all threads.
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", module=r"PIL\.")  # odd but readable files
            warnings.simplefilter("error", Image.DecompressionBombWarning)
            for more in pool.map(some, range(0, count, CHUNK)):
                done += more
                if progress is not None:
                    progress(what, done, count)
    finally:
        pool.shutdown(cancel_futures=True)


def decode_into(
    folder: Path,
    items: Sequence[Item],
    kind: ImageKind,
    size: int,
    *,
    skip_unreadable: bool = False,
    workers: int | None = None,
    progress: Progress | None = None,
) -> tuple[list[int], tuple[str, ...]]:
    """Write ``images.npy`` (and ``masks.npy``); return the rows in them, and the files left out.

    Args:
        folder: where the files go.
        items: the images, in the order of the rows.
        kind: gray or RGB, with masks or not; a pair is stored or left out as a whole.
        size: side of the square images.
        skip_unreadable: leave out what cannot be decoded, instead of an error at the first.
        workers: threads; default one per core, as Pillow decodes and resizes without the GIL.
        progress: called with what is decoded, how many of them, out of how many.
    """
    arrays = {"images": create_array(folder / "images.npy", kind.shape(len(items), size), np.uint8)}
    if kind.masks:
        shape = (len(items), size, size)
        arrays["masks"] = create_array(folder / "masks.npy", shape, np.uint8)
    unreadable: dict[int, str] = {}

    def one(row: int) -> None:
        item = items[row]
        file = item.image
        try:
            picture = open_image(read(file))
            arrays["images"][row] = fit(picture, size, kind.mode)
            if kind.masks:
                if item.mask is None:
                    raise UnreadableError("has no mask of the same name")
                file = item.mask
                mask = open_image(read(file))
                if mask.size != picture.size:
                    raise UnreadableError(
                        f"is {mask.width} × {mask.height}, its image {picture.width} × "
                        f"{picture.height}: expected a mask of the image's size"
                    )
                arrays["masks"][row] = fit_mask(mask, size)
        except UnreadableError as error:
            if not skip_unreadable:
                raise StudyError(
                    f"{file.path} {error}. Replace it, or leave such files out with "
                    "`skip_unreadable`."
                ) from error
            unreadable[row] = file.name

    in_threads(one, len(items), workers, "images", progress)
    rows = [row for row in range(len(items)) if row not in unreadable]
    if not rows:
        raise StudyError(f"Expected at least one readable image, got none of {len(items)}.")
    if unreadable:
        for name in arrays:
            _select(folder / f"{name}.npy", rows, arrays[name])
    return rows, tuple(unreadable[row] for row in sorted(unreadable))


def _select(path: Path, rows: Sequence[int], whole: NDArray[np.uint8]) -> None:
    """Rewrite the file with these rows only."""
    beside = path.with_suffix(".selected")
    selected = create_array(beside, (len(rows), *whole.shape[1:]), np.uint8)
    for to, row in enumerate(rows):
        selected[to] = whole[row]
    beside.replace(path)
