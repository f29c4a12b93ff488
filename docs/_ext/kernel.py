"""How the notebooks' kernels are set up, in a folder that goes away with the build."""

from __future__ import annotations

import logging
import os
import tempfile
from pathlib import Path

SETTINGS = """
c = get_config()
c.InlineBackend.figure_formats = {"svg"}
c.HistoryManager.enabled = False
c.Application.log_level = "ERROR"
"""

_folder = tempfile.TemporaryDirectory(prefix="docs-ipython-")


def prepare(root: Path) -> None:
    """Sets the environment that kernels inherit: this clone's code, and the look of plots."""
    profile = Path(_folder.name) / "profile_default"
    profile.mkdir()
    (profile / "ipython_kernel_config.py").write_text(SETTINGS, encoding="utf-8")
    logging.getLogger("traitlets").setLevel(logging.WARNING)  # not a line for every notebook
    os.environ["IPYTHONDIR"] = _folder.name
    os.environ["MATPLOTLIBRC"] = str(root / "docs" / "_style" / "matplotlibrc")
    paths = [str(root / "src"), os.environ.get("PYTHONPATH", "")]
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, paths))
    os.environ.setdefault("KERAS_BACKEND", "torch")
    os.environ.setdefault("PYDEVD_DISABLE_FILE_VALIDATION", "1")  # a warning of the kernel's own
