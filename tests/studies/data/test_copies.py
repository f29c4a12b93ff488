import numpy as np
import pytest

from tensorprojection.studies.chest import CHANGES as CHEST
from tensorprojection.studies.chest import COPIES as CHEST_COPIES
from tensorprojection.studies.data import ImageSet
from tensorprojection.studies.data import augment as module
from tensorprojection.studies.data.augment import augment, draw, make_copies
from tensorprojection.studies.data.cache import cached, open_stored, store
from tensorprojection.studies.data.phantoms import chest_phantoms, polyp_phantoms
from tensorprojection.studies.errors import StudyError
from tensorprojection.studies.kvasir import CHANGES as KVASIR


@pytest.fixture(scope="module")
def scenes():
    return polyp_phantoms(5, size=32)


@pytest.fixture
def originals(scenes, tmp_path, monkeypatch):
    monkeypatch.setenv("TENSORPROJECTION_CACHE", str(tmp_path))
    return stored(scenes)


def stored(images):
    key = {"classes": images.class_names}
    return cached("images", key, lambda folder: store(images, folder))


def opened(*args, **settings):
    """The copies, and the original of each."""
    folder = make_copies(*args, **settings)
    return open_stored(folder), np.load(folder / "of.npy")


def test_every_copy_is_its_originals(scenes, originals):
    steps = []
    made, of = opened(originals, 7, KVASIR, 3, progress=lambda *step: steps.append(step))
    np.testing.assert_array_equal(of, np.repeat(np.arange(5), 7))
    for row in (0, 6, 20, 34):
        image, mask = augment(
            scenes.images[row // 7][None],
            scenes.masks[row // 7][None],
            [draw(KVASIR, 3, row // 7, row % 7)],
        )
        np.testing.assert_array_equal(made.images[row], image[0])
        np.testing.assert_array_equal(made.masks[row], mask[0])
    assert isinstance(made.images, np.memmap)
    assert made.class_names == scenes.class_names
    assert len(made) == 35
    assert steps == [(16, 35), (32, 35), (35, 35)]


def test_fewer_copies_are_the_first_ones(originals):
    many, _ = opened(originals, 3, KVASIR, 0)
    few, _ = opened(originals, 2, KVASIR, 0)
    kept = np.arange(15) % 3 < 2
    np.testing.assert_array_equal(few.images, many.images[kept])


def test_copies_are_made_once(originals, monkeypatch):
    first = make_copies(originals, 2, KVASIR, 0)
    monkeypatch.setattr(module, "augment", lambda *_: pytest.fail("made again"))
    assert make_copies(originals, 2, KVASIR, 0) == first


@pytest.mark.parametrize("other", [{"seed": 1}, {"augmentation": CHEST}, {"copies": 1}])
def test_another_key_makes_others(originals, other):
    usual = {"copies": 2, "augmentation": KVASIR, "seed": 0}
    first = make_copies(originals, **usual)
    assert make_copies(originals, **(usual | other)) != first
    moved = originals.rename(originals.with_name("images-of-others"))
    assert make_copies(moved, **usual) != first


def test_classes_get_the_numbers_of_the_paper(originals):
    phantoms = chest_phantoms(8, size=32)
    named = ImageSet(
        phantoms.images,
        labels=phantoms.labels,
        class_names=phantoms.class_names,
        groups=np.arange(8) * 10,
        names=np.array([f"image {i}" for i in range(8)]),
    )
    made, of = opened(stored(named), CHEST_COPIES, CHEST, 0)
    np.testing.assert_array_equal(np.bincount(made.labels, minlength=4), [0, 2, 4, 14])
    np.testing.assert_array_equal(made.labels, named.labels[of])
    np.testing.assert_array_equal(made.groups, of * 10)
    assert list(made.names) == [f"image {i}" for i in of]
    assert made.masks is None


def test_no_copies_at_all(originals):
    made, _ = opened(originals, 0, KVASIR, 0)
    assert len(made) == 0
    assert made.images.shape == (0, 32, 32, 3)


def test_a_wrong_number(originals):
    with pytest.raises(StudyError, match=r"0 or more copies of each image, got \[-1\]"):
        make_copies(originals, -1, KVASIR, 0)
    phantoms = chest_phantoms(4, size=32)
    with pytest.raises(StudyError, match=r"each of the classes Normal, Lung .* got COVID\."):
        make_copies(stored(phantoms), {"COVID": 1}, CHEST, 0)


def test_far_too_many(originals, tmp_path):
    """The disk refuses before memory is asked for."""
    with pytest.raises(StudyError, match=r"Could not make the cache .*tpl cache --clear"):
        make_copies(originals, 10**9, KVASIR, 0)
    assert sorted(path.name for path in tmp_path.iterdir() if path.is_dir()) == [originals.name]
