"""From image files to rows of one size, decoded side by side straight into a file."""

from __future__ import annotations

import io
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from PIL import Image, UnidentifiedImageError

from ..errors import StudyError
from . import rows as row_file
from .folders import File, Item
from .kinds import ImageKind, Mode
from .regular import read_regular
from .threads import Progress, in_threads

CHUNK = 32  # rows in memory at once
WAY_OUT = "Replace it, or leave such files out with `skip_unreadable`."
# Values of fewer bits in files of 16 (12, as cameras and scanners give) would be nearly black.
FEWER_BITS = 2**14 - 1


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
            wide = any(";16" in str(part) for part in image.tile) and not image.mode.startswith("I")
            image.load()
            decoded = image.copy()
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
    """0 and 255, of a mask with 0 and 1, with 0 and the highest value, or of JPEG.

    JPEG adds other values, but none of them far from 0 or 255. A mask whose highest value is
    another one is refused: taking it as empty would be silently wrong.
    """
    if mask.mode.startswith("I"):
        values = np.unique(np.asarray(mask)).tolist()
        if not any(set(values) <= {0, top} for top in (1, 255, 65535)):
            shown = ", ".join(map(str, values[:6])) + (", …" if len(values) > 6 else "")
            raise UnreadableError(f"has the values {shown} where a mask has 0 and 65535")
        return Image.fromarray(np.where(np.asarray(mask) > 0, 255, 0).astype(np.uint8))
    gray = to_mode(mask, "L")
    highest = int(gray.getextrema()[1])  # type: ignore[arg-type]
    if 1 < highest <= 127:
        raise UnreadableError(f"has values up to {highest} where a mask has 0 and 255, or 0 and 1")
    threshold = 0 if highest == 1 else 127
    return gray.point([255 if value > threshold else 0 for value in range(256)])


def fit_mask(mask: Image.Image, size: int) -> NDArray[np.uint8]:
    """0 and 1. Binary before it is resized and after."""
    return (fit(binary(mask), size, "L") > 127).astype(np.uint8)


def read(file: File) -> bytes:
    try:
        return read_regular(file.path)
    except OSError as error:
        raise UnreadableError(f"cannot be read ({error.strerror})") from error


def same_size(mask: Image.Image, image: Image.Image) -> None:
    if mask.size != image.size:
        raise UnreadableError(
            f"is {mask.width} × {mask.height}, its image {image.width} × {image.height}: expected "
            "a mask of the image's size"
        )


# Many


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
    """Write ``images.npy`` (and ``masks.npy``); returns the items in it, and the files left out.

    Args:
        folder: where the files go.
        items: the images, in the order of the rows.
        kind: gray or RGB, with masks or not; a pair is kept or left out as a whole.
        size: side of the square images.
        skip_unreadable: leave out what cannot be decoded, instead of an error at the first.
        workers: threads; default one per core, as Pillow decodes and resizes without the GIL.
        progress: called with what is decoded, how many of them, out of how many.
    """
    shapes = {"images": kind.shape(len(items), size)}
    if kind.masks:
        shapes["masks"] = (len(items), size, size)
    for name, shape in shapes.items():
        row_file.create(folder / f"{name}.npy", shape, np.uint8)
    unreadable: dict[int, str] = {}
    with ExitStack() as open_files:
        files = {
            name: open_files.enter_context(row_file.RowFile(folder / f"{name}.npy"))
            for name in shapes
        }

        def one(row: int) -> None:
            item = items[row]
            try:
                picture = _decode(item.image)
                with _named(item.image):
                    files["images"].write(row, fit(picture, size, kind.mode)[None])
                if kind.masks:
                    files["masks"].write(row, _decode_mask(item, picture, size)[None])
            except _NamedError as error:
                if not skip_unreadable:
                    raise StudyError(f"{error} {WAY_OUT}") from error
                unreadable[row] = error.file

        in_threads(one, len(items), workers, "images", progress)
    kept = [row for row in range(len(items)) if row not in unreadable]
    if not kept:
        raise StudyError(f"Expected at least one readable image, got none of {len(items)}.")
    if unreadable:
        for name in shapes:
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


def _decode_mask(item: Item, picture: Image.Image, size: int) -> NDArray[np.uint8]:
    with _named(item.image):
        if item.mask is None:
            raise UnreadableError("has no mask of the same name")
    mask = _decode(item.mask)
    with _named(item.mask):
        same_size(mask, picture)
        return fit_mask(mask, size)


def _keep(path: Path, rows: Sequence[int]) -> None:
    """Rewrite the file with these rows only."""
    whole = np.load(path, mmap_mode="r", allow_pickle=False)
    beside = path.with_suffix(".kept")
    row_file.create(beside, (len(rows), *whole.shape[1:]), np.uint8)
    with row_file.RowFile(beside) as kept:
        for start in range(0, len(rows), CHUNK):
            kept.write(start, whole[list(rows[start : start + CHUNK])])
    del whole  # or Windows would not replace it
    beside.replace(path)
