"""The kernels keep within their own arrays: the compiler's own check finds nothing."""

import subprocess
import sys
from pathlib import Path

import pytest

from tensorprojection.engine.kernels.build import BuildError, build

from .libraries import BOUNDS

TESTS = Path(__file__).parents[1]


@pytest.fixture
def checked_library(compiler, tmp_path):
    try:
        return build(BOUNDS.variant, tmp_path, BOUNDS.extra)
    except BuildError as error:
        pytest.skip(f"no such check here: {error}")


def test_no_index_out_of_bounds(checked_library):
    command = [sys.executable, "-m", "kernels.run_in_bounds", checked_library]
    run = subprocess.run(command, cwd=TESTS, capture_output=True, text=True, timeout=120)
    assert run.stderr == "", run.stdout
    assert run.returncode == 0, run.stdout
