"""What `make test` and `make test-all` run, with stand-ins for the tools."""

import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]

# Writes down how it was called; of pytest, each of the two calls ends as it is told to.
STAND_IN = """#!/bin/sh
echo "$(basename "$0") $*" >> "$CALLS"
case "$(basename "$0") $*" in
    "pytest "*"not heavy") exit "$LIGHT" ;;
    "pytest "*heavy) exit "$HEAVY" ;;
esac
"""


def tools(folder, **scripts):
    """A folder of commands, each of which is a shell script."""
    made = folder / "tools"
    made.mkdir()
    for name, script in scripts.items():
        path = made / name.replace("_", "-")
        path.write_text(f"#!/bin/sh\n{script}\n")
        path.chmod(0o755)
    return made


@pytest.fixture
def make(tmp_path):
    """``make("test", heavy=1)``: make's exit code, and its calls of pytest and of pip."""
    if shutil.which("make") is None:
        pytest.skip("make is not installed")
    calls = tmp_path / "calls"
    (tmp_path / "bin").mkdir()
    for name in ("python", "ruff", "mypy", "pytest"):
        path = tmp_path / "bin" / name
        path.write_text(STAND_IN)
        path.chmod(0o755)
    for stamp in (".test", ".kernels", ".heavy"):  # all is installed
        (tmp_path / stamp).touch()
    path = f"{tools(tmp_path, chromium='', chromedriver='')}:{os.environ['PATH']}"

    def run(*targets, light=0, heavy=0):
        calls.write_text("")
        told = {"CALLS": str(calls), "LIGHT": str(light), "HEAVY": str(heavy), "PATH": path}
        done = subprocess.run(
            ["make", f"VENV={tmp_path}", *targets],
            cwd=ROOT,
            env={**os.environ, **told, "MAKEFLAGS": ""},
            capture_output=True,
        )
        called = [line.partition(" -m ")[2] for line in calls.read_text().splitlines()]
        return done.returncode, [marks for marks in called if marks]

    return run


def test_the_heavy_tests_come_after_the_others(make):
    assert make("test") == (0, ["not heavy"])
    assert make("test-all") == (0, ["not heavy", "heavy"])


def test_both_in_one_call_repeat_nothing(make):
    assert make("test", "test-all") == (0, ["not heavy", "heavy"])


def test_what_only_heavy_tests_need_comes_with_them(make, tmp_path):
    (tmp_path / ".heavy").unlink()
    assert make("test") == (0, ["not heavy"])
    code, (light, installed, heavy) = make("test", "test-all")
    assert (code, light, heavy) == (0, "not heavy", "heavy")
    assert installed.startswith("pip install ")
    assert installed.endswith(" -e .[heavy]")
    assert make("test-all") == (0, ["not heavy", "heavy"])  # once


def test_no_heavy_test_is_no_failure(make):
    assert make("test-all", heavy=5) == (0, ["not heavy", "heavy"])


@pytest.mark.parametrize("code", [1, 2, 3, 4])
def test_a_failure_is_one(code, make):
    again = "heavy"  # those that failed, alone
    assert make("test-all", heavy=code) == (2, ["not heavy", "heavy", again])
    assert make("test", "test-all", light=code) == (2, ["not heavy"])


def test_no_test_at_all_is_a_failure(make):
    assert make("test", light=5) == (2, ["not heavy"])


# Figures


def test_make_figures_runs_every_benchmark_that_a_page_names():
    pages = [
        ROOT / "README.md",
        *(p for p in (ROOT / "docs").rglob("*.md") if "_build" not in p.parts),
    ]
    text = "".join(page.read_text("utf-8") for page in pages)
    named = set(re.findall(r"python (benchmarks/\w+\.py)", text)) - {"benchmarks/gpu.py"}  # no GPU
    assert len(named) >= 5
    if shutil.which("make") is None:
        pytest.skip("make is not installed")
    done = subprocess.run(
        ["make", "--dry-run", "VENV=absent", "PYTHON=python", "IMAGES=images", "figures"],
        cwd=ROOT,
        env={**os.environ, "MAKEFLAGS": ""},
        capture_output=True,
        text=True,
        check=True,
    )
    assert [name for name in named if name not in done.stdout] == []
    for drawn in ("docs/_ext/evidence.py", "drawings/hero.py", "tpl report", "tpl bench"):
        assert drawn in done.stdout


# The browser


@pytest.mark.parametrize(
    ("user", "there", "apt", "installed"),
    [
        (0, {"chromium", "chromedriver"}, 0, None),  # nothing to do
        (0, {"chromium"}, 0, True),
        (0, set(), 0, True),
        (0, set(), 100, False),  # no network, or no such package
        (0, set(), None, None),  # no Debian
        (1000, set(), 0, None),  # not ours to install
    ],
)
def test_a_browser_is_installed_where_it_can_be_and_never_stops_make(
    user, there, apt, installed, tmp_path
):
    if shutil.which("make") is None:
        pytest.skip("make is not installed")
    calls = tmp_path / "calls"
    calls.touch()
    scripts = dict.fromkeys(there, "") | {"id": f"echo {user}"}
    if apt is not None:
        scripts["apt_get"] = f'echo "$*" >> {calls}\nexit {apt}'
    found = tools(tmp_path, **scripts)
    (found / "sh").symlink_to(shutil.which("sh"))
    done = subprocess.run(
        [shutil.which("make"), "PYTHON=python", "browser"],
        cwd=ROOT,
        env={"PATH": str(found), "MAKEFLAGS": ""},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0
    asked = [line for line in calls.read_text().splitlines() if line.startswith("install ")]
    if installed is None:
        assert not asked
    else:
        (line,) = asked
        assert line.endswith(" chromium chromium-driver")
    skipped = there != {"chromium", "chromedriver"} and not installed
    assert ("are skipped" in done.stdout) == skipped
