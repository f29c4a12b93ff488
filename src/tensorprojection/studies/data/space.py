"""Whether there is room for what is asked for, checked before any of it is used."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

from ..errors import StudyError


def need_disk(needed: int, folder: Path) -> None:
    """Refuse what the disk of a cache's folder cannot hold."""
    free = shutil.disk_usage(folder).free
    if needed > free:
        raise StudyError(
            f"Expected {needed / 1e9:.1f} GB free for the cache {folder}, got {free / 1e9:.1f} GB. "
            "Ask for fewer, smaller images or fewer copies, free some space (tpl cache clear), or "
            "set TENSORPROJECTION_CACHE to a folder that has some."
        )


def need_memory(needed: int, what: str) -> None:
    """Refuse what memory cannot hold; where the system does not say, go on."""
    free = _free_memory()
    if free is not None and needed > free:
        raise StudyError(
            f"Expected {needed / 1e9:.1f} GB of free memory for {what}, got {free / 1e9:.1f} GB. "
            "Ask for fewer or smaller images."
        )


def _free_memory() -> int | None:
    try:
        with open("/proc/meminfo", encoding="ascii") as file:
            for line in file:
                if line.startswith("MemAvailable:"):
                    return 1024 * int(line.split()[1])
    except OSError:
        pass
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (AttributeError, OSError, ValueError):
        return None
