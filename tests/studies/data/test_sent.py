"""Folders of the cache that came from another machine are opened as if they were on the disk."""

import numpy as np
import pytest

from tensorprojection.studies.data.images import ImageSet
from tensorprojection.studies.data.sent import content_of, is_received, receive
from tensorprojection.studies.data.stored import open_array, open_stored, store
from tensorprojection.studies.errors import StudyError


def test_a_folder_that_was_sent(tmp_path):
    rng = np.random.default_rng(0)
    images = ImageSet(
        rng.integers(0, 256, (4, 8, 8), dtype=np.uint8),
        labels=np.array([0, 1, 1, 0]),
        class_names=("a", "b"),
        names=np.array(["w", "x", "y", "z"]),
    )
    (tmp_path / "here").mkdir()
    store(images, tmp_path / "here")
    there = tmp_path / "there"  # which is not on this disk
    with pytest.raises(StudyError, match="Could not open"):
        open_stored(there)
    assert not is_received(there)
    sent = content_of(tmp_path / "here")
    assert all(type(content) in (np.ndarray, str) for content in sent.values())
    receive(there, sent)
    assert is_received(there)
    found = open_stored(there)
    assert found.class_names == images.class_names
    assert found.masks is None
    for name in ("images", "labels", "names"):
        assert np.array_equal(getattr(found, name), getattr(images, name))
    assert open_array(there / "images.npy") is sent["images.npy"]  # nothing is copied
