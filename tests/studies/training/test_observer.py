"""What is observed of a network: its U's, and its predictions of one validation."""

import numpy as np
import pytest
import torch
from torch import nn

from tensorprojection import TensorProjection
from tensorprojection.studies.training.observer import (
    Observer,
    encode_observed,
    matrices,
    read_observed,
)


@pytest.fixture
def network():
    torch.manual_seed(0)
    return nn.Sequential(TensorProjection((16, 6, 14), (8, 3, 3)), nn.ReLU())


def test_every_U_in_half_precision(network, tmp_path):
    (tmp_path / "file").write_bytes(encode_observed(3, matrices(network, "start")))
    found = read_observed(tmp_path / "file")
    assert found.keys() == {"epoch", "start/0/1", "start/0/2", "start/0/3"}
    assert found["epoch"] == 3
    for k, U in enumerate(network[0].projections(), start=1):
        np.testing.assert_array_equal(found[f"start/0/{k}"], U.detach().to(torch.float16))


def test_the_confusion_matrix_counts_all_batches():
    observer = Observer()
    for predicted, true in (([0, 1, 1], [0, 1, 2]), ([2], [2])):
        observer.update(nn.functional.one_hot(torch.tensor(predicted), 3), torch.tensor(true))
    found = observer.arrays(None, None, ("a", "b", "c"))
    assert found["confusion_matrix"].tolist() == [[1, 0, 0], [0, 1, 0], [0, 1, 1]]


def test_a_flip_anywhere_gives_the_same_or_nothing(network, tmp_path):
    content, file = encode_observed(1, matrices(network, "U")), tmp_path / "file"
    file.write_bytes(content)
    whole = read_observed(file)
    for place in range(0, len(content), 97):
        flipped = bytearray(content)
        flipped[place] ^= 1 << place % 8
        file.write_bytes(flipped)
        found = read_observed(file)
        if found is not None and found.keys() == whole.keys():
            for name, array in whole.items():
                np.testing.assert_array_equal(found[name], array)
