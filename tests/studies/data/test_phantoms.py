from dataclasses import replace

import numpy as np
import pytest
from sklearn.linear_model import LogisticRegression
from sklearn.preprocessing import StandardScaler

from tensorprojection.studies.config import resolve
from tensorprojection.studies.data.phantoms import chest_phantoms, oct_phantoms, polyp_phantoms
from tensorprojection.studies.inputs import samples_of
from tensorprojection.studies.networks.layers import Repeated
from tensorprojection.studies.oct import OCT
from tensorprojection.studies.training.job import Epoch, Job
from tensorprojection.studies.training.train import train

KINDS = pytest.mark.parametrize(
    "kind", [oct_phantoms, chest_phantoms, polyp_phantoms], ids=["oct", "chest", "polyp"]
)


@KINDS
def test_an_image_depends_on_its_seed_and_index_only(kind):
    few, many = kind(5, seed=3, size=48), kind(37, seed=3, size=48)
    np.testing.assert_array_equal(few.images, many.images[:5])
    for name in ("labels", "masks"):
        if getattr(few, name) is not None:
            np.testing.assert_array_equal(getattr(few, name), getattr(many, name)[:5])
    other = kind(5, seed=4, size=48)
    assert all((a != b).mean() > 0.5 for a, b in zip(few.images, other.images, strict=True))


@KINDS
def test_images_differ(kind):
    made = kind(64, size=32).images.reshape(64, -1)
    assert len(np.unique(made, axis=0)) == 64


@KINDS
@pytest.mark.parametrize("n", [0, 1, 32])
def test_as_many_as_asked_for(kind, n):
    assert len(kind(n, size=32)) == n


@KINDS
@pytest.mark.parametrize(
    ("wrong", "rule"),
    [
        ({"n": -1}, "a number of images and a seed ≥ 0"),
        ({"n": 1, "seed": -1}, "a seed ≥ 0, got 1 and -1"),
        ({"n": 1, "size": 16}, "at least 32 pixels"),
    ],
)
def test_wrong_arguments(kind, wrong, rule):
    with pytest.raises(ValueError, match=rule):
        kind(**wrong)


@pytest.mark.parametrize(
    ("kind", "names", "size"),
    [
        (oct_phantoms, ("NORMAL", "CNV", "DME", "DRUSEN"), 96),
        (chest_phantoms, ("Normal", "Lung Opacity", "COVID", "Viral Pneumonia"), 160),
    ],
    ids=["oct", "chest"],
)
def test_four_classes_in_equal_numbers(kind, names, size):
    made = kind(40)
    assert made.images.shape == (40, size, size)
    assert made.class_names == names
    np.testing.assert_array_equal(np.bincount(made.labels), [10, 10, 10, 10])


@pytest.mark.parametrize("kind", [oct_phantoms, chest_phantoms], ids=["oct", "chest"])
def test_brightness_does_not_tell_the_class(kind):
    made = kind(512, size=64)
    means = made.images.mean((1, 2))
    by_class = [means[made.labels == k] for k in range(4)]
    spread = np.mean([m.std() for m in by_class])
    assert np.ptp([m.mean() for m in by_class]) < 0.6 * spread


def test_polyp_masks_are_never_empty_and_as_large_as_real_ones():
    made = polyp_phantoms(320, size=64)
    assert made.images.shape == (320, 64, 64, 3)
    assert set(np.unique(made.masks)) == {0, 1}
    area = made.masks.mean((1, 2))
    assert area.min() > 0
    assert 0.12 < area.mean() < 0.18
    assert np.quantile(area, 0.05) < 0.05
    assert np.quantile(area, 0.95) > 0.3


def test_polyp_masks_lie_on_the_outline_to_the_pixel():
    made = polyp_phantoms(64, size=128)
    step = np.abs(np.diff(made.images.astype(np.float32).mean(3), axis=2))
    edge = np.diff(made.masks, axis=2) != 0
    edge[:, :, :4] = edge[:, :, -4:] = False
    # The frame cuts outlines too, and is sharper than any of them.
    frame = made.images.max(3) < 12
    cut = np.lib.stride_tricks.sliding_window_view(np.pad(frame, ((0, 0), (0, 0), (6, 6))), 12, 2)
    edge &= ~cut.any(-1)[:, :, : edge.shape[2]]
    sharpness = {k: step[np.roll(edge, k, axis=2)].mean() for k in range(-3, 4)}
    assert max(sharpness, key=sharpness.__getitem__) == 0
    assert sharpness[0] > 1.3 * max(sharpness[-2], sharpness[2])


@pytest.mark.heavy
def test_oct_classes_are_learned_by_the_cnn_and_not_by_a_linear_model():
    images = oct_phantoms(1200, seed=1, size=64)
    config = resolve(OCT, "small", None, {"size": 64, "batch": 16})
    data, accuracy = replace(samples_of(config, images), preprocess=Repeated()), []

    def say(event):
        if isinstance(event, Epoch):
            accuracy.append(event.row["accuracy"])

    train(Job(0, "base"), OCT, config, data, say)
    assert len(accuracy) == 8
    assert max(accuracy[:4]) < 0.97
    assert accuracy[-1] > 0.65

    training, validation, _ = data.split(0)
    pixels = images.images.reshape(len(images), -1)
    scale = StandardScaler().fit(pixels[training])
    x, x_new = scale.transform(pixels[training]), scale.transform(pixels[validation])
    linear = [
        # The best C is chosen on the very images it is judged by: more than a fair chance.
        LogisticRegression(C=C, max_iter=1000)
        .fit(x, images.labels[training])
        .score(x_new, images.labels[validation])
        for C in (1e-5, 1e-4, 1e-3)
    ]
    assert max(linear) < max(accuracy) - 0.15
