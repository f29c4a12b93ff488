"""All processes that a run starts: those that train, and a pool for what is made before.

Each is started anew (spawned), as a fork of a process that has run torch's threads may hang.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from multiprocessing import get_context, resource_tracker
from multiprocessing.process import BaseProcess
from typing import Any, TypeVar

T = TypeVar("T")
R = TypeVar("R")


def start_process(target: Callable[..., None], *arguments: Any) -> BaseProcess:
    """A process that runs the function; Ctrl-C does not reach it."""
    process = get_context("spawn").Process(target=target, args=arguments, daemon=True)
    with settings_to_inherit():
        process.start()
    return process


@contextmanager
def process_pool(
    workers: int, start: Callable[..., None], *arguments: Any
) -> Iterator[Callable[[Callable[[T], R], Iterable[T]], Iterator[R]]]:
    """A ``map`` over that many processes, each initialized by ``start(*arguments)``.

    Where a process ends early, it raises ``BrokenProcessPool``.
    """
    pool = ProcessPoolExecutor(workers, get_context("spawn"), _begin, (start, arguments))

    def pool_map(function: Callable[[T], R], items: Iterable[T]) -> Iterator[R]:
        with settings_to_inherit():  # the pool starts its processes when it is given work
            return pool.map(function, items)

    try:
        yield pool_map
    finally:
        pool.shutdown(cancel_futures=True)


def _begin(start: Callable[..., None], arguments: tuple[Any, ...]) -> None:
    end_with_parent()
    start(*arguments)


@contextmanager
def settings_to_inherit() -> Iterator[None]:
    """What processes started in here take over: Ctrl-C is the parent's, and freed memory is kept.

    By default glibc's malloc gives every large block back and gets it anew, page by page, at each
    step: for networks of this size that takes nearly as long as the arithmetic. Threads other than
    the first, as on Ray, would have heaps of 64 MB of their own, which are given back nonetheless:
    all use the first one's.
    """
    settings = memory_settings()
    os.environ.update(settings)
    try:
        with _without_interrupts():
            yield
    finally:
        for name in settings:
            del os.environ[name]


def memory_settings() -> dict[str, str]:
    """Environment variables for a process that trains, but those that the user has set."""
    settings = {
        "MALLOC_MMAP_MAX_": "0",  # no block is too large for the heap
        "MALLOC_TRIM_THRESHOLD_": str(2**34),
        "MALLOC_ARENA_MAX": "1",
    }
    if "MALLOC_MMAP_THRESHOLD_" in os.environ:  # which would have no effect
        del settings["MALLOC_MMAP_MAX_"]
    return {name: value for name, value in settings.items() if name not in os.environ}


@contextmanager
def _without_interrupts() -> Iterator[None]:
    """Ctrl-C never reaches processes started in here; this process gets it afterwards."""
    if hasattr(signal, "pthread_sigmask"):
        # Or it would be started with the first process, and let signals through again after that.
        resource_tracker.ensure_running()
        before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
        try:
            yield
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)
    elif threading.current_thread() is threading.main_thread():  # Windows
        handler = signal.signal(signal.SIGINT, signal.SIG_IGN)
        try:
            yield
        finally:
            signal.signal(signal.SIGINT, handler)
    else:
        yield


def end_with_parent() -> None:
    """Called in a process: it ends when its parent does, however that ends."""
    threading.Thread(target=_wait_for_parent, daemon=True).start()


def _wait_for_parent() -> None:
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()
        os._exit(1)
