"""From image files to rows of one size, decoded side by side straight into a mapped file."""

from __future__ import annotations

import io
import os
import shutil
import sys
import warnings
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image, UnidentifiedImageError
from rich.console import Console
from rich.progress import Progress

from ..errors import StudyError
from .folders import File, Item
from .kinds import Kind, Mode

CHUNK = 32  # images a task
WAY_OUT = "Replace it, or leave such files out with --skip-unreadable."


JPEG_NOISE = 16  # an empty mask may have values up to this


class UnreadableError(Exception):
    """Why a file gives no image, as a clause that follows the file's name."""


# One file


def open_image(content: bytes) -> Image.Image:
    """The whole image, decoded; files cut short and files that claim too much are refused.

    The orientation that a camera may note beside the picture (EXIF) is not applied: masks have no
    such note, and would no longer fit.
    """
    if not content:
        raise UnreadableError("is empty")
    try:
        with Image.open(io.BytesIO(content)) as image:
            image.load()
            return image.copy()
    except (Image.DecompressionBombError, Image.DecompressionBombWarning) as error:
        raise UnreadableError("claims more pixels than can be right") from error
    except UnidentifiedImageError as error:
        raise UnreadableError("is not an image") from error
    # Pillow's decoders raise whatever their parsing runs into.
    except Exception as error:
        reason = str(error) or type(error).__name__
        raise UnreadableError(f"cannot be decoded ({reason})") from error


def to_mode(image: Image.Image, mode: Mode) -> Image.Image:
    """Gray or RGB of 8 bits; 16 bits are scaled, not cut off."""
    if image.mode.startswith("I"):
        wide = np.asarray(image).astype(np.int64)
        if wide.size and (wide.min() < 0 or wide.max() > 65535):
            raise UnreadableError(f"has values from {wide.min()} to {wide.max()}, beyond 16 bits")
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


def fit_mask(mask: Image.Image, size: int) -> NDArray[np.uint8]:
    """0 and 1. Binary before it is resized, as JPEG leaves other values about, and after.

    Masks of 0 and 1 are taken as such. Values in between, with none above one half, are neither.
    """
    gray = to_mode(mask, "L")
    highest = int(gray.getextrema()[1])  # type: ignore[arg-type]
    if JPEG_NOISE < highest <= 127:
        raise UnreadableError(f"has values up to {highest} where a mask has 0 and 255, or 0 and 1")
    threshold = 0 if highest == 1 else 127
    binary = gray.point([255 if value > threshold else 0 for value in range(256)])
    return (fit(binary, size, "L") > 127).astype(np.uint8)


def read(file: File) -> bytes:
    try:
        return Path(file.path).read_bytes()
    except OSError as error:
        raise UnreadableError(f"cannot be read ({error.strerror})") from error


# Many


def decode_into(
    folder: Path,
    items: Sequence[Item],
    kind: Kind,
    size: int,
    *,
    skip_unreadable: bool = False,
    workers: int | None = None,
) -> tuple[list[int], tuple[str, ...]]:
    """Write ``images.npy`` (and ``masks.npy``); which items are in it, and which files were left.

    Args:
        folder: where the files go.
        items: the images, in the order of the rows.
        kind: gray or RGB, with masks or not; a pair is kept or left out as a whole.
        size: side of the square images.
        skip_unreadable: leave out what cannot be decoded, instead of an error at the first.
        workers: threads; default one a core, as Pillow decodes and resizes without the GIL.
    """
    images = blank(folder / "images.npy", kind.shape(len(items), size))
    masks = blank(folder / "masks.npy", (len(items), size, size)) if kind.masks else None
    unreadable: dict[int, str] = {}

    def one(row: int) -> None:
        item = items[row]
        try:
            picture = _decode(item.image)
            with _named(item.image):
                images[row] = fit(picture, size, kind.mode)
            if masks is not None:
                masks[row] = _decode_mask(item, picture.size, size)
        except _NamedError as error:
            if not skip_unreadable:
                raise StudyError(f"{error} {WAY_OUT}") from error
            unreadable[row] = error.file

    in_threads(one, len(items), workers, "decoding")
    kept = [row for row in range(len(items)) if row not in unreadable]
    if not kept:
        raise StudyError(f"Expected at least one readable image, got none of {len(items)}.")
    if unreadable:
        for name in ("images", "masks") if kind.masks else ("images",):
            _keep(folder / f"{name}.npy", kept)
    return kept, tuple(unreadable[row] for row in sorted(unreadable))


class _NamedError(Exception):
    def __init__(self, file: str, path: str, reason: str) -> None:
        super().__init__(f"{path} {reason}.")
        self.file = file


@contextmanager
def _named(file: File) -> Iterator[None]:
    try:
        yield
    except UnreadableError as error:
        raise _NamedError(file.name, file.path, str(error)) from error


def _decode(file: File) -> Image.Image:
    with _named(file):
        return open_image(read(file))


def _decode_mask(item: Item, wanted: tuple[int, int], size: int) -> NDArray[np.uint8]:
    with _named(item.image):
        if item.mask is None:
            raise UnreadableError("has no mask of the same name")
    mask = _decode(item.mask)
    with _named(item.mask):
        if mask.size != wanted:
            raise UnreadableError(
                f"is {mask.width} × {mask.height}, its image {wanted[0]} × {wanted[1]}: expected "
                "a mask of the image's size"
            )
        return fit_mask(mask, size)


def in_threads(work: Any, count: int, workers: int | None, doing: str) -> None:
    """``work(row)`` for every row. The first error stops it all."""
    pool = ThreadPoolExecutor(workers or os.cpu_count() or 1)
    console = Console(stderr=True)
    quick = count < 1000 or not sys.stderr.isatty()
    progress = Progress(console=console, transient=True, disable=quick)

    def some(start: int) -> int:
        rows = range(start, min(start + CHUNK, count))
        for row in rows:
            work(row)
        return len(rows)

    try:
        # Filters are the process's, so they are set once around all threads.
        with warnings.catch_warnings(), progress:
            warnings.filterwarnings("ignore", module=r"PIL\.")  # oddities that decode all the same
            warnings.simplefilter("error", Image.DecompressionBombWarning)
            task = progress.add_task(doing, total=count)
            for done in pool.map(some, range(0, count, CHUNK)):
                progress.advance(task, done)
    finally:
        pool.shutdown(cancel_futures=True)


def blank(path: Path, shape: tuple[int, ...]) -> np.memmap[Any, np.dtype[np.uint8]]:
    """A mapped ``.npy`` of uint8 to be filled."""
    # A mapped file is sparse at first, and a disk that fills up later kills the process.
    needed, free = int(np.prod(shape, dtype=object)), shutil.disk_usage(path.parent).free
    if needed > free:
        raise StudyError(
            f"Expected {needed / 1e9:.1f} GB free for the cache {path.parent}, got "
            f"{free / 1e9:.1f} GB. Free some space, or set TENSORPROJECTION_CACHE to a folder "
            "that has some."
        )
    return np.lib.format.open_memmap(path, mode="w+", dtype=np.uint8, shape=shape)


def _keep(path: Path, rows: Sequence[int]) -> None:
    """Rewrite the file with these rows only."""
    whole = np.load(path, mmap_mode="r", allow_pickle=False)
    beside = path.with_suffix(".kept")
    kept = np.lib.format.open_memmap(
        beside, mode="w+", dtype=np.uint8, shape=(len(rows), *whole.shape[1:])
    )
    for start in range(0, len(rows), CHUNK):
        kept[start : start + CHUNK] = whole[list(rows[start : start + CHUNK])]
    kept.flush()
    del whole, kept
    beside.replace(path)
