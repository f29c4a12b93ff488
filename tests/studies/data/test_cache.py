"""What costs time is made once, and is complete when it is there."""

import json
import os
import time
from pathlib import Path

import numpy as np
import pytest

from tensorprojection.studies.data import cache, sums
from tensorprojection.studies.data.cache import cache_folder, cached, digest_of
from tensorprojection.studies.errors import StudyError

KEY = {"size": 96, "data": "phantoms"}
BESIDE = {"about.json", "digest.txt", "key.json", "sums.json"}


class Maker:
    """Writes two files, and counts how often it was asked to."""

    def __init__(self):
        self.calls = 0

    def __call__(self, folder):
        self.calls += 1
        assert list(folder.iterdir()) == []
        (folder / "a").write_text("first")
        (folder / "b").write_text("second")


def folders(root):
    return sorted(path.name for path in root.iterdir() if path.is_dir())


def test_made_once_with_its_key(tmp_path):
    make = Maker()
    place = cached("images", KEY, make, tmp_path)
    assert cached("images", dict(reversed(KEY.items())), make, tmp_path) == place
    assert make.calls == 1
    assert place.parent == tmp_path
    assert place.name.startswith("images-")
    assert json.loads((place / "key.json").read_text()) == {"format": cache.FORMAT, **KEY}
    assert {path.name for path in place.iterdir()} == {"a", "b", *BESIDE}
    assert folders(tmp_path) == [place.name]


def test_another_key_kind_or_format_is_another_folder(tmp_path, monkeypatch):
    make = Maker()
    places = {cached("images", KEY, make, tmp_path)}
    places.add(cached("copies", KEY, make, tmp_path))
    places.add(cached("images", {**KEY, "size": 97}, make, tmp_path))
    places.add(cached("images", {**KEY, "seed": None}, make, tmp_path))
    monkeypatch.setattr(cache, "FORMAT", cache.FORMAT + 1)
    places.add(cached("images", KEY, make, tmp_path))
    assert len(places) == make.calls == 5


def test_the_digest_is_of_the_arrays_and_not_of_the_key(tmp_path):
    def make(value):
        return lambda folder: np.save(folder / "images.npy", np.full(5, value))

    one = cached("images", KEY, make(1), tmp_path)
    same = cached("images", {**KEY, "path": "elsewhere"}, make(1), tmp_path)
    other = cached("images", {**KEY, "path": "third"}, make(2), tmp_path)
    assert digest_of(one) == digest_of(same) != digest_of(other)
    (one / "digest.txt").unlink()  # as folders of older versions
    assert digest_of(one) == digest_of(same)


def test_where_caches_go(tmp_path, monkeypatch):
    monkeypatch.setenv("TENSORPROJECTION_CACHE", str(tmp_path / "here"))
    assert cache_folder() == tmp_path / "here"
    assert cached("images", KEY, Maker()).parent == tmp_path / "here"
    monkeypatch.delenv("TENSORPROJECTION_CACHE")
    assert cache_folder().name == "tensorprojection"


# Makers that do not come to an end


@pytest.mark.parametrize("error", [RuntimeError, KeyboardInterrupt, StudyError])
def test_a_maker_that_fails_leaves_no_folder(error, tmp_path):
    def fails(folder):
        (folder / "a").write_text("first")
        raise error("half way")

    with pytest.raises(error, match="half way"):
        cached("images", KEY, fails, tmp_path)
    assert folders(tmp_path) == []
    make = Maker()
    cached("images", KEY, make, tmp_path)
    assert make.calls == 1


def test_what_a_killed_maker_left_is_removed_and_not_used(tmp_path):
    place = cached("images", KEY, Maker(), tmp_path)
    other = tmp_path / "copies-0123.abc.part"  # of another folder, perhaps being made
    other.mkdir()
    killed = tmp_path / f"{place.name}.xyz.part"
    place.rename(killed)
    make = Maker()
    assert cached("images", KEY, make, tmp_path) == place
    assert make.calls == 1
    assert folders(tmp_path) == sorted([place.name, other.name])


@pytest.mark.filterwarnings("ignore:.*use of fork:DeprecationWarning")
def test_a_maker_that_is_killed(tmp_path):
    def dies(folder):
        (folder / "a").write_text("first")
        os._exit(9)

    child = os.fork()
    if child == 0:
        try:
            cached("images", KEY, dies, tmp_path)
        finally:
            os._exit(1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 9
    (left,) = folders(tmp_path)
    assert left.endswith(".part")
    make = Maker()
    place = cached("images", KEY, make, tmp_path)
    assert make.calls == 1
    assert folders(tmp_path) == [place.name]


def test_the_name_of_what_is_being_made_cannot_be_guessed(tmp_path):
    seen = {cached("images", KEY | {"n": n}, lambda folder: None, tmp_path).name for n in range(3)}
    parts = []
    for n in range(3):
        cached("copies", KEY, lambda folder: parts.append(folder.name), tmp_path / str(n))
    assert len(seen) == len(set(parts)) == 3
    assert not any(str(os.getpid()) in name.split(".")[1] for name in parts)


# Damage


def zeroed(path):
    with open(path, "r+b") as file:
        file.seek(3)
        file.write(bytes(2))


def cut(path):
    os.truncate(path, path.stat().st_size - 1)


def flipped(path):
    content = bytearray(path.read_bytes())
    content[-2] ^= 1
    seen = path.stat()
    path.write_bytes(content)
    os.utime(path, ns=(seen.st_atime_ns, seen.st_mtime_ns))


@pytest.mark.parametrize(
    "damage", [zeroed, cut, flipped, Path.unlink, lambda p: p.write_bytes(b"")]
)
@pytest.mark.parametrize("name", ["a", "b", "deeper/c", *sorted(BESIDE)])
def test_what_is_damaged_is_made_again_and_said(damage, name, tmp_path, caplog):
    calls = []

    def make(folder):
        Maker()(folder)
        (folder / "deeper").mkdir()
        (folder / "deeper" / "c").write_text("third")
        calls.append(folder)

    place = cached("images", KEY, make, tmp_path, {"study": "oct"})
    before = {path: path.read_bytes() for path in place.rglob("*") if path.is_file()}
    damage(place / name)
    caplog.clear()
    assert cached("images", KEY, make, tmp_path, {"study": "oct"}) == place
    (said,) = caplog.messages
    assert said.startswith(f"{place} is damaged (")
    assert said.endswith("): it is made again.")
    assert name in said
    assert len(calls) == 2
    assert {path: path.read_bytes() for path in before} == before
    assert folders(tmp_path) == [place.name]
    cached("images", KEY, make, tmp_path)
    assert (len(calls), len(caplog.messages)) == (2, 1)


def test_damage_in_any_piece_of_a_large_file(tmp_path, monkeypatch):
    monkeypatch.setattr(sums, "PIECE", 100)
    content = bytes(range(250)) * 2

    def make(folder):
        (folder / "a").write_bytes(content)
        (folder / "empty").write_bytes(b"")

    place = cached("images", KEY, make, tmp_path)
    assert sums.damage(place) is None
    for at in (0, 99, 100, 350, 499):
        (place / "a").write_bytes(content[:at] + b"\xff" + content[at + 1 :])
        assert sums.damage(place) == "a has other content than was written"
    (place / "a").write_bytes(content)
    assert sums.damage(place) is None


@pytest.mark.skipif(os.name == "nt" or os.geteuid() == 0, reason="root may write everywhere")
def test_a_cache_that_may_only_be_read(tmp_path):
    place = cached("images", KEY, Maker(), tmp_path)
    tmp_path.chmod(0o500)
    try:
        assert cached("images", KEY, Maker(), tmp_path) == place
    finally:
        tmp_path.chmod(0o700)


# Several at once


def until(condition):
    deadline = time.monotonic() + 30
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.005)


@pytest.mark.filterwarnings("ignore:.*use of fork:DeprecationWarning")
def test_processes_that_want_it_at_once_make_it_once(tmp_path):
    """Whoever makes it does not finish before all have asked; none gets half of it."""
    root, log = tmp_path / "cache", tmp_path / "log"
    log.mkdir()
    count = 3

    def slow(folder):
        (log / f"made-{os.getpid()}").touch()
        (folder / "a").write_text("first")
        until(lambda: len(list(log.glob("asks-*"))) == count)
        time.sleep(0.1)  # so that the others have come to the lock
        (folder / "b").write_text("second")

    children = []
    for _ in range(count):
        child = os.fork()
        if child == 0:
            code = 1
            try:
                (log / f"asks-{os.getpid()}").touch()
                place = cached("images", KEY, slow, root)
                code = 0 if (place / "b").read_text() == "second" else 2
            finally:
                os._exit(code)
        children.append(child)
    codes = [os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children]
    assert codes == [0] * count
    assert len(list(log.glob("made-*"))) == 1
    assert len(folders(root)) == 1


def test_a_folder_appears_complete(tmp_path, monkeypatch):
    """At the moment of the rename everything is in it, the key as well."""
    seen = []
    rename = Path.rename

    def look(beside, place):
        seen.append((place.exists(), sorted(path.name for path in beside.iterdir())))
        return rename(beside, place)

    monkeypatch.setattr(Path, "rename", look)
    cached("images", KEY, Maker(), tmp_path)
    assert seen == [(False, sorted({"a", "b", *BESIDE}))]


# Disks


def full(_):
    raise OSError(28, "No space left on device")


def test_a_full_disk(tmp_path):
    with pytest.raises(
        StudyError, match=r"Could not make the cache .*: No space left on device. Where there"
    ) as raised:
        cached("images", KEY, full, tmp_path)
    assert "TENSORPROJECTION_CACHE" in str(raised.value)
    assert "\n" not in str(raised.value)
    assert folders(tmp_path) == []


def test_a_cache_that_cannot_be_written_to(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(StudyError, match=r"Could not make the cache .*: Not a directory|File exi"):
        cached("images", KEY, Maker(), tmp_path / "file" / "cache")
    with pytest.raises(StudyError, match="Could not make the cache"):
        cached("images", KEY, Maker(), tmp_path / "file")
