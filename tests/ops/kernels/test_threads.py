"""A result is the same to the bit for any number of threads, and run after run."""

import pytest
import torch

import tensorprojection as tp
from tensorprojection.ops.limits import ONE_THREAD

from .compiled import only_kernels, polar, polar_gradient, problem, run_gradients, run_map

COUNTS = [1, 2, 3, 3, 2]  # twice each: run after run

both_ways = pytest.mark.parametrize("transposed", [False, True], ids=["project", "back_project"])
shapes = pytest.mark.parametrize(
    "modes",
    [
        [32, (12, 6), (12, 6)],
        [(12, 6), (12, 6), 32],
        [(64, 20), (12, 6), (12, 6)],
        [(1030, 33), 25],
        [(300, 70)],
    ],
    ids=str,
)


pytestmark = pytest.mark.usefixtures("kernels")


@pytest.fixture
def assert_same_bits(with_threads):
    """The function, which returns tensors, returns the same ones each time."""

    def check(function):
        first, *others = (with_threads(n, function) for n in COUNTS)
        for other in others:
            for a, b in zip(first, other, strict=True):
                assert torch.equal(a, b)

    return check


@both_ways
@shapes
def test_maps(modes, transposed, assert_same_bits):
    x, _, Us = problem(modes, (60,), transposed=transposed)
    assert x.numel() > ONE_THREAD or transposed
    assert_same_bits(lambda: [run_map(x, Us, transposed=transposed)])


@both_ways
@shapes
def test_gradients(modes, transposed, assert_same_bits):
    x, grad, Us = problem(modes, (60,), transposed=transposed)

    def run():
        grad_x, grad_Us = run_gradients(x, grad, Us, transposed=transposed)
        return [grad_x, *(dU for dU in grad_Us if dU is not None)]

    assert_same_bits(run)


@both_ways
def test_gradients_by_chunks(transposed, assert_same_bits, chunks_of):
    modes = [(64, 20), (12, 6), (12, 6)]
    x, grad, Us = problem(modes, (11,), transposed=transposed)
    chunks_of(4 * 64 * 12 * 12)

    def run():
        grad_x, grad_Us = run_gradients(x, grad, Us, transposed=transposed)
        return [grad_x, *grad_Us]

    assert_same_bits(run)


# The last two are large enough for several threads; the very last asks for double precision.
@pytest.mark.parametrize("shape", [(12, 6), (32, 20), (64, 64), (130, 33), (1024, 64), (1024, 48)])
def test_U_and_its_derivative(shape, assert_same_bits):
    W, dL_dU = torch.randn(shape), torch.randn(shape)
    if shape == (1024, 48):
        W *= torch.logspace(0, -2, 48)

    def run():
        with only_kernels():
            U, G, V, s = polar(W)
            return [U, G, V, s, polar_gradient(W, dL_dU, G, V, s)]

    assert_same_bits(run)


@pytest.mark.parametrize("memory_format", [torch.contiguous_format, torch.channels_last])
@pytest.mark.parametrize(
    "sizes", [((32, 12, 12), (20, 6, 6)), ((1024, 5, 5), (64, 5, 5))], ids=["OCT-2", "chest"]
)
def test_a_layer_step(sizes, memory_format, assert_same_bits):
    layer = tp.TensorProjection(*sizes)
    x = torch.randn(30, *sizes[0]).to(memory_format=memory_format).requires_grad_()
    wanted = [x, *layer.parameters()]

    def run():
        z = layer(x)
        return [z, *torch.autograd.grad(z.square().sum(), wanted)]

    assert_same_bits(run)
