import numpy as np
import pytest
import torch

from tensorprojection.studies.data.cache import cached, open_array, open_stored, store
from tensorprojection.studies.data.phantoms import chest_phantoms
from tensorprojection.studies.errors import StudyError
from tensorprojection.studies.networks import backbones as module
from tensorprojection.studies.networks.backbones import (
    backbone,
    features_folder,
    find_weights,
)

LITE = "efficientnet-lite0"


def features(*args, **settings):
    return open_array(features_folder(*args, **settings) / "features.npy")


N = 22
RUN = module.features_of


@pytest.fixture(autouse=True)
def small_blocks(monkeypatch, tmp_path):
    monkeypatch.setattr(module, "BATCH", 4)
    monkeypatch.setattr(module, "BLOCK", 8)
    monkeypatch.setenv("TENSORPROJECTION_CACHE", str(tmp_path))


@pytest.fixture(scope="module")
def phantoms():
    return chest_phantoms(N, size=64)


@pytest.fixture(scope="module")
def direct(phantoms):
    """Batch after batch, without the module."""
    network = backbone(LITE)
    x = torch.from_numpy(phantoms.images)[:, None] / 255
    with torch.no_grad():
        return torch.cat([network(part) for part in x.split(4)]).numpy()


def stored(images):
    key = {"sum": int(images.images.sum(dtype=np.int64))}
    folder = cached("images", key, lambda folder: store(images, folder))
    return open_stored(folder), folder


def test_the_same_as_computed_directly_and_only_once(phantoms, direct, tmp_path, monkeypatch):
    images, folder = stored(phantoms)
    steps = []
    got = features(images, folder, LITE, progress=lambda *s: steps.append(s))
    assert got.shape == (N, 1280, 2, 2)
    assert got.dtype == np.float32
    assert isinstance(got, np.memmap)
    np.testing.assert_array_equal(got, direct)
    assert steps == [(8, N), (16, N), (N, N)]
    assert not list(tmp_path.glob("*.work"))

    monkeypatch.setattr(module, "backbone", lambda *_: pytest.fail("computed again"))
    np.testing.assert_array_equal(features(images, folder, LITE), direct)


def test_workers_do_not_change_a_bit(phantoms, direct, tmp_path, monkeypatch):
    images, folder = stored(phantoms)
    one = features(images, folder, LITE)
    monkeypatch.setenv("TENSORPROJECTION_CACHE", str(tmp_path / "another"))
    two = features(images, folder, LITE, workers=2)
    np.testing.assert_array_equal(two, one)
    np.testing.assert_array_equal(two, direct)


def test_threads_do_not_change_a_bit(phantoms, direct):
    images, folder = stored(phantoms)
    try:
        torch.set_num_threads(2)
        got = features(images, folder, LITE)
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(1)
    np.testing.assert_array_equal(got, direct)


class StoppedError(Exception):
    pass


def stopping_at(block):
    def features_of(network, images, calls=[]):  # noqa: B006
        calls.append(len(images))
        if len(calls) == block + 1:
            raise StoppedError
        return RUN(network, images)

    return features_of


@pytest.mark.parametrize("block", [0, 2])
def test_a_stopped_computation_continues_from_its_last_block(phantoms, direct, monkeypatch, block):
    images, folder = stored(phantoms)
    monkeypatch.setattr(module, "features_of", stopping_at(block))
    with pytest.raises(StoppedError):
        features(images, folder, LITE)

    sizes, steps = [], []

    def counting(network, images):
        sizes.append(len(images))
        return RUN(network, images)

    monkeypatch.setattr(module, "features_of", counting)
    got = features(images, folder, LITE, progress=lambda *s: steps.append(s))
    np.testing.assert_array_equal(got, direct)
    assert sizes == [8, 8, 6][block:]
    assert steps == [(8, N), (16, N), (N, N)][block:]


def test_other_images_or_weights_have_another_key(phantoms, tmp_path):
    few = chest_phantoms(2, size=64)
    changed = chest_phantoms(2, seed=1, size=64)
    a = features(*stored(few), LITE)
    b = features(*stored(changed), LITE)
    assert (a != b).any()

    state = torch.load(find_weights(LITE), weights_only=True)
    state["_bn1.bias"] += 1
    torch.save(state, tmp_path / "mine.pth")
    c = features(*stored(few), LITE, tmp_path / "mine.pth")
    assert (a != c).any()
    assert len(list(tmp_path.glob("features-*/features.npy"))) == 3


def test_an_unknown_backbone(phantoms, tmp_path):
    with pytest.raises(StudyError, match="got 'vgg'"):
        features(phantoms, tmp_path, "vgg")
