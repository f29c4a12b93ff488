"""Ctrl-C or a request to end, at any moment of the command ``tpl``: one line, no traceback."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

SIGNALS = ("SIGINT", "SIGTERM", "SIGHUP")  # the last: its terminal was closed


class Stopped(KeyboardInterrupt):  # no error, and no Exception either
    """A signal asks the command to end.

    >>> Stopped(2).code
    130
    """

    def __init__(self, number: int) -> None:
        self.code = 128 + number  # as a shell counts a process that a signal has ended


def leave_while_starting() -> None:
    """Until :func:`raising_once` is entered, Ctrl-C just exits: nothing has started yet.

    Importing torch takes seconds, and an exception anywhere in it would be a traceback.
    """
    if signal.getsignal(signal.SIGINT) is not signal.SIG_IGN:
        signal.signal(signal.SIGINT, _leave)


def _leave(number: int, frame: FrameType | None) -> None:
    os.write(2, b"tpl: stopped.\n")
    os._exit(128 + number)


@contextmanager
def raising_once() -> Iterator[None]:
    """In here the first signal raises :class:`Stopped`, and those after it are ignored.

    So what ends the workers and restores the cursor is not interrupted itself. A signal that was
    ignored before, as under ``nohup``, stays ignored.
    """
    known = [getattr(signal, name) for name in SIGNALS if hasattr(signal, name)]
    numbers = [number for number in known if signal.getsignal(number) is not signal.SIG_IGN]
    came = False

    def stop(number: int, frame: FrameType | None) -> None:
        nonlocal came
        came = True
        for each in numbers:
            signal.signal(each, signal.SIG_IGN)
        raise Stopped(number)

    before = {number: signal.signal(number, stop) for number in numbers}
    if before.get(signal.SIGINT) is _leave:
        before[signal.SIGINT] = signal.default_int_handler
    try:
        yield
    finally:
        if not came:  # else what is left of this process is not to be interrupted either
            for number, handler in before.items():
                signal.signal(number, handler)
