"""Compiles the kernels when the package is built; without a compiler it is built without them."""

from __future__ import annotations

import re
import runpy
import sysconfig
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from elftools.common.exceptions import ELFError
from elftools.elf.dynamic import DynamicSection
from elftools.elf.elffile import ELFFile
from elftools.elf.gnuversions import GNUVerNeedSection
from hatchling.builders.hooks.plugin.interface import BuildHookInterface

BUILD = Path("src", "tensorprojection", "ops", "kernels", "build.py")

# The parts of glibc that a library may ask for: every manylinux system has them.
GLIBC = re.compile(r"(libc|libm|libpthread|ld-linux-.*)\.so\.\d")
# manylinux2014: the oldest that the packaging tools still build for.
OLDEST = (2, 17)


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
        build_data["tag"] = f"py3-none-{platform_tag(system, libraries)}"


def platform_tag(system: str, libraries: list[Path]) -> str:
    """``manylinux_2_X_…`` with the glibc that the libraries need, else the system's own tag.

    A package index refuses a plain ``linux_…``, which says nothing about where a library runs.
    """
    if not system.startswith("linux_"):
        return system
    needed = [OLDEST]
    try:
        for path in libraries:
            needed += glibc_versions(path)
    except (ELFError, NotPortableError):
        return system
    major, minor = max(needed)
    return system.replace("linux", f"manylinux_{major}_{minor}", 1)


class NotPortableError(ValueError):
    """A library that needs more than glibc, or not glibc at all."""


def glibc_versions(path: Path) -> Iterator[tuple[int, int]]:
    """The versions of the symbols that a library takes from glibc."""
    with path.open("rb") as file:
        sections = list(ELFFile(file).iter_sections())
        names = [
            tag.needed
            for section in sections
            if isinstance(section, DynamicSection)
            for tag in section.iter_tags("DT_NEEDED")
        ]
        if not names or not all(map(GLIBC.fullmatch, names)):
            raise NotPortableError(f"{path.name} needs {names}.")
        for section in sections:
            if isinstance(section, GNUVerNeedSection):
                for _, symbols in section.iter_versions():
                    for symbol in symbols:
                        version = re.fullmatch(r"GLIBC_(\d+)\.(\d+)(\.\d+)?", symbol.name)
                        if version is None:  # GLIBC_PRIVATE, GLIBC_ABI_…: no release promises it
                            raise NotPortableError(f"{path.name} needs {symbol.name}.")
                        yield int(version[1]), int(version[2])
