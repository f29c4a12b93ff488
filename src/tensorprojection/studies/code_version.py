"""The version of the code that trains: a table must not silently compare two versions."""

from __future__ import annotations

import subprocess
from functools import cache
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .study import Study

PACKAGE = Path(__file__).resolve().parents[1]
STUDY = ", study "  # stands before the digest of a user's own study


def code_version(study: Study[Any] | None = None) -> str:
    """Return all that decides the bits of a result beside settings and data.

    These are the package's version and git revision, the compiled kernels in use, the versions of
    torch and NumPy, and torch's instruction set; and for a user's own study a digest of its file.
    """
    source = None if study is None else study.source
    return _package() + ("" if source is None else f"{STUDY}{source.sha256[:12]}")


@cache
def _package() -> str:
    import torch

    import tensorprojection

    kernels = tensorprojection.kernels()
    return (
        f"{tensorprojection.__version__}{git_revision()}, "
        f"kernels {kernels.variant if kernels else 'off'}, "
        f"torch {version('torch')} {torch.backends.cpu.get_cpu_capability()}, "
        f"numpy {version('numpy')}"
    )


@cache
def git_revision() -> str:
    """Return the last revision of what trains, as "+abc1234"; empty if it is not in git.

    A change that is not committed adds ".dirty". The command line and the report train nothing.
    """

    def git(*arguments: str) -> str:
        paths = ["--", ".", ":!cli", ":!bench", ":!studies/report"]
        command = ["git", "-C", str(PACKAGE), *arguments, *paths]
        done = subprocess.run(command, check=True, capture_output=True, text=True, timeout=30)
        return done.stdout.strip()

    try:
        found = git("log", "-1", "--format=%h")
        changed = git("status", "--porcelain", "--untracked-files=no")
    except (OSError, subprocess.SubprocessError):
        return ""
    return f"+{found}{'.dirty' if changed else ''}" if found else ""
