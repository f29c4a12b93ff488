"""What a run was made with: for whoever wants to repeat it."""

from __future__ import annotations

import json
import os
import platform
import subprocess
import sys
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from .config import RunConfig
from .files import write_whole
from .study import Prepared

PACKAGES = ("tensorprojection", "torch", "numpy", "monai", "torchmetrics", "polars", "pillow")


def same_as_before(run: Path, prepared: Prepared) -> bool:
    """Whether the images and weights are those that the run was begun with."""
    path = run / "record.json"
    return not path.exists() or json.loads(path.read_bytes())[0]["identity"] == prepared.identity()


def add_record(run: Path, config: RunConfig, prepared: Prepared, jobs: int) -> None:
    """One more start of this run, in ``record.json``."""
    path = run / "record.json"
    starts: list[Any] = json.loads(path.read_bytes()) if path.exists() else []
    starts.append(
        {
            "started": datetime.now(UTC).isoformat(timespec="seconds"),
            "command": sys.argv,
            "seed": config.seed,
            "jobs": jobs,
            "threads": config.threads,
            "images": prepared.source,
            "identity": prepared.identity(),
            "unreadable": {"count": len(prepared.unreadable), "files": prepared.unreadable},
            "versions": {"python": platform.python_version(), **_versions()},
            "machine": _machine(),
            "git": _git_revision(),
        }
    )
    write_whole(path, json.dumps(starts, indent=1).encode())


def _versions() -> dict[str, str]:
    found = {}
    for name in PACKAGES:
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            continue
    return found


def _machine() -> dict[str, Any]:
    import torch

    return {
        "system": platform.platform(),
        "processor": platform.machine(),
        "cores": os.cpu_count(),
        "torch": torch.backends.cpu.get_cpu_capability(),
        "gpu": torch.cuda.get_device_name() if torch.cuda.is_available() else None,
    }


def _git_revision() -> str | None:
    """Of the source this runs from, with a + where it was changed; None outside of a checkout."""
    folder = Path(__file__).parent
    try:
        head = _git(folder, "rev-parse", "HEAD")
        tracked = _git(folder, "ls-files", "--error-unmatch", "record.py")
        changed = _git(folder, "status", "--porcelain", "--untracked-files=no")
    except (OSError, subprocess.SubprocessError):
        return None
    assert tracked
    return head + ("+" if changed else "")


def _git(folder: Path, *arguments: str) -> str:
    command = ["git", "-C", str(folder), *arguments]
    done = subprocess.run(command, check=True, capture_output=True, text=True, timeout=30)
    return done.stdout.strip()
