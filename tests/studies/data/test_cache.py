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


def folders(root):
    return sorted(path.name for path in root.iterdir() if path.is_dir())


def test_made_once_with_its_key(tmp_path):
    make = Maker()
    place = cached("images", KEY, make, tmp_path)
    assert cached("images", dict(reversed(KEY.items())), make, tmp_path) == place
    assert make.calls == 1
    assert place.parent == tmp_path
    assert place.name.startswith("images-")
    assert json.loads((place / ENTRY).read_text())["key"] == {"format": cache.FORMAT, **KEY}
    assert {path.name for path in place.iterdir()} == {"a", "b", ENTRY}
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


def test_the_checksum_is_of_the_content_and_not_of_the_key(tmp_path):
    def make(value):
        return lambda folder: (folder / "a").write_text(value)

    one = cached("images", KEY, make("1"), tmp_path)
    same = cached("images", {**KEY, "path": "elsewhere"}, make("1"), tmp_path)
    other = cached("images", {**KEY, "path": "third"}, make("2"), tmp_path)
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
        cached("images", KEY, fails, tmp_path)
    assert folders(tmp_path) == []
    cached("images", KEY, Maker(), tmp_path)


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
    other = tmp_path / "copies-0123.abc.part"  # of another folder, perhaps being made
    other.mkdir()
    make = Maker()
    place = cached("images", KEY, make, tmp_path)
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
    place = cached("images", KEY, make, tmp_path, {"study": "oct"})
    before = {path: path.read_bytes() for path in place.iterdir()}
    damage(place / name)
    caplog.clear()
    assert cached("images", KEY, make, tmp_path, {"study": "oct"}) == place
    (said,) = caplog.messages
    assert said.startswith(f"{place} is corrupted (")
    assert said.endswith("): it is computed again.")
    assert make.calls == 2
    assert {path: path.read_bytes() for path in before} == before
    assert folders(tmp_path) == [place.name]
    cached("images", KEY, make, tmp_path)
    assert (make.calls, len(caplog.messages)) == (2, 1)


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
    assert seen == [(False, ["a", "b", ENTRY])]


# Disks


def full(_):
    raise OSError(28, "No space left on device")


def test_a_full_disk(tmp_path):
    with pytest.raises(
        StudyError, match=r"Could not make the cache .*: No space left on device. If the disk"
    ) as raised:
        cached("images", KEY, full, tmp_path)
    assert "TENSORPROJECTION_CACHE" in str(raised.value)
    assert "\n" not in str(raised.value)
    assert folders(tmp_path) == []


def test_a_cache_that_cannot_be_written_to(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(StudyError, match="Could not make the cache"):
        cached("images", KEY, Maker(), tmp_path / "file" / "cache")


# Listing and clearing


@pytest.fixture
def here(tmp_path, monkeypatch):
    monkeypatch.setenv("TENSORPROJECTION_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


def made(study, source="somewhere", size=1000):
    told = {"study": study, "source": source}
    return cached("images", told, lambda f: (f / "a").write_bytes(bytes(size)), None, told)


def unused(place, days):
    then = time.time() - days * 86400
    os.utime(place / ENTRY, (then, then))


def test_the_list_says_what_is_there_and_what_made_it(here, tpl, monkeypatch):
    monkeypatch.setenv("COLUMNS", "200")
    assert tpl("cache", "list")[:2] == (0, f"{here}: 0.0 MB\n")
    hostile = "[bold]x\x1b[31m; rm -rf ~"
    place, other = made("oct", hostile, 3_000_000), made("chest")
    unused(place, 10)
    code, out, _ = tpl("cache", "list")
    assert code == 0
    assert f"{here}: 3.0 MB" in out
    for words in (place.name, other.name, "oct", "3.0 MB", "10.0", "[bold]x", "; rm -rf ~"):
        assert words in out
    assert out.index(other.name) < out.index(place.name)  # the last used first


def test_clear_by_study_and_by_age(here, tpl):
    for study in ("oct", "chest"):
        unused(made(study, "old"), 10)
        made(study, "new")
    code, out, _ = tpl("cache", "clear", "--study", "oct", "--older-than", "9.5")
    assert code == 0
    assert "1 folders removed, 0.0 MB freed; 0 left." in out
    left = {(e.study, e.source) for e in entries()}
    assert left == {("oct", "new"), ("chest", "old"), ("chest", "new")}
    made("chest", "old")  # to use it makes it young again
    tpl("cache", "clear", "--older-than", "1")
    assert len(entries()) == 3
    tpl("cache", "clear")
    assert entries() == []


@pytest.mark.parametrize("days", ["-1", "nan", "inf"])
def test_wrong_ages(here, tpl, days):
    code, _, err = tpl("cache", "clear", f"--older-than={days}")
    assert (code, err.count("\n")) == (2, 1)
    assert "days of 0 or more" in err


def test_what_is_being_made_stays(here, tpl):
    place = made("oct")
    place.with_name(f"{place.name}.0123456789abcdef.part").mkdir()
    with FileLock(f"{place}.lock"):
        code, _, err = tpl("cache", "clear")
    assert code == 1
    assert "it is being made" in err
    assert {e.kind for e in entries()} == {"images", "unfinished"}
    assert tpl("cache", "clear")[0] == 0
    assert entries() == []


def test_other_things_in_the_folder_are_never_touched(here, tpl, tmp_path):
    made("oct")
    (here / "images-of-mine").mkdir()
    (here / "thesis.txt").write_text("mine")
    (tmp_path / "elsewhere").mkdir()
    (here / "images-0123456789abcdef").symlink_to(tmp_path / "elsewhere")
    tpl("cache", "clear")
    left = {path.name for path in here.iterdir() if not path.name.endswith(".lock")}
    assert left == {"images-of-mine", "thesis.txt", "images-0123456789abcdef"}
    assert (tmp_path / "elsewhere").is_dir()
