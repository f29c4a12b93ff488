"""Image sets on disk."""

import os
import resource
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from numpy.testing import assert_array_equal

from tensorprojection.studies.data.cache import (
    ARRAYS,
    Stack,
    content_of,
    create_array,
    open_array,
    open_stored,
    receive,
    store,
)
from tensorprojection.studies.data.images import ImageSet
from tensorprojection.studies.errors import StudyError

draw = np.random.default_rng(0)
FULL = ImageSet(
    draw.integers(0, 256, (5, 4, 6, 3), dtype=np.uint8),
    labels=np.array([0, 1, 1, 2, 0]),
    masks=draw.integers(0, 2, (5, 4, 6), dtype=np.uint8),
    class_names=("a", "b µ", "c"),
    groups=np.array([4, 4, 1, 0, 2]),
    names=np.array(["ä.png", "b", "c", "d", "e"]),
    parts=np.array(["train", "val", "test", "train", "train"]),
)
BARE = ImageSet(draw.integers(0, 256, (3, 4, 4), dtype=np.uint8))


@pytest.mark.parametrize("images", [FULL, BARE], ids=["full", "bare"])
def test_round_trip(images, tmp_path):
    store(images, tmp_path)
    again = open_stored(tmp_path)
    assert again.class_names == images.class_names
    for name in ARRAYS:
        before, after = getattr(images, name), getattr(again, name)
        assert (before is None) == (after is None)
        if before is not None:
            assert after.dtype == before.dtype
            assert_array_equal(after, before)


def test_arrays_are_mapped_and_read_only(tmp_path):
    store(FULL, tmp_path)
    again = open_stored(tmp_path)
    for name in ARRAYS:
        array = getattr(again, name)
        assert isinstance(array, np.memmap)
        with pytest.raises(ValueError, match="read-only"):
            array[0] = array[1]


def test_nothing_is_unpickled(tmp_path):
    """A file with Python objects could run anything when it is read."""
    store(BARE, tmp_path)
    np.save(tmp_path / "names.npy", np.array(["a", None, "c"], object), allow_pickle=True)
    with pytest.raises(StudyError, match=r"names\.npy: .*Python objects"):
        open_stored(tmp_path)


def test_nothing_is_pickled(tmp_path):
    odd = ImageSet(BARE.images, names=np.array(["a", "b", "c"]))
    object.__setattr__(odd, "names", np.array(["a", None, "c"], object))
    with pytest.raises(ValueError, match="allow_pickle=False"):
        store(odd, tmp_path)


def test_masks_are_checked_when_they_are_stored(tmp_path):
    """Opening does not read the pixels."""
    with pytest.raises(ValueError, match="masks of 0 and 1 only, got a 255"):
        store(replace(FULL, masks=FULL.masks * np.uint8(255)), tmp_path)
    store(FULL, tmp_path)
    np.save(tmp_path / "masks.npy", np.full((5, 4, 6), 9, np.uint8))
    open_stored(tmp_path)


def truncate(path):
    os.truncate(path, path.stat().st_size - 1)


@pytest.mark.parametrize("damage", [Path.unlink, truncate, lambda path: path.write_bytes(b"")])
@pytest.mark.parametrize("name", ["images.npy", "class_names.npy"])
def test_the_error_names_a_corrupted_file_and_the_remedy_in_one_line(damage, name, tmp_path):
    store(FULL, tmp_path)
    damage(tmp_path / name)
    with pytest.raises(StudyError, match=r"Could not open .*Run the same command") as raised:
        open_stored(tmp_path)
    assert str(tmp_path) in str(raised.value)
    assert "\n" not in str(raised.value)


def test_an_array_is_created_with_its_space(tmp_path):
    array = create_array(tmp_path / "a.npy", (5, 2), np.float32)
    array[3:] = [[1, 2], [3, 4]]
    del array
    assert_array_equal(np.load(tmp_path / "a.npy"), [[0, 0], [0, 0], [0, 0], [1, 2], [3, 4]])
    assert create_array(tmp_path / "none.npy", (0, 4), np.uint8).shape == (0, 4)
    assert np.load(tmp_path / "none.npy").shape == (0, 4)
    with pytest.raises(OSError, match=r"space|large|Invalid"):
        create_array(tmp_path / "huge.npy", (10**6, 10**6, 10**6), np.uint8)


@pytest.mark.filterwarnings("ignore:.*use of fork:DeprecationWarning")
def test_a_disk_that_is_full_is_an_error_and_no_signal(tmp_path):
    """A limit on the size of files stands in for the disk."""
    said = tmp_path / "said"
    child = os.fork()
    if child == 0:
        try:
            resource.setrlimit(resource.RLIMIT_FSIZE, (30_000, 30_000))
            create_array(tmp_path / "a.npy", (1000, 1000), np.uint8)[:] = 1
        except OSError as error:
            said.write_text(str(error))
        finally:
            os._exit(0)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert "File too large" in said.read_text()


def test_a_folder_that_came_from_another_machine(tmp_path):
    (tmp_path / "here").mkdir()
    store(FULL, tmp_path / "here")
    there = tmp_path / "there"  # which is not on this disk
    with pytest.raises(StudyError, match="Could not open"):
        open_stored(there)
    sent = content_of(tmp_path / "here")
    assert all(type(content) is np.ndarray for content in sent.values())
    receive(there, sent)
    found = open_stored(there)
    assert found.class_names == FULL.class_names
    for name in ARRAYS:
        assert_array_equal(getattr(found, name), getattr(FULL, name))
    assert open_array(there / "images.npy") is sent["images.npy"]  # nothing is copied


@pytest.mark.parametrize("width", [3, 5000])
def test_a_stacks_rows_are_those_of_the_concatenation(width):
    arrays = [np.random.default_rng(n).normal(size=(n, width)) for n in (3, 0, 2)]
    stack, rows = Stack(arrays), np.array([4, 0, 2, 3, 0])
    taken = stack.take(rows)
    assert_array_equal(taken, np.concatenate(arrays)[rows])
    taken[:] = 7  # a copy
    assert not (stack.take(rows) == 7).any()
