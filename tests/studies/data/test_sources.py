import json
import os
import shutil

import numpy as np
import pytest
from by_name import open_images

from tensorprojection.studies.data import sources
from tensorprojection.studies.data.cache import open_stored
from tensorprojection.studies.data.images import ImageKind
from tensorprojection.studies.errors import StudyError


def no_more(*args, **kwargs):
    raise AssertionError("was made a second time")


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("TENSORPROJECTION_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.mark.parametrize(
    ("study", "shape"), [("oct", (6, 32, 32)), ("chest", (6, 32, 32)), ("kvasir", (6, 32, 32, 3))]
)
@pytest.mark.parametrize("data", [None, "phantoms"])
def test_phantoms(study, shape, data, monkeypatch):
    opened = open_images(study, data, size=32, count=6, seed=3)
    assert opened.images.images.shape == shape
    assert isinstance(opened.images.images, np.memmap)
    assert (opened.images.masks is not None) == (study == "kvasir")
    assert opened.source.startswith(f"{study} phantoms, seed 3: 6 of 32 × 32")
    monkeypatch.setattr(sources, "store", no_more)
    assert open_images(study, data, size=32, count=6, seed=3).folder == opened.folder
    for other in ({"count": 7, "seed": 3}, {"count": 6, "seed": 4}):
        with pytest.raises(AssertionError, match="second time"):
            open_images(study, data, size=32, **other)


def test_oct_folder(oct_folder):
    opened = open_images("oct", oct_folder, size=20)
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


def test_whatever_changes_the_arrays_is_in_the_key(oct_folder, tmp_path, cache):
    """One cache for all: an entry of other settings must not come back."""
    npz = tmp_path / "a.npz"
    rgb = np.random.default_rng(0).integers(0, 256, (8, 32, 32, 3), dtype=np.uint8)
    np.savez(npz, images=rgb, labels=np.arange(8) % 2, class_names=np.array(["CNV", "DME"]))

    def opened(data, class_names, **options):
        kind = ImageKind("mine", class_names, **options)
        return sources.open_images(kind, data, size=16).images

    assert opened(npz, ("CNV", "DME")).images.shape == (8, 16, 16)
    assert opened(npz, ("CNV", "DME"), mode="RGB").images.shape == (8, 16, 16, 3)

    two = opened(oct_folder, ("CNV", "DME"))
    assert [str(name).split("/")[-2] for name in two.names] == ["CNV"] * 9 + ["DME"] * 9
    turned = opened(oct_folder, ("DME", "CNV"))
    assert [str(name).split("/")[-2] for name in turned.names] == ["DME"] * 9 + ["CNV"] * 9
    merged = opened(oct_folder, ("CNV", "DME"), class_aliases={"normal": "dme", "drusen": "dme"})
    assert np.bincount(merged.labels).tolist() == [9, 27]
    assert two.groups is None
    known = opened(oct_folder, ("CNV", "DME"), patient_pattern=r"[A-Z]+-(\d+)-")
    assert len(set(known.groups)) > 1
    other = opened(oct_folder, ("CNV", "DME"), patient_pattern=r"[A-Z]+-\d+-(\d)")
    assert set(other.groups) == set(range(6))


def test_chest_folder(chest_folder):
    images = open_images("chest", str(chest_folder), size=20).images
    assert "Normal 5, Lung Opacity 4, COVID 3, Viral Pneumonia 6, names" in repr(images)
    assert (images.groups, images.parts) == (None, None)


def test_kvasir_folder(kvasir_folder):
    images = open_images("kvasir", kvasir_folder, size=20).images
    assert images.images.shape == (5, 20, 20, 3)
    assert set(np.unique(images.masks)) == {0, 1}
    assert images.class_names == ("background", "polyp")
    assert images.labels is None


def test_a_second_run_decodes_nothing(oct_folder, monkeypatch):
    first = open_images("oct", oct_folder, size=20)
    monkeypatch.setattr(sources, "decode_into", no_more)
    assert open_images("oct", oct_folder, size=20).folder == first.folder
    for other in ({"size": 21}, {"size": 20, "skip_unreadable": True}, {"size": 20, "count": 9}):
        with pytest.raises(AssertionError, match="second time"):
            open_images("oct", oct_folder, **other)


def test_a_changed_file_makes_a_new_cache(oct_folder, picture):
    first = open_images("oct", oct_folder, size=20)
    path = oct_folder / first.images.names[5]
    picture(path, seed=999)
    os.utime(path, ns=(10**18, 10**18))
    second = open_images("oct", oct_folder, size=20)
    assert second.folder != first.folder
    different = (first.images.images != second.images.images).any(axis=(1, 2))
    assert np.flatnonzero(different).tolist() == [5]


def test_unreadable_files(oct_folder, cache):
    name = open_images("oct", oct_folder, size=20).images.names[5]
    (oct_folder / name).write_bytes(b"")
    with pytest.raises(StudyError, match=r"is empty.*`skip_unreadable`"):
        open_images("oct", oct_folder, size=20)
    for _ in range(2):  # made, and cached
        opened = open_images("oct", oct_folder, size=20, skip_unreadable=True)
        assert opened.unreadable == (name,)
        assert len(opened.images) == len(opened.images.labels) == 35
        assert name not in opened.images.names
        assert "1 unreadable files left out" in opened.source
    assert not list(cache.glob("*.part"))


def test_a_count_of_real_images(oct_folder):
    opened = open_images("oct", oct_folder, size=20, count=8, seed=1)
    assert np.bincount(opened.images.labels).tolist() == [2, 2, 2, 2]
    assert "drawn with seed 1: 8 of 20 × 20" in opened.source
    other = open_images("oct", oct_folder, size=20, count=8, seed=2)
    assert set(other.images.names) != set(opened.images.names)


def test_npz(tmp_path, monkeypatch):
    path = tmp_path / "a.npz"
    arrays = {
        "images": np.zeros((5, 8, 8), np.uint8),
        "labels": np.arange(5) % 4,
        "class_names": np.array(["NORMAL", "CNV", "DME", "DRUSEN"]),
    }
    np.savez(path, **arrays)
    opened = open_images("oct", path, size=8)
    assert isinstance(opened.images.images, np.memmap)
    assert len(opened.images) == 5
    monkeypatch.setattr(sources, "read_items", no_more)
    assert open_images("oct", path, size=8).folder == opened.folder
    os.utime(path, ns=(10**18, 10**18))  # the content is what counts, and not time or name
    renamed = path.rename(tmp_path / "b.npz")
    assert open_images("oct", renamed, size=8).folder == opened.folder


def test_another_file_of_the_same_size_and_time(tmp_path):
    """As after ``cp -p``: the old file's images must not be used for it."""
    path, names = tmp_path / "a.npz", np.array(["NORMAL", "CNV", "DME", "DRUSEN"])
    made = []
    for value in (7, 8):
        images = np.full((4, 8, 8), value, np.uint8)
        np.savez(path, images=images, labels=np.arange(4), class_names=names)
        os.utime(path, ns=(10**18, 10**18))
        made.append((path.stat().st_size, open_images("oct", path, size=8)))
    assert made[0][0] == made[1][0]
    assert [np.unique(opened.images.images).tolist() for _, opened in made] == [[7], [8]]


def test_another_image_of_the_same_size_and_time(oct_folder):
    first = open_images("oct", oct_folder, size=20)
    path = oct_folder / first.images.names[5]
    content, seen = bytearray(path.read_bytes()), path.stat()
    content[len(content) // 2] ^= 4
    path.write_bytes(content)
    os.utime(path, ns=(seen.st_atime_ns, seen.st_mtime_ns))
    assert open_images("oct", oct_folder, size=20).folder != first.folder


def test_a_folder_may_be_moved(oct_folder, monkeypatch, tmp_path):
    first = open_images("oct", oct_folder, size=20)
    monkeypatch.setattr(sources, "decode_into", no_more)
    moved = oct_folder.rename(tmp_path / "elsewhere")
    again = open_images("oct", moved, size=20)
    assert again.folder == first.folder
    assert str(moved) in again.source


def test_only_the_files_that_are_drawn_are_read(oct_folder, monkeypatch):
    first = open_images("oct", oct_folder, size=20, count=8)
    read = []
    usual = sources.open_regular
    monkeypatch.setattr(sources, "open_regular", lambda p: read.append(p) or usual(p))
    assert open_images("oct", oct_folder, size=20, count=8).folder == first.folder
    assert sorted(read) == sorted(str(oct_folder / name) for name in first.images.names)


def test_a_corrupted_cache_is_made_again(oct_folder, caplog):
    first = open_images("oct", oct_folder, size=20)
    before = np.array(first.images.images)
    with open(first.folder / "images.npy", "r+b") as file:
        file.seek(500)
        file.write(bytes(2000))
    caplog.clear()
    again = open_images("oct", oct_folder, size=20)
    np.testing.assert_array_equal(again.images.images, before)
    (said,) = caplog.messages
    assert f"{first.folder} is corrupted: it is computed again." in said
    open_images("oct", oct_folder, size=20)
    assert len(caplog.messages) == 1


def test_ignored_files_are_reported(oct_folder, chest_folder):
    (oct_folder / "OCT2017 " / "train" / "CNV" / "a.dcm").write_bytes(b"x")
    for _ in range(2):  # made, and cached
        source = open_images("oct", oct_folder, size=20).source
        assert "1 files ignored (1 .dcm)" in source
    source = open_images("chest", chest_folder, size=20).source
    assert "18 files ignored" in source


def test_classes_that_a_draw_or_corruption_leaves_out(oct_folder):
    with pytest.raises(StudyError, match="got none of"):
        open_images("oct", oct_folder, size=20, count=2)
    for path in oct_folder.glob("*/*/DME/*"):
        path.write_bytes(b"")
    with pytest.raises(StudyError, match="got none of DME"):
        open_images("oct", oct_folder, size=20, skip_unreadable=True)


def test_a_class_is_missing(oct_folder):
    for path in oct_folder.glob("*/*/DME"):
        shutil.rmtree(path)
    with pytest.raises(StudyError, match="got none of DME"):
        open_images("oct", oct_folder, size=20)


@pytest.mark.parametrize(
    ("study", "data", "options", "message"),
    [
        ("mnist", None, {}, "a study of oct, chest, kvasir, .* got 'mnist'"),
        ("oct", "nowhere", {}, "an .npz file at nowhere: No such file"),
        ("oct", __file__, {}, "which is neither"),
        ("oct", None, {"size": 31}, "at least 32 pixels, got 31"),
        (
            "oct",
            None,
            {"count": 10**12, "size": 32},
            "1,000,000,000,000 phantoms of 32 × 32 do not fit into memory",
        ),
        ("oct", "x" * 300, {}, "at x{300}: File name too long"),
        ("oct", "a\0b", {}, "at a.b: .*null"),
        ("oct", "a\udcff.npz", {}, r"a path in UTF-8, got 'a\\udcff.npz'. Rename"),
        ("oct", "/dev/zero", {}, "/dev/zero, which is neither"),
    ],
)
def test_wrong_wishes(study, data, options, message):
    with pytest.raises(StudyError, match=message):
        open_images(study, data, **{"size": 8} | options)


def test_the_cache_says_what_it_holds(oct_folder, cache):
    opened = open_images("oct", oct_folder, size=20)
    assert opened.folder.parent == cache
    key = json.loads((opened.folder / "entry.json").read_text())["key"]
    assert (key["kind"]["name"], key["kind"]["mode"], key["size"]) == ("oct", "L", 20)
