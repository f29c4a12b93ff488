"""Compiles the C files beside this one, for each kind of processor that they can make use of.

Run at installation (hatch_build.py), and by hand, ``python -m tensorprojection.compiled.build``.
Needs a C compiler, ``$CC`` or ``cc``, and nothing else; without one the package works as well, by
torch's own operations.
"""

from __future__ import annotations

import hashlib
import os
import platform
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).parent
SOURCES = ("layer.c", "steps.c", "maps.c", "derivative.c", "polar.c", "eigen.c", "digest.c")
FLAGS = ("-O3", "-std=gnu11", "-fPIC", "-shared", "-fvisibility=hidden")

# By what torch calls the processor's capability; "DEFAULT" is what the compiler takes for granted.
VARIANTS: dict[str, tuple[str, ...]] = {
    "AVX512": ("-march=x86-64-v4",),
    "AVX2": ("-march=x86-64-v3",),
    "DEFAULT": (),
}


class BuildError(RuntimeError):
    """No compiler, or one that fails."""


def library_path(variant: str, folder: Path = HERE) -> Path:
    """Where the library for this kind of processor is, or would be."""
    return folder / f"kernels-{variant.lower()}.so"


def digest() -> str:
    """Of all C files: a library says from which it was compiled."""
    files = sorted([*HERE.glob("*.c"), *HERE.glob("*.h")])
    return hashlib.sha256(b"\0".join(path.read_bytes() for path in files)).hexdigest()[:16]


def variants() -> list[str]:
    """What can be built for this machine's family of processors."""
    x86 = platform.machine().lower() in ("x86_64", "amd64")
    return list(VARIANTS) if x86 else ["DEFAULT"]


def build(variant: str, folder: Path = HERE, extra: tuple[str, ...] = ()) -> Path:
    """Compiles one library; it appears whole or not at all."""
    command = shlex.split(os.environ.get("CC", "cc"))
    if not command or shutil.which(command[0]) is None:
        raise BuildError("No C compiler found: install one (cc), or name yours in $CC.")
    path = library_path(variant, folder)
    partial = path.with_suffix(f".{os.getpid()}.partial")
    command += [*FLAGS, f'-DDIGEST="{digest()}"', *VARIANTS[variant], *extra]
    command += [str(HERE / name) for name in SOURCES]
    run = subprocess.run([*command, "-lm", "-o", str(partial)], capture_output=True, text=True)
    if run.returncode != 0:
        partial.unlink(missing_ok=True)
        raise BuildError(f"{shlex.join(command)} failed:\n{run.stderr}")
    partial.replace(path)
    return path


def build_all() -> list[Path]:
    """All variants that the compiler knows; BuildError where it knows none."""
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
