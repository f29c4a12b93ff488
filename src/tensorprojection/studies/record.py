"""The log of a run's starts, so that the run can be repeated. Nothing is decided by it."""

from __future__ import annotations

import os
import platform
import sys
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from .config import RunConfig
from .errors import StudyError
from .inputs import RunInputs
from .results import append_line, read_line

RECORD = "record.jsonl"
PACKAGES = ("tensorprojection", "torch", "numpy", "monai", "polars", "pillow")


def read_starts(run: Path) -> list[dict[str, Any]]:
    """Return all starts of the run; ``StudyError`` if the log is corrupted."""
    path = run / RECORD
    try:
        lines = path.read_bytes().splitlines(keepends=True)
    except FileNotFoundError:
        return []
    starts = [start for line in lines if (start := read_line(line)) is not None]
    if len(starts) < len(lines):
        raise StudyError(f"{path} is corrupted. Remove it: no result depends on it.")
    return starts


def add_start(run: Path, config: RunConfig, inputs: RunInputs, jobs: int, code: str) -> None:
    """Add a start of the run to the log."""
    import torch

    start = {
        "started": datetime.now(UTC).isoformat(timespec="seconds"),
        "command": sys.argv,
        "settings": config.as_settings(),
        "jobs": jobs,
        "images": inputs.source,
        "unreadable": {"count": len(inputs.unreadable), "files": list(inputs.unreadable)},
        "code": code,
        "versions": {"python": platform.python_version(), **_versions()},
        "machine": {
            "system": platform.platform(),
            "processor": platform.machine(),
            "cores": os.cpu_count(),
            "gpu": torch.cuda.get_device_name() if torch.cuda.is_available() else None,
        },
    }
    append_line(run / RECORD, start)


def _versions() -> dict[str, str]:
    found = {}
    for name in PACKAGES:
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            continue
    return found
