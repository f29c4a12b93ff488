"""What cannot fit this machine is refused before any memory or disk is used."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import Any

from .config import PHANTOMS, RunConfig
from .data.cache import cache_folder
from .errors import StudyError
from .study import Study


def check_fits(study: Study[Any], config: RunConfig) -> None:
    """A ``StudyError`` where the least that a run needs is more than the whole machine has.

    It is a lower bound, for generated images, whose number is known: what passes may still be too
    much.
    """
    if config.data != PHANTOMS:
        return
    count = config.images or study.images.phantom_count
    pixels = config.size**2
    images = count * pixels * study.images.pixel_bytes
    asked = f"{count:,} images of {config.size} × {config.size}"
    _compare(f"{asked} take", images, "the memory", _memory(), "`size` or fewer `images`")
    copies = study.copies(config)
    _compare(
        f"{asked} and {copies:,} copies of each take",
        images * (1 + copies),
        f"the disk of {cache_folder()}",
        _disk(cache_folder()),
        "`size`, fewer `images` or fewer `copies`",
    )
    if study.sees_images:
        batch = min(config.batch, count)
        _compare(
            f"A batch of {batch:,} images of {config.size} × {config.size} takes at least",
            batch * pixels * 3 * 4,  # three channels of float32
            "the memory",
            _memory(),
            "`size` or `batch`",
        )


def _compare(what: str, needs: int, where: str, has: int | None, smaller: str) -> None:
    if has is not None and needs > has:
        raise StudyError(
            f"{what} {_gigabytes(needs)}, but {where} has {_gigabytes(has)} in all. Choose a "
            f"smaller {smaller}."
        )


def _gigabytes(count: int) -> str:
    return f"{count / 1e9:,.1f} GB"


def _memory() -> int | None:
    """Of the machine, in bytes; None where it is not known."""
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (AttributeError, ValueError, OSError):
        return None


def _disk(folder: Path) -> int | None:
    """All of the disk that the folder is on, or will be, in bytes."""
    try:
        there = next(path for path in (folder, *folder.absolute().parents) if path.exists())
        return shutil.disk_usage(there).total
    except OSError:
        return None
