"""Recorded U's: initial, final, and by epoch if they are small."""

import numpy as np
import pytest
import torch
from torch import nn

from tensorprojection import TensorProjection
from tensorprojection.studies.observed import parse_observed
from tensorprojection.studies.training.observer import Observer


@pytest.fixture
def network():
    torch.manual_seed(0)
    return nn.Sequential(
        TensorProjection((16, 6, 140), (8, 3, 30)), TensorProjection((8, 3, 30), (8, 2, 4))
    )


def observe(network, epochs, observer):
    """Move W at random before each of the epochs; the U's of mode 2 of the first layer by epoch."""
    seen, content = [], b""
    for epoch in epochs:
        with torch.no_grad():
            for W in network.parameters():
                W += 0.05 * torch.randn_like(W)
        with observer.looking():
            network(torch.randn(2, *network[0].in_shape))
        content = observer.collect(epoch, None, None)
        seen.append(network[0].projections()[1].detach().to(torch.float16).numpy())
    return seen, content


def test_small_ones_by_epoch_and_large_ones_at_both_ends(network):
    start = network[0].projections()[1].detach().to(torch.float16).numpy()
    seen, content = observe(network, (1, 2, 3), Observer(network))
    found = parse_observed(content)
    assert found.epochs == [1, 2, 3]
    assert set(found.named("by_epoch")) == {"0/2", "1/2", "1/3"}
    everything = {"0/1", "0/2", "0/3", "1/2", "1/3"}  # 140 × 30 are too many
    assert set(found.named("U")) == set(found.named("start")) == everything
    np.testing.assert_array_equal(found.get("start/0/2"), start)
    np.testing.assert_array_equal(found.get("by_epoch/0/2"), seen)
    np.testing.assert_array_equal(found.get("U/0/2"), seen[-1])


def test_an_epoch_that_is_trained_again_is_there_once(network):
    """As by a process that was killed between an observation and its checkpoint."""
    (first, _), content = observe(network, (1, 2), Observer(network))
    again, content = observe(network, (2, 3), Observer(network, content))
    found = parse_observed(content)
    assert found.epochs == [1, 2, 3]
    np.testing.assert_array_equal(found.get("by_epoch/0/2"), [first, *again])


def test_a_flip_anywhere_gives_the_same_or_nothing(network):
    _, content = observe(network, (1, 2), Observer(network))
    whole = parse_observed(content)
    for place in range(0, len(content), 97):
        flipped = bytearray(content)
        flipped[place] ^= 1 << place % 8
        found = parse_observed(bytes(flipped))
        if found is not None and found.arrays.keys() == whole.arrays.keys():
            for name, array in whole.arrays.items():
                np.testing.assert_array_equal(found.arrays[name], array)
