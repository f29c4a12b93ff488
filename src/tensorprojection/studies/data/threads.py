"""The same work for many rows, side by side."""

from __future__ import annotations

import os
import sys
import warnings
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

from PIL import Image
from rich.console import Console
from rich.progress import Progress

CHUNK = 32  # rows a task


def in_threads(work: Callable[[int], None], count: int, workers: int | None, doing: str) -> None:
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
