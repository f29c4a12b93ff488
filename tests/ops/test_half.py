"""Half types: gradients lose no more than the rounding of intermediate results."""

import copy

import pytest
import torch

from tensorprojection import TensorProjection

FORMATS = [torch.contiguous_format, torch.channels_last]


@pytest.mark.parametrize("memory_format", FORMATS, ids=str)
@pytest.mark.parametrize("autocast", [False, True], ids=["plain", "autocast"])
def test_gradient_that_is_a_small_rest(autocast, memory_format):
    """Of white noise and the loss ‖z‖², dL/dU is nearly U times a symmetric matrix, which has no
    part in dL/dW. What is left would be wrong by 5 to 10 % if dL/dU were rounded to bfloat16.
    """
    layer = TensorProjection((32, 12, 12), (20, 6, 6))
    layer = layer if autocast else layer.bfloat16()
    exact = copy.deepcopy(layer).double()
    x = torch.randn(200, *layer.in_shape).bfloat16().to(memory_format=memory_format)
    with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
        z = layer(x)
    z.backward(z.detach())
    exact(x.double()).backward(z.detach().double())
    for W, expected in zip(layer.Ws, exact.Ws, strict=True):
        error = (W.grad.double() - expected.grad).norm() / expected.grad.norm()
        assert error <= 2 * torch.finfo(torch.bfloat16).eps
