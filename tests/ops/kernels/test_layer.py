"""Layers with the compiled kernels give the results of torch's operations."""

from dataclasses import replace

import pytest
import torch
from implementations import implementation

import tensorprojection as tp
from tensorprojection.bench.cases import CASES, FORMATS

from .compiled import only_kernels

pytestmark = pytest.mark.usefixtures("kernels")

SIZES = ((32, 12, 12), (20, 6, 6))


def make(transposed=False):
    source, target = SIZES[::-1] if transposed else SIZES
    kind = tp.TransposeTensorProjection if transposed else tp.TensorProjection
    return kind(source, target), torch.randn(7, *source)


@pytest.mark.parametrize("memory_format", FORMATS)
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_kernels_and_torch_agree(case, memory_format, assert_same_gradients):
    layer, x = case.layer(), replace(case, batch=2).input(memory_format)
    grad = torch.randn(2, *case.target)

    def step():
        z = layer(x)
        return [z, *torch.autograd.grad(z, [x, *layer.parameters()], grad)]

    with only_kernels():
        compiled = step()
    with implementation("torch"):
        assert_same_gradients(step(), compiled)


@pytest.mark.parametrize("transposed", [False, True])
@pytest.mark.parametrize(
    ("want_x", "frozen"),
    [(True, (0,)), (True, (1, 2)), (True, (0, 1, 2)), (False, ()), (False, (0,)), (False, (1, 2))],
    ids=str,
)
def test_unwanted_gradients_change_no_other(want_x, frozen, transposed, assert_same_gradients):
    layer, x = make(transposed)
    every = [x.requires_grad_(), *layer.parameters()]
    expected = torch.autograd.grad(layer(x).square().sum(), every)
    x.requires_grad_(want_x)
    for k, W in enumerate(layer.parameters()):
        W.requires_grad_(k not in frozen)
    wanted = [k for k, t in enumerate(every) if t.requires_grad]
    found = torch.autograd.grad(layer(x).square().sum(), [every[k] for k in wanted])
    assert_same_gradients(found, [expected[k] for k in wanted])


def test_a_gradient_in_another_memory_format():
    layer, x = make()
    wanted = [x.requires_grad_(), *layer.parameters()]
    grad = torch.randn(7, 20, 6, 1).expand(7, 20, 6, 6)
    plain = torch.autograd.grad(layer(x), wanted, grad.contiguous())
    for other in (grad, grad.to(memory_format=torch.channels_last)):
        for a, b in zip(plain, torch.autograd.grad(layer(x), wanted, other), strict=True):
            assert torch.equal(a, b)


def test_a_W_that_the_kernels_refuse_is_left_to_torch(reference):
    layer, x = tp.TensorProjection((96, 12, 12), (64, 6, 6)), torch.randn(7, 96, 12, 12)
    with torch.no_grad():
        layer.W1.mul_(torch.logspace(6, -2, 64))  # too large, and too ill-conditioned
    right = reference(layer, x)
    assert (layer(x).double() - right).norm() <= 3e-6 * right.norm()
    with pytest.raises(AssertionError, match="torch's implementation ran"), only_kernels():
        layer(x)


@pytest.mark.parametrize("bad", [torch.nan, torch.inf])
def test_a_W_that_is_not_finite_gives_nan(bad):
    layer, x = make()
    with torch.no_grad():
        layer.W2[2, 3] = bad
    z = layer(x)
    z.sum().backward()
    assert z.isnan().all()
    assert layer.W2.grad.isnan().all()
