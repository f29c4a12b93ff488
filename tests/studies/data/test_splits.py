import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tensorprojection.studies.data import ImageSet
from tensorprojection.studies.data.splits import share_groups, split, subset
from tensorprojection.studies.errors import StudyError


def image_set(labels=None, groups=None, parts=None, n=None):
    n = len(labels) if n is None else n
    return ImageSet(
        np.zeros((n, 1, 1), np.uint8),
        labels=None if labels is None else np.asarray(labels, np.int64),
        class_names=() if labels is None else tuple(f"c{i}" for i in range(max(labels) + 1)),
        groups=None if groups is None else np.asarray(groups, np.int64),
        parts=None if parts is None else np.asarray(parts, np.str_),
    )


def test_the_papers_table():
    counts = [51390, 37455, 11598, 8866]
    labels = np.random.default_rng(0).permutation(np.repeat(range(4), counts))
    training, validation = split(image_set(labels), "image", [0, 1])
    assert np.bincount(labels[training]).tolist() == [35973, 26218, 8118, 6206]
    assert len(training) + len(validation) == 109_309


@pytest.mark.parametrize("how", ["image", "patient"])
def test_seeds(how):
    images = image_set(np.arange(60) % 3, groups=np.arange(60) // 2)
    first = split(images, how, [0, 1])
    again = split(images, how, [0, 1])
    np.testing.assert_array_equal(first[0], again[0])
    np.testing.assert_array_equal(first[1], again[1])
    others = [split(images, how, seed)[0].tolist() for seed in ([0, 2], [1, 1], 7)]
    assert first[0].tolist() not in others
    assert len({tuple(other) for other in others}) == 3


@given(st.lists(st.integers(0, 3), min_size=2, max_size=60), st.integers(0, 99), st.data())
def test_by_image(labels, seed, data):
    fraction = data.draw(st.floats(0.05, 0.95))
    if any(labels.count(label) == 1 for label in labels):
        with pytest.raises(StudyError, match=r"leaves no image of|for training and for validation"):
            split(image_set(labels), "image", seed, fraction)
        return
    training, validation = split(image_set(labels), "image", seed, fraction)
    assert sorted([*training, *validation]) == list(range(len(labels)))
    assert (np.diff(training) > 0).all()
    assert (np.diff(validation) > 0).all()
    assert set(labels) == set(np.asarray(labels)[training]) == set(np.asarray(labels)[validation])


@given(st.lists(st.integers(0, 15), min_size=2, max_size=80), st.integers(0, 99))
def test_by_patient_of_one_class_each(groups, seed):
    labels = np.asarray(groups) % 3  # so each group is of one class
    images = image_set(labels, groups)
    if any(len({g for g in groups if g % 3 == label}) < 2 for label in set(labels.tolist())):
        with pytest.raises(StudyError, match=r"leaves no image of|for training and for validation"):
            split(images, "patient", seed)
        return
    training, validation = split(images, "patient", seed)
    assert sorted([*training, *validation]) == list(range(len(groups)))
    inside, outside = set(images.groups[training]), set(images.groups[validation])
    assert not inside & outside
    assert set(labels) == set(labels[training]) == set(labels[validation])


def possible(table, trains):
    """Every class of two groups or more is in both sets."""
    present = table > 0
    several = present.sum(axis=0) > 1
    return bool((present[trains].any(axis=0) & present[~trains].any(axis=0))[several].all())


@given(
    st.integers(2, 7).flatmap(
        lambda n: st.lists(
            st.lists(st.integers(0, 3), min_size=4, max_size=4).filter(any), min_size=n, max_size=n
        )
    ),
    st.integers(0, 99),
)
def test_groups_of_several_classes(rows, seed):
    """Each class is in both sets if any of the 2ⁿ assignments does that.

    The search is at random. With so few groups and classes it finds an assignment that there is.
    """
    table = np.array(rows)
    trains = share_groups(table, 0.7, np.random.default_rng(seed))
    ways = (np.array(way) for way in itertools.product([False, True], repeat=len(table)))
    if any(possible(table, way) for way in ways):
        assert possible(table, trains)


def test_patients_who_cannot_be_shared_out():
    """Three classes of two patients each, in a ring: no assignment has all in both sets."""
    table = np.array([[1, 0, 1], [1, 1, 0], [0, 1, 1]])
    trains = share_groups(table, 0.7, np.random.default_rng(0))
    assert 0 < trains.sum() < 3


def test_a_hopeless_table_ends():
    """Many such rings: no assignment covers them."""
    ring = np.array([[1, 0, 1], [1, 1, 0], [0, 1, 1]])
    table = np.kron(np.eye(20, dtype=np.int64), ring)
    trains = share_groups(table, 0.7, np.random.default_rng(0))
    assert 0 < trains.mean() < 1


def test_by_patient_is_near_the_fraction():
    draw = np.random.default_rng(0)
    sizes = draw.integers(1, 30, 400)
    groups = np.repeat(np.arange(400), sizes)
    labels = np.where(draw.random(len(groups)) < 0.1, draw.integers(0, 4, len(groups)), groups % 4)
    for seed in range(3):
        training, _ = split(image_set(labels, groups), "patient", seed)
        assert len(training) / len(groups) == pytest.approx(0.7, abs=0.002)
        shares = np.bincount(labels[training]) / np.bincount(labels)
        np.testing.assert_allclose(shares, 0.7, atol=0.005)


def test_as_shipped():
    images = image_set([0, 1, 0, 1], parts=["val", "train", "train", "test"])
    training, validation = split(images, "as-shipped", 0)
    assert (training.tolist(), validation.tolist()) == ([1, 2], [0, 3])
    with pytest.raises(StudyError, match="got 2 and 0 of 2"):
        split(image_set([0, 1], parts=["train", "train"]), "as-shipped", 0)


def of_classes(*sizes):
    labels = np.repeat(np.arange(len(sizes)), sizes)
    names = tuple("abcd"[: len(sizes)])
    return ImageSet(np.zeros((sum(sizes), 8, 8), np.uint8), labels=labels, class_names=names)


@pytest.mark.parametrize("fraction", [0.01, 0.5, 0.7, 0.99])
def test_small_classes_are_in_both_sets(fraction):
    images = of_classes(2, 2, 3, 10)
    training, validation = split(images, "image", seed=0, fraction=fraction)
    expected = [1, 1, max(1, int(3 * fraction)), max(1, int(10 * fraction))]
    assert np.bincount(images.labels[training], minlength=4).tolist() == expected
    rest = [size - n for size, n in zip((2, 2, 3, 10), expected, strict=True)]
    assert np.bincount(images.labels[validation], minlength=4).tolist() == rest


@pytest.mark.parametrize("count", [None, 6, 7])
def test_a_subset_of_all_is_all_in_order(count):
    labels = np.array([0, 1, 0, 1, 0, 0])
    np.testing.assert_array_equal(subset(labels, 6, count, seed=0), np.arange(6))


def test_one_image_per_set_is_enough():
    images = ImageSet(np.zeros((2, 8, 8), np.uint8))
    training, validation = split(images, "image", seed=0, fraction=0.5)
    assert sorted([*training, *validation]) == [0, 1]


@pytest.mark.parametrize(
    ("how", "options", "message"),
    [
        ("patient", {}, r"each image's patient, .* \(`patients`\).*`patient_pattern`"),
        ("as-shipped", {}, "Expected images that come divided"),
    ],
)
def test_wrong_wishes(how, options, message):
    with pytest.raises(StudyError, match=message):
        split(image_set([0, 0, 1, 1]), how, 0, **options)


@given(st.lists(st.integers(0, 3), min_size=1, max_size=60), st.integers(1, 70))
def test_subset(labels, count):
    labels = np.array(labels)
    rows = subset(labels, len(labels), count, seed=0)
    assert len(set(rows)) == len(rows) == min(count, len(labels))
    share = len(rows) / len(labels)
    for label in set(labels):
        assert abs((labels[rows] == label).sum() - share * (labels == label).sum()) < 1


@pytest.mark.realdata
def test_real_patients(real_data):
    with np.load(real_data("oct_96.npz"), allow_pickle=False) as file:
        images = image_set(file["labels"], file["patient_ids"])
    training, validation = split(images, "patient", [0, 0])
    assert not set(images.groups[training]) & set(images.groups[validation])
    shares = np.bincount(images.labels[training]) / np.bincount(images.labels)
    np.testing.assert_allclose(shares, 0.7, atol=0.005)
