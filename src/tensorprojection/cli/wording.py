"""The words of errors for the command line."""

from __future__ import annotations

import re

SETTING = re.compile(r"`([a-z][a-z_]*)( [^`\n]+)?`")


def as_flags(text: str) -> str:
    """The text with its settings, which stand in backticks, as flags.

    >>> as_flags("Run again with fewer `jobs`, or with `unpack_limits 2`.")
    'Run again with fewer --jobs, or with --unpack-limits 2.'
    """
    return SETTING.sub(lambda found: f"--{found[1].replace('_', '-')}{found[2] or ''}", text)
