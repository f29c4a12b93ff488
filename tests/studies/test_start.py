import pytest
import torch
from torch import nn

from tensorprojection import TensorProjection
from tensorprojection.studies.models.start import keras_batch_norm, keras_start


# Limits by hand: √(6 / (fan_in + fan_out)), Keras's fans of the kernel in Keras's own layout.
@pytest.mark.parametrize(
    ("layer", "keras_kernel"),
    [
        (nn.Conv2d(24, 40, 3), (3, 3, 24, 40)),
        (nn.Conv2d(24, 40, 3, groups=4), (3, 3, 6, 40)),
        (nn.ConvTranspose2d(40, 24, 2, stride=2), (2, 2, 24, 40)),
        (nn.Linear(300, 50), (300, 50)),
    ],
    ids=["conv", "grouped conv", "transposed conv", "dense"],
)
def test_weights_are_uniform_up_to_glorots_limit(layer, keras_kernel):
    *window, before, after = keras_kernel
    limit = (6 / (torch.Size(window).numel() * (before + after))) ** 0.5
    nn.init.ones_(layer.bias)
    assert keras_start(layer) is layer
    assert 0.98 * limit < layer.weight.abs().max() <= limit
    assert layer.weight.std().item() == pytest.approx(limit / 3**0.5, rel=0.05)
    assert not layer.bias.any()


def test_a_layer_without_bias():
    assert keras_start(nn.Conv2d(2, 3, 1, bias=False)).bias is None


def test_every_layer_inside_is_started_and_a_projection_is_left_alone():
    projection = TensorProjection((8, 6, 6), (8, 3, 3))
    network = nn.Sequential(nn.Conv2d(3, 8, 3), nn.Sequential(projection, nn.Linear(3, 2)))
    before = [W.clone() for W in projection.Ws[1:]]
    keras_start(network)
    assert not network[0].bias.any()
    assert not network[1][1].bias.any()
    for W, old in zip(projection.Ws[1:], before, strict=True):
        assert torch.equal(W, old)


def test_a_batch_norm_starts_as_the_identity():
    norm = keras_batch_norm(4)
    nn.init.normal_(norm.weight)
    nn.init.normal_(norm.bias)
    norm(torch.randn(5, 4, 3, 3) + 2)
    keras_start(norm)
    x = torch.randn(2, 4, 3, 3)
    torch.testing.assert_close(norm.eval()(x), x / (1 + 1e-3) ** 0.5)


def test_a_batch_norm_keeps_99_percent_of_its_running_mean():
    norm = keras_start(keras_batch_norm(1))
    norm(torch.full((4, 1, 2, 2), 50.0))
    assert norm.running_mean.item() == pytest.approx(0.5)


def test_one_seed_gives_one_start():
    starts = []
    for _ in range(2):
        torch.manual_seed(3)
        starts.append(keras_start(nn.Conv2d(3, 8, 3)).weight)
    assert torch.equal(*starts)
