"""The kernels keep within their memory and the rules of C: the sanitizers find nothing."""

import os
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from tensorprojection.ops.kernels.build import BuildError, build

from .libraries import SANITIZED

TESTS = Path(__file__).parents[1]


@pytest.fixture
def runtime(compiler):
    """The library of the address sanitizer, which has to be loaded before all others."""
    command = [*shlex.split(os.environ.get("CC", "cc")), "-print-file-name=libasan.so"]
    found = subprocess.run(command, capture_output=True, text=True)
    path = found.stdout.strip()
    if found.returncode != 0 or not os.path.isabs(path):  # a compiler without it says but the name
        pytest.skip("the compiler has no libasan.so that another process could load first")
    return path


@pytest.fixture
def sanitized_library(runtime, tmp_path):
    try:
        return build(SANITIZED.variant, tmp_path, SANITIZED.extra)
    except BuildError as error:
        pytest.skip(f"the compiler does not have the sanitizers: {error}")


def test_no_sanitizer_finds_anything(runtime, sanitized_library):
    run = subprocess.run(
        [sys.executable, "-m", "kernels.run_sanitized", sanitized_library],
        cwd=TESTS,
        # Python itself does not free everything at its end. Threads that wait should not keep the
        # cores busy: other tests run beside this one.
        env={
            **os.environ,
            "LD_PRELOAD": runtime,
            "ASAN_OPTIONS": "detect_leaks=0",
            "OMP_WAIT_POLICY": "passive",
        },
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert run.stderr == "", run.stdout
    assert (run.returncode, run.stdout) == (0, "all done\n")
