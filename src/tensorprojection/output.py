"""Printing to a terminal or a file whose encoding lacks some of our characters."""

from __future__ import annotations

import codecs
import io
from typing import TextIO

PLAIN = {
    "×": "x",
    "–": "-",
    "—": "-",
    "−": "-",
    "·": ".",
    "…": "...",
    "≥": ">=",
    "≤": "<=",
    "→": "->",
    "µ": "u",
    "│": "|",
    "─": "-",
    "━": "-",
}


def _plain(error: UnicodeError) -> tuple[str, int]:
    """What stands for characters that cannot be written."""
    if not isinstance(error, UnicodeEncodeError):
        raise error
    lacking = error.object[error.start : error.end]
    return "".join(PLAIN.get(character, "?") for character in lacking), error.end


codecs.register_error("tensorprojection.plain", _plain)


def make_safe(stream: TextIO) -> None:
    """Characters that the stream's encoding lacks become plain ones from now on, not an error."""
    if isinstance(stream, io.TextIOWrapper) and stream.errors == "strict":
        stream.reconfigure(errors="tensorprojection.plain")
