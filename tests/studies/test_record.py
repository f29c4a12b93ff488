"""What a run was made with."""

import json
import platform
import subprocess
import sys
from dataclasses import replace
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path

import numpy as np
import pytest
import torch

import tensorprojection
from tensorprojection.studies import record
from tensorprojection.studies.code_version import code_version
from tensorprojection.studies.config import RunConfig
from tensorprojection.studies.errors import StudyError
from tensorprojection.studies.inputs import RunInputs
from tensorprojection.studies.oct import PRESETS
from tensorprojection.studies.record import Record, add_record, read_record

CONFIG = RunConfig(study="oct", seed=5, threads=2, **PRESETS["smoke"])
PREPARED = RunInputs({}, "oct images of a folder", ("a.png", "b µ.png"))


def starts(run):
    return json.loads((run / "record.json").read_text())


def test_what_is_recorded(tmp_path, monkeypatch):
    monkeypatch.setattr(sys, "argv", ["tpl", "run", "oct"])
    add_record(tmp_path, CONFIG, PREPARED, jobs=3)
    (start,) = starts(tmp_path)
    assert start["command"] == ["tpl", "run", "oct"]
    assert (start["seed"], start["jobs"], start["threads"]) == (5, 3, 2)
    assert RunConfig(**start["settings"]) == CONFIG
    assert start["code"] == code_version()
    assert version("torch") in start["code"]
    assert start["images"] == "oct images of a folder"
    assert start["unreadable"] == {"count": 2, "files": ["a.png", "b µ.png"]}
    assert start["versions"]["python"] == platform.python_version()
    assert start["versions"]["torch"] == version("torch")
    assert start["versions"]["numpy"] == np.__version__
    assert start["versions"]["tensorprojection"] == tensorprojection.__version__
    assert start["machine"]["cores"] >= 1
    assert start["machine"]["system"] == platform.platform()
    assert start["machine"]["torch"] == torch.backends.cpu.get_cpu_capability()
    assert "gpu" in start["machine"]
    assert "git" in start
    assert datetime.fromisoformat(start["started"]).tzinfo == UTC


def test_a_second_start_is_added(tmp_path):
    add_record(tmp_path, CONFIG, PREPARED, jobs=1)
    add_record(tmp_path, CONFIG, PREPARED, jobs=2)
    assert [start["jobs"] for start in starts(tmp_path)] == [1, 2]


def test_the_record_has_the_first_images_and_the_last_settings(tmp_path):
    assert read_record(tmp_path) == Record([])
    assert read_record(tmp_path).settings is None
    add_record(tmp_path, CONFIG, replace(PREPARED, weights="abc"), jobs=1)
    more = CONFIG.model_copy(update={"trials": 9})
    add_record(tmp_path, more, replace(PREPARED, weights="def"), jobs=1)
    record = read_record(tmp_path)
    assert record.identity == {"weights": "abc"}
    assert record.settings["trials"] == 9


def test_a_flip_anywhere_in_a_record_is_found(tmp_path):
    add_record(tmp_path, CONFIG, PREPARED, jobs=1)
    path = tmp_path / "record.json"
    whole, record = path.read_bytes(), read_record(tmp_path)
    for place in range(len(whole)):
        flipped = bytearray(whole)
        flipped[place] ^= 2
        path.write_bytes(flipped)
        try:
            assert read_record(tmp_path) == record  # where it was of no meaning
        except StudyError as error:
            assert str(path) in str(error)  # noqa: PT017


def test_a_package_that_is_not_installed_is_left_out(tmp_path, monkeypatch):
    monkeypatch.setattr(record, "PACKAGES", ("torch", "no-such-package"))
    add_record(tmp_path, CONFIG, PREPARED, jobs=1)
    assert starts(tmp_path)[0]["versions"].keys() == {"python", "torch"}


# The revision


def git(answers):
    """Stands in for git: an answer, or an error, by its first argument."""

    def run(folder, *arguments):
        assert folder == Path(record.__file__).parent
        answer = answers[arguments[0]]
        if isinstance(answer, Exception):
            raise answer
        return answer

    return run


def recorded(tmp_path, monkeypatch, **answers):
    answers = {name.replace("_", "-"): answer for name, answer in answers.items()}
    monkeypatch.setattr(record, "_git", git(answers))
    add_record(tmp_path, CONFIG, PREPARED, jobs=1)
    return starts(tmp_path)[0]["git"]


def test_a_clean_checkout(tmp_path, monkeypatch):
    got = recorded(tmp_path, monkeypatch, rev_parse="abc", ls_files="record.py", status="")
    assert got == "abc"


def test_a_changed_checkout(tmp_path, monkeypatch):
    got = recorded(tmp_path, monkeypatch, rev_parse="abc", ls_files="record.py", status=" M x.py")
    assert got == "abc+"


FAILURES = [
    FileNotFoundError("git"),
    subprocess.CalledProcessError(128, "git"),
    subprocess.TimeoutExpired("git", 30),
]


@pytest.mark.parametrize("error", FAILURES, ids=lambda error: type(error).__name__)
def test_without_git_there_is_no_revision(error, tmp_path, monkeypatch):
    assert recorded(tmp_path, monkeypatch, rev_parse=error) is None


def test_another_repository_around_the_installed_package_does_not_count(tmp_path, monkeypatch):
    """As where a virtual environment lies in somebody's checkout."""
    untracked = subprocess.CalledProcessError(1, "git")
    assert recorded(tmp_path, monkeypatch, rev_parse="abc", ls_files=untracked) is None
