"""What a run was made with, so that it can be repeated."""

from __future__ import annotations

import json
import os
import platform
import subprocess
import sys
from dataclasses import dataclass
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from .code_version import code_version
from .config import RunConfig
from .errors import StudyError
from .files import write_whole
from .inputs import RunInputs
from .sealed import sealed, unsealed

PACKAGES = ("tensorprojection", "torch", "numpy", "monai", "polars", "pillow")


@dataclass(frozen=True)
class Record:
    """What is known of a run's starts: the images of the first, the settings of the last."""

    starts: list[dict[str, Any]]

    @property
    def identity(self) -> dict[str, str] | None:
        """Digests of the images and weights of the run's first start; None before that."""
        found: dict[str, str] | None = self.starts[0]["identity"] if self.starts else None
        return found

    @property
    def settings(self) -> dict[str, Any] | None:
        """Those of the last start, as ``config.toml`` has them; None where there was none."""
        found: dict[str, Any] | None = self.starts[-1]["settings"] if self.starts else None
        return found


def read_record(run: Path) -> Record:
    """The run's record, empty where there is none; a ``StudyError`` where it is damaged."""
    path = run / "record.json"
    try:
        read = json.loads(path.read_bytes())
    except FileNotFoundError:
        return Record([])
    except ValueError:  # neither JSON nor, perhaps, UTF-8
        read = None
    starts = [unsealed(start) for start in read] if isinstance(read, list) else [None]
    whole = [start for start in starts if start is not None]
    if not whole or len(whole) < len(starts):
        raise StudyError(
            f"{path} is damaged: which images and settings {run} was started with is no longer "
            "known. If they are the same now, remove that file and run the same command again: "
            "what was trained is kept. Otherwise choose another `out`."
        )
    return Record(whole)


def check_begun(run: Path) -> None:
    """A folder that says what was run; one with neither file is not a run's, or half of one."""
    if not any((run / name).exists() for name in ("config.toml", "record.json")):
        raise StudyError(
            f"Expected the folder of a run, got {run}: it has neither config.toml nor record.json, "
            "which say what was run."
        )


def add_record(run: Path, config: RunConfig, inputs: RunInputs, jobs: int) -> None:
    """One more start of this run, in ``record.json``."""
    starts = read_record(run).starts
    starts.append(
        {
            "started": datetime.now(UTC).isoformat(timespec="seconds"),
            "command": sys.argv,
            "seed": config.seed,
            "jobs": jobs,
            "threads": config.threads,
            "settings": config.as_settings(),
            "images": inputs.source,
            "identity": inputs.identity(),
            "unreadable": {"count": len(inputs.unreadable), "files": list(inputs.unreadable)},
            "code": code_version(config.study),
            "versions": {"python": platform.python_version(), **_versions()},
            "machine": _machine(),
            "git": _git_revision(),
        }
    )
    content = json.dumps([sealed(start) for start in starts], indent=1)
    write_whole(run / "record.json", content.encode())


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
    """The revision of this source, with a + if it was changed; None outside of a checkout."""
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
