"""Compiles the kernels when the package is built; without a compiler it is built without them."""

from __future__ import annotations

import runpy
import sysconfig
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

BUILD = Path("src", "tensorprojection", "engine", "kernels", "build.py")


class KernelHook(BuildHookInterface):
    """For wheels, editable ones included; a source distribution carries the C files as they are."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        if self.target_name != "wheel":
            return
        script = runpy.run_path(str(Path(self.root, BUILD)))
        try:
            libraries = script["build_all"]()
        except script["BuildError"] as error:
            self.app.display_warning(f"Without compiled kernels, slower on a CPU: {error}")
            return
        build_data["artifacts"] += [str(path.relative_to(self.root)) for path in libraries]
        build_data["pure_python"] = False
        # The libraries know nothing of Python, so they serve every version of it.
        system = sysconfig.get_platform().replace("-", "_").replace(".", "_")
        build_data["tag"] = f"py3-none-{system}"
