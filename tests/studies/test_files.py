"""Files are written atomically."""

import os
from pathlib import Path

import pytest

from tensorprojection.studies.files import write_whole


@pytest.fixture
def file(tmp_path):
    path = tmp_path / "config.toml"
    path.write_bytes(b"old")
    return path


def test_new_content_replaces_the_old(file):
    write_whole(file, b"new")
    assert file.read_bytes() == b"new"
    write_whole(file.with_name("other"), b"")
    assert file.with_name("other").read_bytes() == b""
    assert {path.name for path in file.parent.iterdir()} == {"config.toml", "other"}


def fail(*_):
    raise OSError(28, "No space left on device")


class FullDisk:
    """A file of which a part is written before the disk is full."""

    def __init__(self, path, mode):
        self.file = open(path, mode)  # noqa: SIM115

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.file.close()

    def write(self, content):
        self.file.write(content[:1])
        fail()


@pytest.mark.parametrize("when", ["open", "write", "fsync", "replace", "Ctrl-C"])
def test_an_error_leaves_the_old_content_and_nothing_else(file, when, monkeypatch):
    module = "tensorprojection.studies.files"
    if when == "open":
        monkeypatch.setattr(f"{module}.open", fail, raising=False)
    elif when == "write":
        monkeypatch.setattr(f"{module}.open", FullDisk, raising=False)
    elif when == "replace":
        monkeypatch.setattr(Path, "replace", fail)
    else:
        error = OSError(28, "No space left on device") if when == "fsync" else KeyboardInterrupt()

        def interrupted(_):
            raise error

        monkeypatch.setattr(os, "fsync", interrupted)
    with pytest.raises(KeyboardInterrupt if when == "Ctrl-C" else OSError):
        write_whole(file, b"new")
    assert file.read_bytes() == b"old"
    assert [path.name for path in file.parent.iterdir()] == ["config.toml"]


def test_the_content_reaches_the_disk_before_the_name_does(file, monkeypatch):
    happened = []
    replace = Path.replace

    def sync(number):
        happened.append(("sync", os.fstat(number).st_size))

    def rename(part, to):
        happened.append(("rename", to.name))
        return replace(part, to)

    monkeypatch.setattr(os, "fsync", sync)
    monkeypatch.setattr(Path, "replace", rename)
    write_whole(file, b"12345")
    assert happened == [("sync", 5), ("rename", "config.toml")]


def test_what_a_killed_process_left_is_no_obstacle(file):
    file.with_name("config.toml.0123456789abcdef.part").write_bytes(b"half of something longer")
    write_whole(file, b"new")
    assert file.read_bytes() == b"new"
    assert [path.name for path in file.parent.iterdir()] == ["config.toml"]


def test_the_name_beside_cannot_be_guessed(file, monkeypatch):
    """Else somebody could put a link there, and have another file overwritten."""
    seen = set()
    replace = Path.replace

    def rename(part, to):
        seen.add(part.name)
        return replace(part, to)

    monkeypatch.setattr(Path, "replace", rename)
    for _ in range(5):
        write_whole(file, b"new")
    assert len(seen) == 5


def test_a_folder_that_is_not_there(tmp_path):
    with pytest.raises(FileNotFoundError):
        write_whole(tmp_path / "none" / "file", b"new")
