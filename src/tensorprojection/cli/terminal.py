"""The process of the command ``tpl``: signals that end it, and its output."""

from __future__ import annotations

import codecs
import os
import signal
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from types import FrameType
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.table import Table

SIGNALS = ("SIGINT", "SIGTERM", "SIGHUP")  # the last: its terminal was closed
PLAIN = "tensorprojection.plain"  # the error handler of the standard streams
SIMILAR = str.maketrans("×–—−·µ│─━", "x---.u|--")


class Stopped(KeyboardInterrupt):  # not an Exception: nothing but the command handles it
    """A signal asks the command to end.

    >>> Stopped(2).code
    130
    """

    def __init__(self, number: int) -> None:
        self.code = 128 + number  # as a shell reports a process that a signal has ended


def exit_while_starting() -> None:
    """Exit at Ctrl-C, without a traceback, until :func:`raising_once` is entered.

    Importing torch takes seconds, and nothing has started yet.
    """
    if signal.getsignal(signal.SIGINT) is not signal.SIG_IGN:
        signal.signal(signal.SIGINT, _exit)


def _exit(number: int, frame: FrameType | None) -> None:
    os.write(2, b"tpl: stopped.\n")
    os._exit(128 + number)


@contextmanager
def raising_once() -> Iterator[None]:
    """Raise :class:`Stopped` at the first signal, and ignore those after it.

    So the code that ends the workers and restores the cursor is not interrupted. A signal that was
    ignored before, as under ``nohup``, stays ignored.
    """
    known = [getattr(signal, name) for name in SIGNALS if hasattr(signal, name)]
    before = {n: found for n in known if (found := signal.getsignal(n)) is not signal.SIG_IGN}

    def stop(number: int, frame: FrameType | None) -> None:
        for each in before:
            signal.signal(each, signal.SIG_IGN)
        raise Stopped(number)

    for number in before:
        signal.signal(number, stop)
    yield
    for number, handler in before.items():  # not after a signal: the process is about to end
        signal.signal(number, handler)


def _plain(error: UnicodeError) -> tuple[str, int]:
    """Replace characters that an encoding lacks."""
    assert isinstance(error, UnicodeEncodeError)
    lacking = error.object[error.start : error.end].translate(SIMILAR)
    return "".join(c if c.isascii() else "?" for c in lacking), error.end


codecs.register_error(PLAIN, _plain)


def inert(text: str) -> str:
    """Return a text from data, such as a file's name, without codes that a terminal would run."""
    return "".join(c if c.isprintable() or c == "\n" else repr(c)[1:-1] for c in text)


def table(header: Sequence[str], rows: Iterable[Sequence[str]], texts: int = 1) -> Table:
    """Return a table for a rich console; the first columns are texts, the others numbers."""
    from rich import box
    from rich.table import Table
    from rich.text import Text

    made = Table(box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0), pad_edge=False, show_edge=False)
    for k, name in enumerate(header):
        made.add_column(Text(name), justify="left" if k < texts else "right", overflow="fold")
    for row in rows:
        made.add_row(
            *(Text(inert(cell)) for cell in row)
        )  # folded if there is no room: a cropped number is wrong
    return made
