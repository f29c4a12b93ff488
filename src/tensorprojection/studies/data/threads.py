"""The same work for many rows, in parallel."""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

from PIL import Image

CHUNK = 32  # rows of a task

Progress = Callable[[str, int, int], None]  # what is being made, how much of it, out of how much


def in_threads(
    work: Callable[[int], None],
    count: int,
    workers: int | None,
    what: str = "",
    progress: Progress | None = None,
) -> None:
    """``work(row)`` for every row. The first error stops it all."""
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
