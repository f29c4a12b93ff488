"""The log of a run's starts, and the git revision in the code's version."""

import platform
import subprocess
import sys
from datetime import UTC, datetime
from importlib.metadata import version

import pytest

from tensorprojection.studies import config as module
from tensorprojection.studies.config import RunConfig, git_revision
from tensorprojection.studies.errors import StudyError
from tensorprojection.studies.inputs import RunInputs
from tensorprojection.studies.oct import PRESETS
from tensorprojection.studies.results import RECORD, read_starts
from tensorprojection.studies.run import add_start

CONFIG = RunConfig(study="oct", seed=5, threads=2, **PRESETS["smoke"])
PREPARED = RunInputs({}, "oct images of a folder", ("a.png", "b µ.png"))


def test_what_is_recorded(tmp_path, monkeypatch):
    monkeypatch.setattr(sys, "argv", ["tpl", "run", "oct"])
    assert read_starts(tmp_path) == []
    add_start(tmp_path, CONFIG, PREPARED, 3, "0.1.0, torch 2")
    add_start(tmp_path, CONFIG, PREPARED, 4, "0.1.0, torch 2")
    start, again = read_starts(tmp_path)
    assert again["jobs"] == 4
    assert start["command"] == ["tpl", "run", "oct"]
    assert start["jobs"] == 3
    assert RunConfig(**start["settings"]) == CONFIG
    assert start["code"] == "0.1.0, torch 2"
    assert start["images"] == "oct images of a folder"
    assert start["unreadable"] == {"count": 2, "files": ["a.png", "b µ.png"]}
    assert start["versions"]["python"] == platform.python_version()
    assert start["versions"]["torch"] == version("torch")
    assert start["machine"]["system"] == platform.platform()
    assert datetime.fromisoformat(start["started"]).tzinfo == UTC


def test_a_flip_anywhere_in_a_record_is_found(tmp_path):
    add_start(tmp_path, CONFIG, PREPARED, 1, "code")
    path, starts = tmp_path / RECORD, read_starts(tmp_path)
    whole = path.read_bytes()
    for place in range(len(whole)):
        flipped = bytearray(whole)
        flipped[place] ^= 2
        path.write_bytes(flipped)
        try:
            assert read_starts(tmp_path) == starts  # where it was of no meaning
        except StudyError as error:
            assert str(path) in str(error)  # noqa: PT017


# The revision, of a repository with the package in it


@pytest.fixture
def repository(tmp_path, monkeypatch):
    """A repository with a package; ``git_revision`` takes it for this one."""
    package = tmp_path / "src" / "package"
    for name in ("layer.py", "cli/run.py"):
        (package / name).parent.mkdir(parents=True, exist_ok=True)
        (package / name).write_text("x = 1\n")
    git(tmp_path, "init", "-q")
    commit(tmp_path)
    monkeypatch.setattr(module, "PACKAGE", package)
    yield package
    git_revision.cache_clear()


def git(folder, *arguments):
    who = ["-c", "user.name=a", "-c", "user.email=a@example.com"]
    command = ["git", "-C", str(folder), *who, *arguments]
    subprocess.run(command, check=True, capture_output=True)


def commit(folder):
    git(folder, "add", ".")
    git(folder, "commit", "-qm", "a change")


def revision():
    git_revision.cache_clear()
    return git_revision()


def test_what_trains_changes_the_revision_and_the_command_line_does_not(repository):
    first = revision()
    assert first.startswith("+")
    (repository / "cli" / "run.py").write_text("# a typo\n")
    assert revision() == first
    commit(repository)
    assert revision() == first
    (repository / "layer.py").write_text("x = 2\n")
    assert revision() == f"{first}.dirty"
    commit(repository)
    assert revision() not in (first, f"{first}.dirty", "")


def test_outside_of_git_there_is_no_revision(repository, tmp_path, monkeypatch):
    """As for an installed package, also one in somebody's checkout."""
    monkeypatch.setattr(module, "PACKAGE", tmp_path / "nowhere")
    assert revision() == ""
    installed = repository / ".venv"
    installed.mkdir()
    monkeypatch.setattr(module, "PACKAGE", installed)
    assert revision() == ""
    monkeypatch.setenv("PATH", "")
    assert revision() == ""
