"""Third derivatives of a layer with respect to W, by every mix of modes, against eigh's own."""

import pytest
import torch
from torch.func import functional_call, jacfwd, jacrev

import tensorprojection as tp

# A warning of torch itself when forward mode is used for the first time.
pytestmark = pytest.mark.filterwarnings("ignore:`torch.jit.script` is deprecated")

EPS = 0.3
MIXES = {
    "fff": (jacfwd, jacfwd, jacfwd),
    "ffr": (jacfwd, jacfwd, jacrev),
    "frf": (jacfwd, jacrev, jacfwd),
    "rff": (jacrev, jacfwd, jacfwd),
    "rrr": (jacrev, jacrev, jacrev),
}


@pytest.fixture
def problem():
    """A loss of W through a layer, the same written with eigh, and a W without repeated values."""
    layer = tp.TensorProjection((4, 3), (2, None), eps=EPS, dtype=torch.float64)
    x = torch.randn(2, 4, 3, dtype=torch.float64)
    W = torch.tensor([[1.0, 0.2], [0.1, 0.5], [-0.3, 0.4], [0.2, -0.6]], dtype=torch.float64)

    def loss(W):
        return functional_call(layer, {"W1": W}, (x,)).sin().sum()

    def oracle(W):
        M = W.mT @ W + EPS**2 * torch.eye(2, dtype=torch.float64)
        squares, V = torch.linalg.eigh(M)
        U = W @ (V / squares.sqrt()) @ V.mT
        return torch.einsum("nab,ai->nib", x, U).sin().sum()

    return loss, oracle, W


def third(function, mix):
    for jacobian in reversed(mix):
        function = jacobian(function)
    return function


@pytest.mark.parametrize("mix", MIXES)
def test_third_derivatives(mix, problem):
    loss, oracle, W = problem
    expected = third(oracle, MIXES["rrr"])(W)
    torch.testing.assert_close(third(loss, MIXES[mix])(W), expected, rtol=0, atol=1e-8)


@pytest.mark.heavy  # a graph of thousands of operations
def test_reverse_mode_three_times_inside_of_the_compiler(problem):
    loss, oracle, W = problem
    torch.compiler.reset()
    found = torch.compile(third(loss, MIXES["rrr"]), backend="aot_eager", fullgraph=True)(W)
    torch.testing.assert_close(found, third(oracle, MIXES["rrr"])(W), rtol=0, atol=1e-8)


def test_by_autograd(problem):
    loss, oracle, W = problem
    v = torch.randn(3, 4, 2, dtype=torch.float64)

    def derivative(function):
        A = W.clone().requires_grad_()
        value = function(A)
        for k in range(3):
            (grad,) = torch.autograd.grad(value, A, create_graph=True)
            value = (grad * v[k]).sum()
        return value.detach()

    torch.testing.assert_close(derivative(loss), derivative(oracle), rtol=1e-9, atol=0)
