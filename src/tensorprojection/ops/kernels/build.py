"""Compiles the C files in csrc/, once per kind of processor.

Run at installation (hatch_build.py), or by hand:
``python -m tensorprojection.ops.kernels.build``.
It needs a C compiler, ``$CC`` or ``cc``, and nothing else. Without one the package works too, with
torch's own operations.
"""

from __future__ import annotations

import hashlib
import os
import platform
import runpy
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).parent
CSRC = HERE / "csrc"
LIMITS = HERE.parent / "limits.py"
SOURCES = ("steps.c", "maps.c", "derivative.c", "polar.c", "eigen.c", "digest.c")
# Only what kernels.h exports is visible from outside. No -Werror: a warning of a compiler that is
# newer than this code should not make an installation fail; the tests compile with it.
FLAGS = ("-O3", "-std=gnu11", "-fPIC", "-shared", "-fvisibility=hidden")

# Named as torch names the processor's capability; "DEFAULT" is what the compiler assumes by itself.
VARIANTS: dict[str, tuple[str, ...]] = {
    "AVX512": ("-march=x86-64-v4",),
    "AVX2": ("-march=x86-64-v3",),
    "DEFAULT": (),
}


class BuildError(RuntimeError):
    """There is no compiler, or it fails."""


def library_path(variant: str, folder: Path = HERE) -> Path:
    """Return the path of the library for this kind of processor."""
    return folder / f"kernels-{variant.lower()}.so"


def limits() -> dict[str, float]:
    """Return the limits that Python and C share; an installation cannot import the package yet."""
    return {name: n for name, n in runpy.run_path(str(LIMITS)).items() if name.isupper()}


def digest() -> str:
    """Return a hash of all C files and limits; a library carries that of its own sources."""
    files = sorted([*CSRC.glob("*.c"), *CSRC.glob("*.h"), LIMITS])
    return hashlib.sha256(b"\0".join(path.read_bytes() for path in files)).hexdigest()[:16]


def variants() -> list[str]:
    """The kinds of processor that can be built for on this machine."""
    x86 = platform.machine().lower() in ("x86_64", "amd64")
    return list(VARIANTS) if x86 else ["DEFAULT"]


def build(variant: str, folder: Path = HERE, extra: tuple[str, ...] = ()) -> Path:
    """Compiles one library; it appears whole or not at all."""
    command = shlex.split(os.environ.get("CC", "cc"))
    if not command or shutil.which(command[0]) is None:
        raise BuildError("No C compiler found: install one (cc), or name yours in $CC.")
    path = library_path(variant, folder)
    partial = path.with_suffix(f".{os.getpid()}.partial")
    command += [*FLAGS, f'-DDIGEST="{digest()}"', *(f"-D{n}={v}" for n, v in limits().items())]
    command += [*VARIANTS[variant], *extra]
    command += [str(CSRC / name) for name in SOURCES]
    run = subprocess.run([*command, "-lm", "-o", str(partial)], capture_output=True, text=True)
    if run.returncode != 0:
        partial.unlink(missing_ok=True)
        raise BuildError(f"{shlex.join(command)} failed:\n{run.stderr}")
    partial.replace(path)
    return path


def build_all() -> list[Path]:
    """Compiles all variants that the compiler knows; BuildError if it knows none."""
    paths, errors = [], []
    for variant in variants():
        try:
            paths.append(build(variant))
        except BuildError as error:  # an old compiler does not know the newest processors
            errors.append(error)
    if not paths:
        raise errors[-1]
    return paths


if __name__ == "__main__":
    try:
        for path in build_all():
            print(path)
    except BuildError as error:
        sys.exit(str(error))
