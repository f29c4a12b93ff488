"""The decomposition: wide modes take a shorter way, to the same U."""

import pytest
import torch

from tensorprojection.engine import eigensystem as spectrum
from tensorprojection.functional import polar


def of_condition(p, q, condition):
    left = torch.linalg.qr(torch.randn(p, q, dtype=torch.float64))[0]
    right = torch.linalg.qr(torch.randn(q, q, dtype=torch.float64))[0]
    sigma = torch.logspace(0, -torch.log10(torch.tensor(condition)).item(), q, dtype=torch.float64)
    return ((left * sigma) @ right.mT).float()


def by_svd(W, eps):
    left, sigma, right = torch.linalg.svd(W.double(), full_matrices=False)
    return (left * (sigma / (sigma.square() + eps**2).sqrt())) @ right


@pytest.mark.parametrize(
    ("condition", "short"), [(1.0, True), (7.0, True), (1e2, False), (1e4, False)]
)
def test_wide_modes(condition, short):
    W = of_condition(400, 260, condition)
    M = spectrum.gram(W.double()) + 1e-6 * torch.eye(260, dtype=torch.float64)
    assert spectrum.is_wide(M)
    assert (spectrum._refined(M) is not None) == short
    assert (polar(W, 1e-3).double() - by_svd(W, 1e-3)).abs().max() <= 2e-6


def test_gradient_of_wide_modes():
    W = of_condition(400, 260, 5.0)
    grad_U = torch.randn(400, 260)
    got = torch.autograd.grad(polar(W.requires_grad_(), 1e-3), W, grad_U)[0]
    exact = W.detach().double().requires_grad_()
    right = torch.autograd.grad(polar(exact, 1e-3), exact, grad_U.double())[0]
    assert (got - right).norm() <= 1e-5 * right.norm()


def test_a_large_residual_is_not_accepted(monkeypatch):
    M = spectrum.gram(of_condition(400, 260, 2.0).double())
    monkeypatch.setattr(spectrum, "_RESIDUAL_LIMIT", 0.0)
    assert spectrum._refined(M) is None


@pytest.mark.parametrize("q", [5, 256, 259])
def test_gram(q):
    A = torch.randn(300, q, dtype=torch.float64)
    assert torch.allclose(spectrum.gram(A), A.mT @ A, rtol=1e-12, atol=1e-12)
