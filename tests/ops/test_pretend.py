"""The tests on the simulated accelerator, in a process of their own.

See Note [A process of its own] in pretend/accelerator.py. To run one of them by hand:

    TENSORPROJECTION_PRETEND=1 pytest tests/ops/pretend/test_harness.py
"""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from torch.utils import backend_registration

pytestmark = pytest.mark.skipif(
    not hasattr(backend_registration, "_setup_privateuseone_for_python_backend"),
    reason="this torch cannot have a device that is written in Python",
)

FOLDER = Path(__file__).parent / "pretend"


def test_on_the_pretend_accelerator():
    files = sorted(map(str, FOLDER.glob("test_*.py")))
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "no:xdist"]
    environment = {**os.environ, "TENSORPROJECTION_PRETEND": "1"}
    run = subprocess.run(
        [*command, *files], env=environment, capture_output=True, text=True, check=False
    )
    assert run.returncode == 0, run.stdout + run.stderr
    assert " passed" in run.stdout
