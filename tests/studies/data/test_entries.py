"""What is in the cache, and removing it."""

import io
import os
import sys
import time

import numpy as np
import pytest
from by_name import open_images
from filelock import FileLock
from rich.console import Console

from tensorprojection.cli import cache as cli_cache
from tensorprojection.studies.data.cache import cached
from tensorprojection.studies.data.copies import make_copies
from tensorprojection.studies.data.entries import chosen, clear, entries, render
from tensorprojection.studies.data.in_use import alone, hold
from tensorprojection.studies.errors import StudyError
from tensorprojection.studies.kvasir import CHANGES as KVASIR

pytestmark = pytest.mark.filterwarnings("ignore:.*use of fork:DeprecationWarning")


@pytest.fixture
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("TENSORPROJECTION_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


def in_a_child(work):
    """In another process; its exit status."""
    child = os.fork()
    if child == 0:
        code = 9
        try:
            work()
            code = 0
        except SystemExit as ended:
            code = ended.code
        finally:
            os._exit(code)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def made(cache, study, source="somewhere", size=1000):
    """By a process that has ended, and so holds nothing."""
    told = {"study": study, "source": source}

    def fill(folder):
        (folder / "a").write_bytes(bytes(size))

    assert in_a_child(lambda: cached("images", told, fill, cache, told)) == 0


def unused(entry, days):
    then = time.time() - days * 86400
    os.utime(entry.path / "key.json", (then, then))


def tpl(*arguments):
    cli_cache.app(list(arguments), result_action="return_value")


def test_what_is_there_and_what_made_it(cache):
    images = open_images("kvasir", None, size=32, count=4, seed=2)
    make_copies(images.folder, images.images, 2, KVASIR, 0)
    found = {entry.kind: entry for entry in entries()}
    assert set(found) == {"images", "copies"}
    for entry in found.values():
        assert entry.study == "kvasir"
        assert entry.source == "kvasir phantoms, seed 2"
        assert entry.bytes == sum(path.stat().st_size for path in entry.path.iterdir())
        assert abs(time.time() - entry.used) < 60
    console = Console(width=200, file=io.StringIO())
    console.print(render(entries()))
    shown = console.file.getvalue()
    assert str(cache) in shown
    for words in (images.folder.name, "copies", "kvasir phantoms, seed 2", "hours ago"):
        assert words in shown


def test_nothing_is_there(cache, capsys):
    assert entries() == []
    tpl("list")
    assert "nothing is kept" in " ".join(capsys.readouterr().out.split())
    tpl("clear")
    assert "0 folders removed" in capsys.readouterr().out
    assert not cache.exists()


def test_all_is_cleared_and_counted(cache, capsys):
    made(cache, "oct", size=3_000_000)
    made(cache, "chest")
    names = [entry.name for entry in entries()]
    tpl("clear")
    out = capsys.readouterr().out
    assert all(f"removed {name}" in out for name in names)
    assert "2 folders removed, 3.0 MB freed; 0 kept." in out
    assert [path for path in cache.iterdir() if path.is_dir()] == []


def test_by_study_and_by_age(cache):
    for study in ("oct", "chest"):
        made(cache, study, "old")
        made(cache, study, "new")
    for entry in entries():
        if entry.source == "old":
            unused(entry, 10)
    assert [e.source for e in entries()] == ["new", "new", "old", "old"]
    assert {(e.study, e.source) for e in chosen(entries(), "oct")} == {
        ("oct", "old"),
        ("oct", "new"),
    }
    assert {e.source for e in chosen(entries(), older_than=9.5)} == {"old"}
    assert chosen(entries(), older_than=10.5) == []
    tpl("clear", "--study", "oct", "--older-than", "9.5")
    left = {(e.study, e.source) for e in entries()}
    assert left == {("oct", "new"), ("chest", "old"), ("chest", "new")}


def test_using_it_makes_it_young_again(cache):
    made(cache, "oct")
    (entry,) = entries()
    unused(entry, 10)
    made(cache, "oct")
    assert chosen(entries(), older_than=1) == []


@pytest.mark.parametrize("days", [-1, float("nan"), float("inf")])
def test_wrong_ages(cache, days):
    with pytest.raises(StudyError, match="days of 0 or more"):
        chosen([], older_than=days)


def test_what_a_process_works_with_stays(cache):
    """It maps files, and its workers will open them again."""
    opened = open_images("oct", None, size=32, count=8)
    before = np.array(opened.images.images)
    made(cache, "chest")
    assert in_a_child(lambda: tpl("clear")) == 1
    (kept,) = entries()
    assert kept.path == opened.folder
    again = open_images("oct", None, size=32, count=8)
    np.testing.assert_array_equal(again.images.images, before)
    (_, why), *_ = clear(entries())[1]
    assert why == "a run is using it"


def test_what_is_being_made_stays(cache):
    made(cache, "oct")
    (entry,) = entries()
    part = entry.path.with_name(f"{entry.name}.0123456789abcdef.part")
    part.mkdir()
    with FileLock(f"{entry.path}.lock"):
        assert in_a_child(lambda: tpl("clear")) == 1
    assert {e.kind for e in entries()} == {"images", "unfinished"}
    removed, kept = clear(entries())
    assert (len(removed), kept) == (2, [])


def test_other_things_in_the_folder_are_never_touched(cache, tmp_path):
    made(cache, "oct")
    (cache / "images-of-mine").mkdir()
    (cache / "thesis.txt").write_text("mine")
    (tmp_path / "elsewhere").mkdir()
    (cache / "images-0123456789abcdef").symlink_to(tmp_path / "elsewhere")
    tpl("clear")
    left = {path.name for path in cache.iterdir() if not path.name.endswith(".lock")}
    assert left == {"images-of-mine", "thesis.txt", "images-0123456789abcdef"}
    assert (tmp_path / "elsewhere").is_dir()


def test_a_lock_ends_with_its_process(tmp_path):
    place = tmp_path / "images-0"
    assert not hold(place)
    place.mkdir()
    assert in_a_child(lambda: sys.exit(int(hold(place)))) == 1
    with alone(place) as free:
        assert free
        assert not hold(place)  # it is about to be removed
    assert hold(place)
    with alone(place) as free:
        assert not free
