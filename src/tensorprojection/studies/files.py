"""Files that are there whole or not at all."""

from __future__ import annotations

import glob
import os
import secrets
from pathlib import Path

PART = ".part"


def write_whole(path: Path, content: bytes) -> None:
    """Write to a temporary file beside it and rename: a process that is killed leaves the old file.

    On an error, such as a full disk, the temporary file is removed and the old file stays too. The
    temporary name cannot be guessed, so nobody can have put a link there; temporary files that
    killed processes left behind are removed when the file is written.
    """
    for left in path.parent.glob(f"{glob.escape(path.name)}.*{PART}"):
        left.unlink(missing_ok=True)
    part = path.with_name(f"{path.name}.{secrets.token_hex(8)}{PART}")
    try:
        with open(part, "xb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())  # or a power cut could leave a renamed file without content
        part.replace(path)
    except BaseException:
        part.unlink(missing_ok=True)
        raise
