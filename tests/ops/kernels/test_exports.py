"""A library exports the functions of kernels.h only, and no other library can replace them."""

import shlex
import shutil
import subprocess
import sys
from os import environ

import pytest

from tensorprojection.ops.kernels.build import library_path
from tensorprojection.ops.kernels.library import _ARGUMENTS, search

pytestmark = pytest.mark.usefixtures("kernels")

FUNCTIONS = {*_ARGUMENTS, "tp_digest", "tp_plan_size"}


def test_only_the_functions_of_the_header_are_exported():
    if shutil.which("nm") is None:
        pytest.skip("no nm that lists what a library exports")
    command = ["nm", "--dynamic", "--defined-only", library_path(search()[1].variant)]
    listed = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    names = {line.split()[-1] for line in listed.splitlines()}
    assert {name for name in names if not name.startswith("_")} == FUNCTIONS


STRANGERS = ["eigen", "maps", "derivative", *FUNCTIONS]

A_STEP = """
import sys, torch
from ctypes import CDLL, RTLD_GLOBAL
strangers = CDLL(sys.argv[1], mode=RTLD_GLOBAL)
import tensorprojection as tp
assert tp.kernels()
layer = tp.TensorProjection((30, 12, 12), (20, 6, 6))  # eigen: 20 columns; derivative: one mode
layer(torch.randn(3, 30, 12, 12)).sum().backward()
print("done")
"""


@pytest.fixture
def strangers(compiler, tmp_path):
    """A library with functions of the same names that end the process."""
    source, path = tmp_path / "strangers.c", tmp_path / "strangers.so"
    bodies = [f"void {name}(void) {{ abort(); }}" for name in STRANGERS]
    source.write_text("\n".join(["#include <stdlib.h>", *bodies]))
    command = shlex.split(environ.get("CC", "cc"))
    subprocess.run([*command, "-shared", "-fPIC", source, "-o", path], check=True)
    return path


def test_functions_of_the_same_name_elsewhere_are_not_called(strangers):
    if not sys.platform.startswith("linux"):
        pytest.skip("only on ELF systems can a library's functions be replaced in this way")
    run = subprocess.run([sys.executable, "-c", A_STEP, strangers], capture_output=True, text=True)
    assert (run.returncode, run.stdout, run.stderr) == (0, "done\n", "")
