"""`tpl` without the packages of its extra: one line, not a traceback."""

import os
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

import tensorprojection

PROJECT = Path(__file__).parents[1] / "pyproject.toml"
SOURCES = Path(tensorprojection.__file__).parents[1]

# Loaded by Python at its start: from then on these packages are not there.
WITHOUT = """
import os, sys

class Without:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in os.environ["WITHOUT"].split():
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

sys.meta_path.insert(0, Without())
"""

STUDIES = "cyclopts filelock kagglehub matplotlib monai PIL platformdirs polars pydantic rich"


@pytest.fixture
def run_without(tmp_path):
    """``run_without("cyclopts", *arguments)``: Python in a process that lacks these packages."""
    (tmp_path / "sitecustomize.py").write_text(WITHOUT)
    path = os.pathsep.join(map(str, (tmp_path, SOURCES)))

    def run(packages, *arguments):
        return subprocess.run(
            [sys.executable, *arguments],
            env={**os.environ, "PYTHONPATH": path, "WITHOUT": packages},
            capture_output=True,
            text=True,
            timeout=120,
        )

    return run


def entry_point():
    """What an installation makes `tpl` of."""
    module, function = tomllib.loads(PROJECT.read_text("utf-8"))["project"]["scripts"]["tpl"].split(
        ":"
    )
    return (
        f"import sys; from {module} import {function}; sys.argv = ['tpl', '--help']; {function}()"
    )


@pytest.mark.parametrize("way", ["tpl", "python -m"])
def test_a_plain_installation_says_how_to_get_the_command_line(way, run_without):
    command = ["-c", entry_point()] if way == "tpl" else ["-m", "tensorprojection", "--help"]
    done = run_without(STUDIES, *command)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == (
        "tpl: the command line needs cyclopts, which is not installed: "
        "pip install 'tensorprojection[studies]'\n"
    )


def test_whatever_package_is_missing_is_named(run_without):
    done = run_without("pydantic", "-m", "tensorprojection", "--help")
    assert done.returncode == 2
    assert done.stderr.startswith("tpl: the command line needs pydantic, which")
    assert done.stderr.count("\n") == 1


def test_a_mistake_of_our_own_is_not_taken_for_a_missing_package(run_without):
    done = run_without("", "-c", BROKEN)
    assert done.returncode == 1
    assert "No module named 'tensorprojection.nonesuch'" in done.stderr


BROKEN = """
import sys, tensorprojection.__main__ as entry

class Broken:
    def find_spec(self, name, path=None, target=None):
        if name == "tensorprojection.cli.main":
            raise ModuleNotFoundError(
                "No module named 'tensorprojection.nonesuch'", name="tensorprojection.nonesuch"
            )

sys.meta_path.insert(0, Broken())
entry.main()
"""


def test_the_library_needs_none_of_them(run_without):
    code = "import torch, tensorprojection as tp; tp.TensorProjection((6,), (3,))(torch.ones(2, 6))"
    done = run_without(f"{STUDIES} sklearn", "-c", code)
    assert (done.returncode, done.stderr) == (0, "")
