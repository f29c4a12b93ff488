"""The processes that a run starts, to train in.

Each is spawned, as a fork of a process that has run torch's threads may hang.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from multiprocessing import get_context, resource_tracker
from multiprocessing.process import BaseProcess
from typing import Any


def start_process(target: Callable[..., None], *arguments: Any) -> BaseProcess:
    """Start a process that runs the function; Ctrl-C does not reach it."""
    process = get_context("spawn").Process(target=target, args=arguments, daemon=True)
    with settings_to_inherit():
        process.start()
    return process


@contextmanager
def settings_to_inherit() -> Iterator[None]:
    """Let processes that are started in here ignore Ctrl-C, and keep the memory that they free.

    By default glibc's malloc returns every large block and gets it anew, page by page, at each
    step: for networks of this size that takes nearly as long as the arithmetic. Threads other than
    the first, as on Ray, would have heaps of 64 MB of their own, which are returned nonetheless:
    all use the first one's.
    """
    settings = memory_settings()
    os.environ.update(settings)
    masks = hasattr(signal, "pthread_sigmask")  # not on Windows
    if masks:
        # Or it would be started with the first process, and let signals through again after that.
        resource_tracker.ensure_running()
        before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        if masks:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)
        for name in settings:
            del os.environ[name]


def memory_settings() -> dict[str, str]:
    """Return environment variables for a process that trains, without those the user has set."""
    settings = {
        "MALLOC_MMAP_MAX_": "0",  # no block is too large for the heap
        "MALLOC_TRIM_THRESHOLD_": str(2**34),
        "MALLOC_ARENA_MAX": "1",
    }
    if "MALLOC_MMAP_THRESHOLD_" in os.environ:  # which would have no effect
        del settings["MALLOC_MMAP_MAX_"]
    return {name: value for name, value in settings.items() if name not in os.environ}


def end_with_parent() -> None:
    """Let the calling process end when its parent does, however the parent ends."""
    threading.Thread(target=_wait_for_parent, daemon=True).start()


def _wait_for_parent() -> None:
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()
        os._exit(1)
