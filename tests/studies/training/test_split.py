"""The sets of a trial, and the share of the training set that is used."""

import hashlib

import numpy as np
import pytest

from tensorprojection.studies.config import resolve
from tensorprojection.studies.data.images import ImageSet
from tensorprojection.studies.errors import StudyError
from tensorprojection.studies.registry import STUDIES
from tensorprojection.studies.training.seeds import trial_split

LABELS = np.repeat(np.arange(4), [100, 100, 60, 40])
IMAGES = ImageSet(
    np.zeros((300, 2, 2), np.uint8),
    labels=LABELS,
    class_names=("A", "B", "C", "D"),
    groups=np.arange(300) // 2,
)


def config(name="oct", **flags):
    known = STUDIES[name]
    return resolve(known, "smoke", None, flags)


@pytest.mark.parametrize("split", ["image", "patient"])
def test_a_share_of_the_training_side_and_all_of_the_other(split):
    whole, validation, _ = trial_split(config(split=split), IMAGES, 3)
    part, same, _ = trial_split(config(split=split, train_share=0.25), IMAGES, 3)
    np.testing.assert_array_equal(same, validation)
    assert set(part) <= set(whole)
    assert len(set(part)) == len(part) == round(0.25 * len(whole))
    shares = np.bincount(LABELS[part]) / np.bincount(LABELS[whole])
    np.testing.assert_allclose(shares, 0.25, atol=0.02)


def test_every_trial_draws_its_own_share():
    # Seen against one training side, so that another split does not pass for another draw.
    drawn = []
    for trial in range(2):
        whole, *_ = trial_split(config(), IMAGES, trial)
        part, *_ = trial_split(config(train_share=0.5), IMAGES, trial)
        drawn.append(tuple(np.searchsorted(whole, part)))
        again, *_ = trial_split(config(train_share=0.5), IMAGES, trial)
        np.testing.assert_array_equal(again, part)
    assert drawn[0] != drawn[1]


def test_the_whole_share_is_the_whole_side():
    np.testing.assert_array_equal(
        trial_split(config(train_share=1.0), IMAGES, 0)[0], trial_split(config(), IMAGES, 0)[0]
    )


@pytest.mark.parametrize("name", ["chest", "kvasir"])
def test_copies_of_images_that_are_left_out_do_not_train(name, monkeypatch, tmp_path):
    monkeypatch.setenv("TENSORPROJECTION_CACHE", str(tmp_path))
    study = STUDIES[name]
    asked = config(name, train_share=0.5)
    data = study.open(asked, study.prepare(asked, 1, lambda *_: None))
    originals = data.originals
    kept, validation, _ = trial_split(asked, originals, 0)
    training, validating, _ = data.split(0)
    np.testing.assert_array_equal(validating, validation)
    copies = training[training >= len(originals)] - len(originals)
    assert len(copies)
    assert set(data.of[copies]) <= set(kept)


@pytest.mark.parametrize("share", [0, -0.5, 1.5, float("nan")])
def test_a_share_is_more_than_nothing_and_no_more_than_all(share):
    with pytest.raises(StudyError, match="train_share"):
        config(train_share=share)


# The digests are of the splits as they were before there was a test set.
@pytest.mark.parametrize(
    ("how", "share", "digest"),
    [
        ("image", 1.0, "f5e28ac435200915"),
        ("image", 0.25, "13eab9c4cda869ca"),
        ("patient", 1.0, "2b2e9880e4cc9f81"),
        ("patient", 0.25, "e5d5062ed16864f1"),
    ],
)
def test_without_a_test_set_the_split_is_what_it_always_was(how, share, digest):
    training, validation, test = trial_split(config(split=how, train_share=share), IMAGES, 3)
    assert len(test) == 0
    rows = np.concatenate([training, validation]).tobytes()
    assert hashlib.sha256(rows).hexdigest()[:16] == digest


@pytest.mark.parametrize("how", ["image", "patient"])
def test_a_test_set_by_the_same_rule_of_every_class(how):
    seen = []
    for trial in range(3):
        asked = config(split=how, test_share=0.15)
        training, validation, test = trial_split(asked, IMAGES, trial)
        every = np.concatenate([training, validation, test])
        np.testing.assert_array_equal(np.sort(every), np.arange(300))
        np.testing.assert_allclose(np.bincount(LABELS[test]), [15, 15, 9, 6], atol=2)
        np.testing.assert_allclose(len(training) / len(validation), 7 / 3, atol=0.2)
        if how == "patient":
            groups = [set(IMAGES.groups[rows]) for rows in (training, validation, test)]
            assert sum(map(len, groups)) == len(set().union(*groups))
        less = trial_split(config(split=how, test_share=0.15, train_share=0.5), IMAGES, trial)
        np.testing.assert_array_equal(less.test, test)
        np.testing.assert_array_equal(less.validation, validation)
        seen.append(tuple(test))
    assert len(set(seen)) == 3


def test_a_fixed_split_is_one_for_all_trials_of_a_seed():
    for flags in ({}, {"test_share": 0.2, "train_share": 0.5}):
        splits = [trial_split(config(split="fixed", **flags), IMAGES, t) for t in (0, 1, 7)]
        for part in zip(*splits, strict=True):
            assert all(np.array_equal(rows, part[0]) for rows in part)
        other = trial_split(config(split="fixed", seed=1, **flags), IMAGES, 0)
        assert not np.array_equal(other.validation, splits[0].validation)
    drawn = trial_split(config(split="fixed"), IMAGES, 4)
    np.testing.assert_array_equal(np.bincount(LABELS[drawn.train]), [70, 70, 42, 28])


def test_test_shares_that_cannot_be():
    for share in (-0.1, 1, 2):
        with pytest.raises(StudyError, match="test_share"):
            config(test_share=share)
    with pytest.raises(StudyError, match="as-shipped split has no test_share"):
        trial_split(config(split="as-shipped", test_share=0.1), IMAGES, 0)
