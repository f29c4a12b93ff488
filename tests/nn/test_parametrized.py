"""W need not be a parameter: parametrizations, pruning, norms by hooks, replicas, assignments."""

import copy

import pytest
import torch
from torch import nn
from torch.func import functional_call
from torch.nn.utils import parametrizations, parametrize, prune, spectral_norm, weight_norm
from torch.testing import assert_close

from tensorprojection import ProjectionValueError, TensorProjection, TransposeTensorProjection

# torch's own word on the older of the two ways.
pytestmark = pytest.mark.filterwarnings("ignore:.*weight_norm.* is deprecated:FutureWarning")


class Double(nn.Module):
    def forward(self, W):
        return 2 * W


WAYS = {
    "parametrize": lambda layer: parametrize.register_parametrization(layer, "W1", Double()),
    "weight_norm, parametrized": lambda layer: parametrizations.weight_norm(layer, "W1"),
    "weight_norm, by a hook": lambda layer: weight_norm(layer, "W1"),
    "spectral_norm, parametrized": lambda layer: parametrizations.spectral_norm(layer, "W1"),
    "spectral_norm, by a hook": lambda layer: spectral_norm(layer, "W1"),
    "prune": lambda layer: prune.l1_unstructured(layer, "W1", amount=0.3),
}


@pytest.fixture(params=["projection", "transposed"])
def layer(request):
    if request.param == "projection":
        return TensorProjection((8, 6, 5), (4, 6, 2))
    return TransposeTensorProjection((4, 6, 2), (8, 6, 5))


@pytest.mark.parametrize("way", WAYS.values(), ids=WAYS)
def test_the_W_in_use_is_the_one_that_the_attribute_gives(layer, way, reference):
    way(layer)
    x = torch.randn(3, *layer.in_shape)
    layer(x).square().sum().backward()
    for name, W in layer.named_parameters():
        if W.requires_grad:
            assert W.grad is not None, name
            assert W.grad.norm() > 0, name
    layer.eval()
    with torch.no_grad():
        z = layer(x)
    assert_close(z.double(), reference(layer, x), rtol=1e-5, atol=1e-6)
    assert_close(layer.freeze()(x), z)
    assert layer.orthogonality_error() < 1e-2


def test_a_change_of_what_W_is_made_of_is_seen_in_eval_mode(layer, reference):
    parametrize.register_parametrization(layer, "W1", Double())
    x = torch.randn(3, *layer.in_shape)
    layer.eval()
    with torch.no_grad():
        before = layer(x)
        layer.parametrizations.W1.original.copy_(torch.randn(8, 4))
        after = layer(x)
    assert not torch.allclose(before, after)
    assert_close(after.double(), reference(layer, x), rtol=1e-5, atol=1e-6)


def test_a_replica_whose_parameters_are_plain_attributes(layer):
    """What DataParallel makes on every device."""
    x = torch.randn(3, *layer.in_shape)
    replica = copy.copy(layer)
    replica._parameters = {}
    for name, W in layer.named_parameters():
        object.__setattr__(replica, name, W * 1)
    object.__setattr__(replica, "W2", None)
    z = replica(x)
    assert_close(z, layer(x))
    z.sum().backward()
    assert layer.W1.grad.norm() > 0


@pytest.mark.parametrize("training", [True, False])
def test_a_W_of_another_shape_is_refused(layer, training):
    layer.train(training)
    x = torch.randn(3, *layer.in_shape)
    layer.W1 = nn.Parameter(torch.randn(8, 3))
    with pytest.raises(ProjectionValueError, match=r"W1 of shape \(8, 4\).*got \(8, 3\)"):
        layer(x)
    with pytest.raises(ProjectionValueError, match=r"W2 of shape None.*got \(6, 2\)"):
        functional_call(layer, {"W1": torch.randn(8, 4), "W2": torch.randn(6, 2)}, (x,))
