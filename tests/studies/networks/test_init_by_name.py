import pytest
import torch
from torch import nn

from tensorprojection import TensorProjection, TransposeTensorProjection
from tensorprojection.init import INITS
from tensorprojection.nn.hope import HOPE
from tensorprojection.studies.networks.layers import Contraction, init_by_name, keras_batch_norm


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
    assert init_by_name(lambda: layer) is layer
    assert 0.98 * limit < layer.weight.abs().max() <= limit
    assert layer.weight.std().item() == pytest.approx(limit / 3**0.5, rel=0.05)
    assert not layer.bias.any()


def test_a_layer_without_bias():
    assert init_by_name(lambda: nn.Conv2d(2, 3, 1, bias=False)).bias is None


def test_a_layer_whose_initialization_is_unknown():
    with pytest.raises(TypeError, match=r"initialization is known, got Embedding.* with weight"):
        init_by_name(lambda: nn.Embedding(3, 2))


def test_a_batch_norm_is_initialized_as_the_identity():
    norm = keras_batch_norm(4)
    nn.init.normal_(norm.weight)
    nn.init.normal_(norm.bias)
    init_by_name(lambda: norm)
    x = torch.randn(2, 4, 3, 3)
    torch.testing.assert_close(norm.eval()(x), x / (1 + 1e-3) ** 0.5)


def test_a_batch_norm_keeps_99_percent_of_its_running_mean():
    norm = keras_batch_norm(1)
    norm(torch.full((4, 1, 2, 2), 50.0))
    assert norm.running_mean.item() == pytest.approx(0.5)


def made(seed, layers):
    torch.manual_seed(seed)
    return init_by_name(lambda: nn.ModuleDict({name: make() for name, make in layers.items()}))


LAYERS = {
    "conv": lambda: nn.Conv2d(3, 8, 3),
    "up": lambda: nn.ConvTranspose2d(8, 8, 2),
    "dense": lambda: nn.Linear(9, 5),
    "norm": lambda: keras_batch_norm(8),
    "down": lambda: TensorProjection((8, 6, 6), (4, 3, 3), init=("normal", "dct", "orthogonal")),
    "back": lambda: TransposeTensorProjection((4, 3), (8, 6), init_scale=(1.0, 7.0)),
    "hope": lambda: HOPE((8, 6, 6), 8, patch=2),
    "free": lambda: Contraction((8, 6), (4, 3)),
}


@pytest.mark.parametrize("name", LAYERS)
def test_a_name_is_initialized_the_same_alone_first_and_last(name):
    rest = {other: LAYERS[other] for other in LAYERS if other != name}
    networks = [
        made(5, {name: LAYERS[name]}),
        made(5, {name: LAYERS[name], **rest}),
        made(5, {**rest, name: LAYERS[name]}),
    ]
    alone, *others = (network[name].state_dict() for network in networks)
    assert alone
    for other in others:
        assert alone.keys() == other.keys()
        assert all(torch.equal(alone[key], other[key]) for key in alone)


def test_other_names_and_other_seeds_differ():
    make = LAYERS["conv"]
    network, again = made(5, {"a": make, "b": make}), made(6, {"a": make})
    assert not torch.equal(network["a"].weight, network["b"].weight)
    assert not torch.equal(network["a"].weight, again["a"].weight)
    back = made(5, {"back": lambda: TransposeTensorProjection((4, 4), (8, 8))})["back"]
    assert not torch.equal(back.W1, back.W2)  # modes of one layer have their own


def test_modes_that_two_projections_share_are_initialized_alike():
    one = made(5, {"p": lambda: TensorProjection((8, 6, 6), (None, 3, 3))})["p"]
    two = made(5, {"p": lambda: TensorProjection((8, 6, 6), (4, 3, 3))})["p"]
    assert torch.equal(one.W2, two.W2)
    assert torch.equal(one.W3, two.W3)


def test_a_projection_is_initialized_with_its_init_and_scale():
    down, back = (made(5, {name: LAYERS[name]})[name] for name in ("down", "back"))
    assert torch.equal(down.W2, INITS["dct"](torch.empty(6, 3)))
    torch.testing.assert_close(down.W3.T @ down.W3, torch.eye(3))
    wide = made(5, {"p": lambda: TensorProjection((400,), (50,), init_scale=3)})["p"]
    assert wide.W1.std().item() == pytest.approx(0.15, rel=0.05)
    assert back.W2.std() > 3 * back.W1.std()


def test_what_is_drawn_after_a_network_does_not_depend_on_it():
    draws = []
    for layers in ({}, LAYERS):
        made(5, layers)
        draws.append(torch.rand(4))
    assert torch.equal(*draws)
    torch.manual_seed(5)
    first, second = (init_by_name(LAYERS["conv"]).weight for _ in range(2))
    assert not torch.equal(first, second)  # one number of the stream is spent
