"""What is kept of U beside the curves: at the start, at the end, and by epoch where it is small."""

import numpy as np
import pytest
import torch
from torch import nn

from tensorprojection import TensorProjection
from tensorprojection.studies.observed import read_observed
from tensorprojection.studies.trial.observer import Observer


@pytest.fixture
def network():
    torch.manual_seed(0)
    return nn.Sequential(
        TensorProjection((16, 6, 140), (8, 3, 30)), TensorProjection((8, 3, 30), (8, 2, 4))
    )


def observe(network, file, epochs, observer=None):
    """Move W at random before each of the epochs; the U's of mode 2 of the first layer by epoch."""
    observer = observer or Observer(network, file)
    seen = []
    for epoch in epochs:
        with torch.no_grad():
            for W in network.parameters():
                W += 0.05 * torch.randn_like(W)
        with observer.looking():
            network(torch.randn(2, *network[0].in_shape))
        observer.keep(epoch, None, None)
        seen.append(network[0].projections()[1].detach().to(torch.float16).numpy())
    return seen


def test_small_ones_by_epoch_and_large_ones_at_both_ends(network, tmp_path):
    file = tmp_path / "observed.npz"
    start = network[0].projections()[1].detach().to(torch.float16).numpy()
    seen = observe(network, file, (1, 2, 3))
    found = read_observed(file)
    assert found.epochs == [1, 2, 3]
    assert set(found.named("by_epoch")) == {"0/2", "1/2", "1/3"}
    everything = {"0/1", "0/2", "0/3", "1/2", "1/3"}  # 140 × 30 are too many
    assert set(found.named("U")) == set(found.named("start")) == everything
    np.testing.assert_array_equal(found.get("start/0/2"), start)
    np.testing.assert_array_equal(found.get("by_epoch/0/2"), seen)
    np.testing.assert_array_equal(found.get("U/0/2"), seen[-1])


def test_what_an_older_version_has_observed_stays(network, tmp_path):
    """It kept no U by epoch: those are not there, and all else is."""
    file = tmp_path / "observed.npz"
    observer = Observer(network, file)
    observe(network, file, (1, 2), observer)
    with np.load(file) as found:
        old = {name: found[name] for name in found if not name.startswith("by_epoch/")}
    np.savez(file, **old)
    [last] = observe(network, file, (3,), observer)
    found = read_observed(file)
    assert found.epochs == [1, 2, 3]
    np.testing.assert_array_equal(found.get("energy/0")[:2], old["energy/0"])
    assert np.isnan(found.get("by_epoch/0/2")[:2]).all()
    np.testing.assert_array_equal(found.get("by_epoch/0/2")[2], last)


def test_an_epoch_that_is_trained_again_is_kept_once(network, tmp_path):
    """As by a process that was killed between an observation and its checkpoint."""
    file = tmp_path / "observed.npz"
    observer = Observer(network, file)
    [first, _] = observe(network, file, (1, 2), observer)
    again = observe(network, file, (2, 3), observer)
    found = read_observed(file)
    assert found.epochs == [1, 2, 3]
    np.testing.assert_array_equal(found.get("by_epoch/0/2"), [first, *again])
