"""Files that are there whole or not at all."""

from __future__ import annotations

import os
from pathlib import Path

PART = ".part"


def write_whole(path: Path, content: bytes) -> None:
    """Write beside and rename into place: whoever is killed meanwhile leaves the old file.

    On an error, such as a full disk, what was begun is removed and the old file stays too.
    """
    part = path.with_name(path.name + PART)
    try:
        with open(part, "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())  # or a power cut could leave a renamed file without content
        part.replace(path)
    except BaseException:
        part.unlink(missing_ok=True)
        raise
