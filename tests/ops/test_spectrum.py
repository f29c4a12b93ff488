"""torch's implementation of W to U: wide modes are decomposed in float32 and refined."""

import pytest
import torch

from tensorprojection.functional import polar
from tensorprojection.ops import spectrum


def of_condition(p, q, condition):
    left = torch.linalg.qr(torch.randn(p, q, dtype=torch.float64))[0]
    right = torch.linalg.qr(torch.randn(q, q, dtype=torch.float64))[0]
    sigma = torch.logspace(0, -torch.log10(torch.tensor(condition)).item(), q, dtype=torch.float64)
    return ((left * sigma) @ right.mT).float()


def by_svd(W, eps):
    left, sigma, right = torch.linalg.svd(W.double(), full_matrices=False)
    return (left * (sigma / (sigma.square() + eps**2).sqrt())) @ right


@pytest.fixture
def decompositions(monkeypatch):
    """The types of the matrices that eigh decomposes."""
    seen, eigh = [], torch.linalg.eigh
    monkeypatch.setattr(torch.linalg, "eigh", lambda M: seen.append(M.dtype) or eigh(M))
    return seen


@pytest.mark.parametrize(
    ("condition", "refined"), [(1.0, True), (7.0, True), (1e2, False), (1e4, False)]
)
def test_wide_modes(condition, refined, decompositions):
    W = of_condition(400, 260, condition)
    assert (polar(W, 1e-3).double() - by_svd(W, 1e-3)).abs().max() <= 2e-6
    assert (decompositions == [torch.float32]) == refined


@pytest.mark.parametrize("eps", [1e-3, 0.5])
@pytest.mark.parametrize("p", [260, 400, 600])
def test_gradient_of_wide_modes(p, eps, decompositions):
    W, grad_U = of_condition(p, 260, 5.0), torch.randn(p, 260)
    U = polar(W.requires_grad_(), eps)
    got = torch.autograd.grad(U, W, grad_U)[0]
    assert decompositions == [torch.float32]
    exact = W.detach().double().requires_grad_()
    U64 = polar(exact, eps)
    right = torch.autograd.grad(U64, exact, grad_U.double())[0]
    assert (U - U64).norm() <= 1e-6 * U64.norm()
    assert (got - right).norm() <= 5e-6 * right.norm()


@pytest.mark.parametrize("shape", [(260, 260), (2, 400, 260)])
def test_a_wide_U_is_as_orthonormal_as_float32_can_be(shape):
    W = of_condition(*shape[-2:], 3.0).expand(shape)
    U = polar(W, 1e-6, eps_mode="relative").double()
    error = torch.linalg.matrix_norm(U.mT @ U - torch.eye(260), 2)
    assert error.max() <= 2e-7


def test_a_large_residual_is_not_accepted(monkeypatch, decompositions):
    monkeypatch.setattr(spectrum, "_RESIDUAL_LIMIT", 0.0)
    W = of_condition(400, 260, 2.0)
    assert (polar(W, 1e-3).double() - by_svd(W, 1e-3)).abs().max() <= 2e-6
    assert decompositions == [torch.float32, torch.float64]


@pytest.mark.parametrize("q", [5, 256, 259])
def test_a_float64_W_of_any_width(q):
    W = torch.randn(300, q, dtype=torch.float64)
    torch.testing.assert_close(polar(W, 1e-3), by_svd(W, 1e-3), rtol=0, atol=1e-12)
