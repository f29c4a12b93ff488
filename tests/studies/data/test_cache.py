"""The cache: slow steps run once, and an entry is complete or absent."""

import json
import os
import time
from pathlib import Path

import pytest
from filelock import FileLock

from tensorprojection.studies.data import cache
from tensorprojection.studies.data.cache import ENTRY, cache_folder, cached, checksum, entries
from tensorprojection.studies.errors import StudyError

pytestmark = pytest.mark.filterwarnings("ignore:Cyclopts application invoked without tokens")

KEY = {"size": 96, "data": "phantoms"}


class Maker:
    """Writes two files, and counts how often it was asked to."""

    def __init__(self):
        self.calls = 0

    def __call__(self, folder):
        self.calls += 1
        assert list(folder.iterdir()) == []
        (folder / "a").write_text("first")
        (folder / "b").write_text("second")


@pytest.fixture(autouse=True)
def own_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("TENSORPROJECTION_CACHE", str(tmp_path))


def folders(root):
    return sorted(path.name for path in root.iterdir() if path.is_dir())


def test_made_once_with_its_key(tmp_path):
    make = Maker()
    place = cached("images", KEY, make)
    assert cached("images", dict(reversed(KEY.items())), make) == place
    assert make.calls == 1
    assert place.parent == tmp_path
    assert place.name.startswith("images-")
    assert json.loads((place / ENTRY).read_text())["key"] == {"format": cache.FORMAT, **KEY}
    assert {path.name for path in place.iterdir()} == {"a", "b", ENTRY}
    assert folders(tmp_path) == [place.name]


def test_another_key_kind_or_format_is_another_folder(tmp_path, monkeypatch):
    make = Maker()
    places = {cached("images", KEY, make)}
    places.add(cached("copies", KEY, make))
    places.add(cached("images", {**KEY, "size": 97}, make))
    places.add(cached("images", {**KEY, "seed": None}, make))
    monkeypatch.setattr(cache, "FORMAT", cache.FORMAT + 1)
    places.add(cached("images", KEY, make))
    assert len(places) == make.calls == 5


def test_the_checksum_is_of_the_content_and_not_of_the_key(tmp_path):
    def make(value):
        return lambda folder: (folder / "a").write_text(value)

    one = cached("images", KEY, make("1"))
    same = cached("images", {**KEY, "path": "elsewhere"}, make("1"))
    other = cached("images", {**KEY, "path": "third"}, make("2"))
    assert checksum(one) == checksum(same) != checksum(other)


def test_where_caches_go(tmp_path, monkeypatch):
    monkeypatch.setenv("TENSORPROJECTION_CACHE", str(tmp_path / "here"))
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
        cached("images", KEY, fails)
    assert folders(tmp_path) == []
    cached("images", KEY, Maker())


@pytest.mark.filterwarnings("ignore:.*use of fork:DeprecationWarning")
def test_a_maker_that_is_killed(tmp_path):
    def dies(folder):
        (folder / "a").write_text("first")
        os._exit(9)

    child = os.fork()
    if child == 0:
        try:
            cached("images", KEY, dies)
        finally:
            os._exit(1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 9
    (left,) = folders(tmp_path)
    assert left.endswith(".part")
    other = tmp_path / "copies-0123.abc.part"  # of another folder, perhaps being made
    other.mkdir()
    make = Maker()
    place = cached("images", KEY, make)
    assert make.calls == 1
    assert folders(tmp_path) == sorted([place.name, other.name])


# Corruption


def cut(path):
    os.truncate(path, path.stat().st_size - 1)


def flipped(path):
    content = bytearray(path.read_bytes())
    content[-2] ^= 1
    seen = path.stat()
    path.write_bytes(content)
    os.utime(path, ns=(seen.st_atime_ns, seen.st_mtime_ns))


@pytest.mark.parametrize("damage", [cut, flipped, Path.unlink, lambda p: p.write_bytes(b"")])
@pytest.mark.parametrize("name", ["a", "b", ENTRY])
def test_corrupted_entries_are_named_and_computed_again(damage, name, tmp_path, caplog):
    make = Maker()
    place = cached("images", KEY, make)
    before = {path: path.read_bytes() for path in place.iterdir()}
    damage(place / name)
    caplog.clear()
    assert cached("images", KEY, make) == place
    (said,) = caplog.messages
    assert said == f"{place} is corrupted: it is computed again."
    assert make.calls == 2
    assert {path: path.read_bytes() for path in before} == before
    assert folders(tmp_path) == [place.name]
    cached("images", KEY, make)
    assert (make.calls, len(caplog.messages)) == (2, 1)


@pytest.mark.skipif(os.name == "nt" or os.geteuid() == 0, reason="root may write everywhere")
def test_a_cache_that_may_only_be_read(tmp_path):
    place = cached("images", KEY, Maker())
    tmp_path.chmod(0o500)
    try:
        assert cached("images", KEY, Maker()) == place
    finally:
        tmp_path.chmod(0o700)


# Several at once


def until(condition):
    deadline = time.monotonic() + 30
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.005)


@pytest.mark.filterwarnings("ignore:.*use of fork:DeprecationWarning")
def test_processes_that_want_it_at_once_make_it_once(tmp_path, monkeypatch):
    """Whoever makes it does not finish before all have asked; none gets half of it."""
    root, log = tmp_path / "cache", tmp_path / "log"
    monkeypatch.setenv("TENSORPROJECTION_CACHE", str(root))
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
                place = cached("images", KEY, slow)
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
    cached("images", KEY, Maker())
    assert seen == [(False, ["a", "b", ENTRY])]


# Disks


def full(_):
    raise OSError(28, "No space left on device")


def test_a_full_disk(tmp_path):
    with pytest.raises(
        StudyError, match=r"Could not make the cache .*: No space left on device. If the disk"
    ) as raised:
        cached("images", KEY, full)
    assert "TENSORPROJECTION_CACHE" in str(raised.value)
    assert "\n" not in str(raised.value)
    assert folders(tmp_path) == []


def test_a_cache_that_cannot_be_written_to(tmp_path, monkeypatch):
    (tmp_path / "file").touch()
    monkeypatch.setenv("TENSORPROJECTION_CACHE", str(tmp_path / "file" / "cache"))
    with pytest.raises(StudyError, match="Could not make the cache"):
        cached("images", KEY, Maker())


# The size of all, and clearing


def made(name, size=1000):
    return cached("images", {"name": name}, lambda f: (f / "a").write_bytes(bytes(size)))


def test_the_size_of_all_and_clearing(tmp_path, tpl):
    made("one", 30_000_000)
    made("two")
    assert tpl("cache")[:2] == (0, f"{tmp_path}: 2 folders, 0.03 GB\n")
    assert "2 folders removed." in tpl("cache", "--clear")[1]
    assert entries() == {}


def test_what_is_being_made_stays(tmp_path, tpl):
    place = made("one")
    place.with_name(f"{place.name}.0123456789abcdef.part").mkdir()
    with FileLock(f"{place}.lock"):
        code, _, err = tpl("cache", "--clear")
    assert code == 1
    assert "it is being made" in err
    assert len(entries()) == 2
    assert tpl("cache", "--clear")[0] == 0
    assert entries() == {}


def test_other_things_in_the_folder_are_never_touched(tmp_path, tpl):
    made("one")
    (tmp_path / "images-of-mine").mkdir()
    (tmp_path / "thesis.txt").write_text("mine")
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "images-0123456789abcdef").symlink_to(tmp_path / "elsewhere")
    tpl("cache", "--clear")
    left = {path.name for path in tmp_path.iterdir() if not path.name.endswith(".lock")}
    assert left == {"images-of-mine", "thesis.txt", "elsewhere", "images-0123456789abcdef"}
