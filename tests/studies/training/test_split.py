"""The sides of a trial, and the share of the training side that is used."""

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
    whole, validation = trial_split(config(split=split), IMAGES, 3)
    part, same = trial_split(config(split=split, train_share=0.25), IMAGES, 3)
    np.testing.assert_array_equal(same, validation)
    assert set(part) <= set(whole)
    assert len(set(part)) == len(part) == round(0.25 * len(whole))
    shares = np.bincount(LABELS[part]) / np.bincount(LABELS[whole])
    np.testing.assert_allclose(shares, 0.25, atol=0.02)


def test_every_trial_draws_its_own_share():
    # Seen against one training side, so that another split does not pass for another draw.
    drawn = []
    for trial in range(2):
        whole, _ = trial_split(config(), IMAGES, trial)
        part, _ = trial_split(config(train_share=0.5), IMAGES, trial)
        drawn.append(tuple(np.searchsorted(whole, part)))
        again, _ = trial_split(config(train_share=0.5), IMAGES, trial)
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
    counts = None if name == "chest" else (700, 300)
    kept, validation = trial_split(asked, originals, 0, counts)
    training, validating = data.split(0)
    np.testing.assert_array_equal(validating, validation)
    copies = training[training >= len(originals)] - len(originals)
    assert len(copies)
    assert set(data.copies.of[copies]) <= set(kept)


@pytest.mark.parametrize("share", [0, -0.5, 1.5, float("nan")])
def test_a_share_is_more_than_nothing_and_no_more_than_all(share):
    with pytest.raises(StudyError, match="train_share"):
        config(train_share=share)
