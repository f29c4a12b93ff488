import numpy as np
import pytest

from tensorprojection.studies.data import ImageSet

N = 5


def parts(n=N):
    return {
        "labels": np.arange(n) % 2,
        "masks": np.tile(np.arange(n, dtype=np.uint8)[:, None, None] % 2, (1, 8, 6)),
        "class_names": ("NORMAL", "DRUSEN"),
        "groups": np.arange(n) * 10,
        "names": np.array([f"image {i}" for i in range(n)]),
    }


def images(*shape):
    return np.arange(np.prod(shape), dtype=np.int64).reshape(shape).astype(np.uint8)


def test_it_cannot_be_changed():
    with pytest.raises(AttributeError):
        ImageSet(images(N, 8, 6)).labels = np.zeros(N, np.int64)


def test_repr_counts_the_classes():
    text = repr(ImageSet(images(N, 8, 6), **parts()))
    assert text == "ImageSet(5 images of 8 × 6, labels: NORMAL 3, DRUSEN 2, masks, groups, names)"


@pytest.mark.parametrize(
    ("shape", "dtype"), [((8, 6), np.uint8), ((N, 8, 6, 4), np.uint8), ((N, 8, 6), np.float32)]
)
def test_wrong_images(shape, dtype):
    with pytest.raises(ValueError, match="Expected images of"):
        ImageSet(np.zeros(shape, dtype))


@pytest.mark.parametrize("name", ["labels", "masks", "groups", "names"])
def test_one_row_an_image(name):
    wrong = parts() | {name: parts(N + 1)[name]}
    with pytest.raises(ValueError, match=f"Expected {name} of type .* one row per image"):
        ImageSet(images(N, 8, 6), **wrong)


@pytest.mark.parametrize("name", ["labels", "masks", "groups", "names"])
def test_wrong_types(name):
    array = parts()[name]
    wrong = parts() | {name: np.zeros(array.shape, np.float32)}
    with pytest.raises(ValueError, match=f"Expected {name} of type"):
        ImageSet(images(N, 8, 6), **wrong)


def test_labels_need_a_name():
    with pytest.raises(ValueError, match="labels from 0 to 1, as there are 2 class names"):
        ImageSet(images(N, 8, 6), **parts() | {"labels": np.full(N, 2)})
