"""Image sets on disk."""

import os
from pathlib import Path

import numpy as np
import pytest
from numpy.testing import assert_array_equal

from tensorprojection.studies.data.images import ImageSet
from tensorprojection.studies.data.stored import ARRAYS, open_stored, store
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


def test_a_selection_is_in_memory_and_may_be_changed(tmp_path):
    store(FULL, tmp_path)
    chosen = open_stored(tmp_path).select([3, 1])
    chosen.images[:] = 0
    assert_array_equal(open_stored(tmp_path).images, FULL.images)


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


def test_values_were_checked_when_they_were_stored(tmp_path):
    """Opening does not read the pixels: a mask that is wrong is not looked at, its shape is."""
    store(FULL, tmp_path)
    np.save(tmp_path / "masks.npy", np.full((5, 4, 6), 9, np.uint8))
    open_stored(tmp_path)
    np.save(tmp_path / "masks.npy", np.zeros((4, 4, 6), np.uint8))
    with pytest.raises(StudyError, match="Expected masks of shape"):
        open_stored(tmp_path)


def truncate(path):
    os.truncate(path, path.stat().st_size - 1)


@pytest.mark.parametrize("damage", [Path.unlink, truncate, lambda path: path.write_bytes(b"")])
@pytest.mark.parametrize("name", ["images.npy", "class_names.json"])
def test_damage_is_one_line_that_names_the_file_and_the_way_out(damage, name, tmp_path):
    store(FULL, tmp_path)
    damage(tmp_path / name)
    with pytest.raises(StudyError, match=r"Could not open .*Start the same command") as raised:
        open_stored(tmp_path)
    assert str(tmp_path) in str(raised.value)
    assert "\n" not in str(raised.value)
