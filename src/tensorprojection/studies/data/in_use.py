"""Which folders of the cache a living process works with.

Each process that uses a folder holds a shared lock on it, which ends with the process however that
ends. A process that wants to remove the folder needs an exclusive lock. Where there are no such
locks (Windows), files that are open cannot be removed anyway.
"""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

try:
    import fcntl
except ImportError:  # Windows
    fcntl = None  # type: ignore[assignment]

MOST = 64  # more than a run uses: a process that opens many must not run out of handles
_held: deque[int] = deque()


def hold(place: Path) -> bool:
    """Hold the folder while this process lives. False where it is not there, or being removed."""
    if fcntl is None:
        return place.is_dir()
    try:
        handle = os.open(place, os.O_RDONLY | os.O_DIRECTORY)
    except OSError:
        return False
    try:
        fcntl.flock(handle, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(handle)
        return False
    except OSError:  # a file system without locks
        pass
    if not _is(handle, place):  # removed in between
        os.close(handle)
        return False
    _held.append(handle)
    if len(_held) > MOST:
        os.close(_held.popleft())
    return True


@contextmanager
def alone(place: Path) -> Iterator[bool]:
    """Whether nobody else holds the folder; while in here, nobody can."""
    if fcntl is None:
        yield True
        return
    handle = os.open(place, os.O_RDONLY | os.O_DIRECTORY)
    try:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            free = True
        except OSError:  # held, or a file system where that cannot be told
            free = False
        yield free
    finally:
        os.close(handle)


def _is(handle: int, place: Path) -> bool:
    try:
        return os.path.samestat(os.fstat(handle), os.stat(place))
    except OSError:
        return False
