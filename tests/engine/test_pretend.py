"""The tests on the pretend accelerator, each file in a process of its own.

See Note [A process of its own] in pretend/accelerator.py. To run one of them by hand:

    TENSORPROJECTION_PRETEND=1 pytest tests/engine/pretend/test_harness.py
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


@pytest.mark.parametrize("file", sorted(FOLDER.glob("test_*.py")), ids=lambda file: file.name)
def test_on_the_pretend_accelerator(file):
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "no:xdist"]
    environment = {**os.environ, "TENSORPROJECTION_PRETEND": "1"}
    run = subprocess.run(
        [*command, str(file)], env=environment, capture_output=True, text=True, check=False
    )
    assert run.returncode == 0, run.stdout + run.stderr
    assert " passed" in run.stdout
