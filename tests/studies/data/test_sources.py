import json
import os
import shutil
import zipfile

import numpy as np
import pytest

from tensorprojection.studies.data import sources
from tensorprojection.studies.data.sources import open_images
from tensorprojection.studies.data.stored import open_stored
from tensorprojection.studies.errors import StudyError


def no_more(*args, **kwargs):
    raise AssertionError("was made a second time")


@pytest.fixture
def cache(tmp_path):
    return tmp_path / "cache"


@pytest.mark.parametrize(
    ("study", "shape"), [("oct", (6, 32, 32)), ("chest", (6, 32, 32)), ("kvasir", (6, 32, 32, 3))]
)
@pytest.mark.parametrize("data", [None, "phantoms"])
def test_phantoms(study, shape, data, cache, monkeypatch):
    opened = open_images(study, data, size=32, count=6, seed=3, cache=cache)
    assert opened.images.images.shape == shape
    assert isinstance(opened.images.images, np.memmap)
    assert (opened.images.masks is not None) == (study == "kvasir")
    assert opened.source.startswith(f"{study} phantoms, seed 3: 6 of 32 × 32")
    monkeypatch.setitem(sources.GENERATORS, study, no_more)
    again = open_images(study, data, size=32, count=6, seed=3, cache=cache)
    assert again.folder == opened.folder
    for other in ({"count": 7, "seed": 3}, {"count": 6, "seed": 4}):
        with pytest.raises(AssertionError, match="second time"):
            open_images(study, data, size=32, cache=cache, **other)


def test_oct_folder(oct_folder, cache):
    opened = open_images("oct", oct_folder, size=20, cache=cache)
    images = opened.images
    assert repr(images) == (
        "ImageSet(36 images of 20 × 20, labels: NORMAL 9, CNV 9, DME 9, DRUSEN 9, groups, names, "
        "parts)"
    )
    assert isinstance(images.images, np.memmap)
    assert sorted(set(images.parts)) == ["test", "train", "val"]
    assert len(set(images.groups)) == 12
    assert all(f"-{g}-" in name for g, name in zip(images.groups, images.names, strict=True))
    assert str(oct_folder) in opened.source
    assert opened.folder.name in opened.source
    np.testing.assert_array_equal(open_stored(opened.folder).images, images.images)


def test_chest_folder(chest_folder, cache):
    images = open_images("chest", str(chest_folder), size=20, cache=cache).images
    assert "Normal 5, Lung Opacity 4, COVID 3, Viral Pneumonia 6, names" in repr(images)
    assert (images.groups, images.parts) == (None, None)


def test_kvasir_folder(kvasir_folder, cache):
    images = open_images("kvasir", kvasir_folder, size=20, cache=cache).images
    assert images.images.shape == (5, 20, 20, 3)
    assert set(np.unique(images.masks)) == {0, 1}
    assert images.class_names == ("background", "polyp")
    assert images.labels is None


def test_a_second_start_decodes_nothing(oct_folder, cache, monkeypatch):
    first = open_images("oct", oct_folder, size=20, cache=cache)
    monkeypatch.setattr(sources, "decode_into", no_more)
    assert open_images("oct", oct_folder, size=20, cache=cache).folder == first.folder
    for other in ({"size": 21}, {"size": 20, "skip_unreadable": True}, {"size": 20, "count": 9}):
        with pytest.raises(AssertionError, match="second time"):
            open_images("oct", oct_folder, cache=cache, **other)


def test_a_changed_file_makes_a_new_cache(oct_folder, cache, picture):
    first = open_images("oct", oct_folder, size=20, cache=cache)
    path = oct_folder / first.images.names[5]
    picture(path, seed=999)
    os.utime(path, ns=(10**18, 10**18))
    second = open_images("oct", oct_folder, size=20, cache=cache)
    assert second.folder != first.folder
    different = (first.images.images != second.images.images).any(axis=(1, 2))
    assert np.flatnonzero(different).tolist() == [5]


def test_unreadable_files(oct_folder, cache):
    name = open_images("oct", oct_folder, size=20, cache=cache).images.names[5]
    (oct_folder / name).write_bytes(b"")
    with pytest.raises(StudyError, match=r"is empty.*--skip-unreadable"):
        open_images("oct", oct_folder, size=20, cache=cache)
    for _ in range(2):  # made, and kept
        opened = open_images("oct", oct_folder, size=20, cache=cache, skip_unreadable=True)
        assert opened.unreadable == (name,)
        assert len(opened.images) == len(opened.images.labels) == 35
        assert name not in opened.images.names
        assert "1 unreadable files left out" in opened.source
    assert not list(cache.glob("*.part"))


def test_a_count_of_real_images(oct_folder, cache):
    opened = open_images("oct", oct_folder, size=20, count=8, seed=1, cache=cache)
    assert np.bincount(opened.images.labels).tolist() == [2, 2, 2, 2]
    assert "drawn with seed 1: 8 of 20 × 20" in opened.source
    other = open_images("oct", oct_folder, size=20, count=8, seed=2, cache=cache)
    assert set(other.images.names) != set(opened.images.names)


def test_npz(tmp_path, cache, monkeypatch):
    path = tmp_path / "a.npz"
    arrays = {
        "images": np.zeros((5, 8, 8), np.uint8),
        "labels": np.arange(5) % 4,
        "class_names": np.array(["NORMAL", "CNV", "DME", "DRUSEN"]),
    }
    np.savez(path, **arrays)
    opened = open_images("oct", path, size=8, cache=cache)
    assert isinstance(opened.images.images, np.memmap)
    assert len(opened.images) == 5
    monkeypatch.setattr(sources, "store_npz", no_more)
    assert open_images("oct", path, size=8, cache=cache).folder == opened.folder
    os.utime(path, ns=(10**18, 10**18))
    with pytest.raises(AssertionError, match="second time"):
        open_images("oct", path, size=8, cache=cache)


def test_a_zip_is_unpacked_into_the_cache(kvasir_folder, cache, monkeypatch):
    folder = open_images("kvasir", kvasir_folder, size=20, cache=cache)
    archive = shutil.make_archive(str(kvasir_folder.parent / "archive"), "zip", kvasir_folder)
    zipped = open_images("kvasir", archive, size=20, cache=cache)
    np.testing.assert_array_equal(zipped.images.images, folder.images.images)
    assert archive in zipped.source
    monkeypatch.setattr(sources, "unpack", no_more)
    assert open_images("kvasir", archive, size=20, cache=cache).folder == zipped.folder


def test_a_harmful_zip_is_refused(tmp_path, cache):
    with zipfile.ZipFile(tmp_path / "a.zip", "w") as file:
        file.writestr("../evil.jpg", b"x")
    with pytest.raises(StudyError, match="would land outside"):
        open_images("kvasir", tmp_path / "a.zip", size=20, cache=cache)
    assert not list(tmp_path.rglob("evil.jpg"))


def test_a_class_is_missing(oct_folder, cache):
    for path in oct_folder.glob("*/*/DME"):
        shutil.rmtree(path)
    with pytest.raises(StudyError, match="got none of DME"):
        open_images("oct", oct_folder, size=20, cache=cache)


@pytest.mark.parametrize(
    ("study", "data", "options", "message"),
    [
        ("mnist", None, {}, "a study of oct, chest, kvasir, got 'mnist'"),
        ("oct", "nowhere", {}, "got nowhere, which does not exist"),
        ("oct", __file__, {}, "which is none of these"),
        ("oct", None, {"size": 31}, "at least 32 pixels, got 31"),
        ("oct", None, {"seed": -1}, "a seed of 0 or more, got -1"),
        ("oct", None, {"size": 0}, "at least 1 pixel, got 0"),
        ("oct", None, {"count": 0}, "at least 1 image, got 0"),
    ],
)
def test_wrong_wishes(study, data, options, message, cache):
    with pytest.raises(StudyError, match=message):
        open_images(study, data, **{"size": 8, "cache": cache} | options)


def test_the_cache_says_what_it_holds(oct_folder, monkeypatch, cache):
    monkeypatch.setenv("TENSORPROJECTION_CACHE", str(cache))
    opened = open_images("oct", oct_folder, size=20)
    assert opened.folder.parent == cache
    key = json.loads((opened.folder / "key.json").read_text())
    assert (key["folder"], key["size"], key["mode"]) == ("oct", 20, "L")
