"""Opening files that may not be what their names say."""

import os
import socket

import pytest

from tensorprojection.studies.data.regular import open_regular, read_regular, what_is
from tensorprojection.studies.errors import StudyError

pytestmark = pytest.mark.skipif(os.name == "nt", reason="no pipes and devices there")


@pytest.fixture
def odd(tmp_path):
    """Things that are named like images and are none."""
    os.mkfifo(tmp_path / "pipe.jpeg")
    (tmp_path / "folder.jpeg").mkdir()
    (tmp_path / "endless.jpeg").symlink_to("/dev/zero")
    (tmp_path / "nowhere.jpeg").symlink_to(tmp_path / "nothing")
    with socket.socket(socket.AF_UNIX) as made:
        made.bind(str(tmp_path / "s.jpeg"))
    return tmp_path


@pytest.mark.parametrize(
    ("name", "what"),
    [
        ("pipe.jpeg", "a pipe, not a regular file"),
        ("folder.jpeg", "a folder, not a regular file"),
        ("endless.jpeg", "a device, not a regular file"),
        ("s.jpeg", "a socket, not a regular file"),
        ("nowhere.jpeg", "No such file"),
    ],
)
def test_only_regular_files_are_opened(odd, name, what):
    for read in (open_regular, read_regular):
        with pytest.raises(OSError, match=what):
            read(odd / name)
    assert what_is(odd / name) in ("other", "folder", None)


def test_what_comes_in_between_counts(odd, monkeypatch):
    """A pipe that was a file when it was looked at: it is opened, without waiting, and refused."""
    (odd / "file.jpeg").write_bytes(b"x")
    before = os.stat(odd / "file.jpeg")
    monkeypatch.setattr(os, "stat", lambda path: before)
    with pytest.raises(OSError, match="a pipe, not"):
        open_regular(odd / "pipe.jpeg")


def test_files_and_links_to_them(tmp_path):
    (tmp_path / "a").write_bytes(b"12345")
    (tmp_path / "link").symlink_to(tmp_path / "a")
    for name in ("a", "link"):
        assert read_regular(tmp_path / name) == b"12345"
        assert what_is(tmp_path / name) == "file"
    assert read_regular(tmp_path / "a", most=5) == b"12345"
    with pytest.raises(OSError, match="more than 4 bytes"):
        read_regular(tmp_path / "a", most=4)


def test_paths_that_cannot_be(tmp_path):
    assert what_is(tmp_path / "none") is None
    assert what_is(tmp_path / "none" / "deeper") is None
    for path, why in (("x" * 300, "too long"), ("a\0b", "null"), ("a\udcff", "UTF-8")):
        with pytest.raises(StudyError, match=why):
            what_is(tmp_path / path)
