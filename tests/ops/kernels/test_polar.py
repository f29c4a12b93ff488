"""U of a small W and its derivative by polar.c, against the singular values in float64."""

import mpmath
import numpy as np
import oracle
import pytest
import torch
from threadpoolctl import threadpool_limits

from tensorprojection.functional import polar
from tensorprojection.ops.limits import GRAM_LIMIT, MOST_COLUMNS, ROTATIONS_LIMIT

from .compiled import only_kernels, polar_gradient
from .compiled import polar as run_polar

pytestmark = pytest.mark.usefixtures("kernels")

MODES = ["absolute", "relative"]
EPS = {"absolute": 1e-3, "relative": 1e-5}
CONDITIONS = [1, 1e3, 1e6]
SCALES = [1e-3, 1, 1e3]
# The first by rotations, which up to 4096 entries also help out where W is ill-conditioned.
SIZES = [(1, 1), (2, 1), (5, 5), (12, 6), (9, 9), (32, 20), (64, 64), (130, 33), (1024, 64)]

both_modes = pytest.mark.parametrize("eps_mode", MODES)
all_sizes = pytest.mark.parametrize(("p", "q"), SIZES, ids=[f"{p}x{q}" for p, q in SIZES])


@pytest.fixture(autouse=True, scope="module")
def one_thread():
    """Small matrices by the hundred: the oracle's threads would mostly wait for one another."""
    with threadpool_limits(1):
        yield


def with_singular_values(p, sigma):
    return torch.from_numpy(oracle.with_singular_values(p, sigma)).float()


def with_condition(p, q, condition, scale=1.0):
    return with_singular_values(p, scale * np.logspace(0, -np.log10(condition), q))


def found_by(W, eps_mode, eps=None):
    eps, relative = eps or EPS[eps_mode], eps_mode == "relative"
    if may_be_left_to_torch(W, eps_mode):
        return run_polar(W, eps, relative)
    with only_kernels():
        return run_polar(W, eps, relative)


def may_be_left_to_torch(W, eps_mode):
    """W is large, and the ratio of M's eigenvalues beyond what WᵀW can tell."""
    A = W.double().numpy()
    sigma = np.linalg.svd(A, compute_uv=False)
    squares = sigma**2 + oracle.shift(A, EPS[eps_mode], eps_mode)
    return W.numel() > ROTATIONS_LIMIT and squares.max() > 0.9 * GRAM_LIMIT * squares.min()


def assert_U(U, W, eps_mode, eps=None):
    right = oracle.polar_by_svd(W.double().numpy(), eps or EPS[eps_mode], eps_mode)
    assert U.dtype == torch.float32
    np.testing.assert_allclose(U.double().numpy(), right, rtol=0, atol=2e-6)


def assert_gradient(W, spectrum, eps_mode, eps=None):
    """To float32's precision of dL/dW, or where its two parts cancel, as for 1 × 1, of these."""
    eps = eps or EPS[eps_mode]
    dL_dU = torch.from_numpy(np.random.default_rng(2).standard_normal(W.shape)).float()
    with only_kernels():
        dL_dW = polar_gradient(W, dL_dU, *spectrum, eps, eps_mode == "relative")
    assert dL_dW.dtype == torch.float32
    dL_dU = dL_dU.double().numpy()
    right = oracle.polar_gradient(W.double().numpy(), eps, dL_dU, eps_mode)
    part = dL_dU @ spectrum[0].numpy()
    error = np.linalg.norm(dL_dW.double().numpy() - right)
    assert error <= 3e-6 * np.linalg.norm(right) + 1e-7 * np.linalg.norm(part)


def assert_spectrum(G, V, s, W, eps_mode, eps=None):
    """V orthogonal, s ascending, V diag(s²) Vᵀ = M and G = M^(-1/2)."""
    A, (G, V, s) = W.double().numpy(), (t.numpy() for t in (G, V, s))
    q = len(s)
    M = A.T @ A + oracle.shift(A, eps or EPS[eps_mode], eps_mode) * np.eye(q)
    np.testing.assert_allclose(V.T @ V, np.eye(q), atol=1e-12)
    assert (np.diff(s) >= 0).all()
    np.testing.assert_allclose(V * s**2 @ V.T, M, rtol=0, atol=1e-12 * M.max())
    np.testing.assert_allclose(V / s @ V.T, G, rtol=0, atol=1e-12 * np.abs(G).max())


def assert_right(found, W, eps_mode, eps=None):
    U, *spectrum = found
    assert_U(U, W, eps_mode, eps)
    assert_spectrum(*spectrum, W, eps_mode, eps)
    assert_gradient(W, spectrum, eps_mode, eps)


@both_modes
@pytest.mark.parametrize("scale", SCALES)
@all_sizes
def test_U_its_spectrum_and_its_derivative(p, q, scale, eps_mode):
    for condition in CONDITIONS:
        W = with_condition(p, q, condition, scale)
        assert_right(found_by(W, eps_mode), W, eps_mode)


@both_modes
@pytest.mark.parametrize("shape", [(600, 8), (1024, 6), (5000, 1), (2000, 3)], ids=str)
def test_tall_and_narrow(shape, eps_mode):
    W = with_condition(*shape, 10)
    assert_right(found_by(W, eps_mode), W, eps_mode)


@pytest.mark.parametrize("condition", CONDITIONS)
@pytest.mark.parametrize("shape", [(7, 4), (12, 10)], ids=str)
def test_to_many_digits(shape, condition):
    """The formula itself, M^(-1/2) of M = WᵀW + ε²I, with 60 digits."""
    W = with_condition(*shape, condition)
    with mpmath.workdps(60):
        A = mpmath.matrix(W.double().tolist())
        squares, V = mpmath.eigsy(A.T * A + mpmath.mpf(1e-3) ** 2 * mpmath.eye(shape[1]))
        G = V * mpmath.diag([1 / mpmath.sqrt(x) for x in squares]) * V.T
        U = np.array((A * G).tolist(), dtype=np.float64)
    np.testing.assert_allclose(found_by(W, "absolute")[0].numpy(), U, rtol=0, atol=1e-7)


REPEATED = {
    "identity": torch.eye(6),
    "identity and zeros": torch.eye(20, 12),
    "orthonormal": with_singular_values(30, np.ones(15)),
    "some alike": with_singular_values(40, np.repeat([3.0, 2.0, 1.0], 6)),
    "a multiple of the identity": 0.05 * torch.eye(64),
    "two alike": with_singular_values(4, [2.0, 1.0, 1.0]),
}


@both_modes
@pytest.mark.parametrize("W", REPEATED.values(), ids=REPEATED)
def test_repeated_singular_values(W, eps_mode):
    assert_right(found_by(W, eps_mode), W, eps_mode)


def zero_column(p, q):
    W = with_condition(p, q, 10)
    W[:, q // 2] = 0
    return W


def rank_one(p, q):
    return torch.outer(torch.arange(1.0, p + 1), torch.ones(q)) / p


@both_modes
@pytest.mark.parametrize("shape", [(6, 3), (12, 8), (12, 9), (60, 40)], ids=str)
@pytest.mark.parametrize("kind", [zero_column, rank_one])
def test_without_full_rank(kind, shape, eps_mode):
    W = kind(*shape)
    assert_right(found_by(W, eps_mode), W, eps_mode)


shapes_of_both_ways = pytest.mark.parametrize("shape", [(1, 1), (4, 2), (20, 12), (1024, 64)])


@shapes_of_both_ways
def test_all_zeros(shape):
    W, dL_dU = torch.zeros(shape), torch.randn(shape)
    U, *spectrum = found_by(W, "absolute", 0.5)
    assert torch.equal(U, W)
    dL_dW = polar_gradient(W, dL_dU, *spectrum, 0.5, False)
    torch.testing.assert_close(dL_dW, 2 * dL_dU)
    assert run_polar(W, 1e-5, True)[0].isnan().all()


@both_modes
@pytest.mark.parametrize("bad", [torch.nan, torch.inf, -torch.inf])
@shapes_of_both_ways
def test_not_finite(shape, bad, eps_mode):
    W = torch.randn(shape)
    W[-1, 0] = bad
    assert run_polar(W, EPS[eps_mode], eps_mode == "relative")[0].isnan().all()


@both_modes
@pytest.mark.parametrize("scale", [1e-30, 1e30])
@pytest.mark.parametrize("shape", [(1, 1), (12, 6), (32, 20), (1024, 64)], ids=str)
def test_tiny_and_huge(shape, scale, eps_mode):
    W = with_condition(*shape, 10, scale)
    U, *_ = found_by(W, eps_mode)
    assert_U(U, W, eps_mode)


@both_modes
@pytest.mark.parametrize("scale", [1e-12, 1e12])
@pytest.mark.parametrize("shape", [(12, 6), (32, 20), (1024, 64)], ids=str)
def test_the_derivative_at_a_small_and_a_large_scale(shape, scale, eps_mode):
    W = with_condition(*shape, 5, scale)
    _, *spectrum = found_by(W, eps_mode)
    assert_gradient(W, spectrum, eps_mode)


@both_modes
@pytest.mark.parametrize("eps", [1e-8, 1e-2, 1.0, 50.0])
@pytest.mark.parametrize("shape", [(12, 6), (32, 20)], ids=str)
def test_any_eps(shape, eps, eps_mode):
    W = with_condition(*shape, 10)
    assert_right(found_by(W, eps_mode, eps), W, eps_mode, eps)


@pytest.mark.parametrize("shape", [(12, 6), (32, 20)], ids=str)
def test_in_any_memory_format(shape):
    W, dL_dU = torch.randn(shape), torch.randn(shape)
    spectrum = found_by(W, "absolute")[1:]
    expected = polar_gradient(W, dL_dU, *spectrum, 1e-3, False)
    for other in (lambda A: A.mT.contiguous().mT, lambda A: torch.cat([A, A], 1)[:, : shape[1]]):
        assert all(map(torch.equal, found_by(other(W), "absolute")[1:], spectrum))
        dL_dW = polar_gradient(other(W), other(dL_dU), *spectrum, 1e-3, False)
        assert torch.equal(dL_dW, expected)


@both_modes
@pytest.mark.parametrize("shape", [(12, 6), (32, 20)], ids=str)
def test_the_derivative_is_that_of_the_float64_path(shape, eps_mode):
    W, dL_dU = torch.randn(shape), torch.randn(shape)
    W64 = W.double().requires_grad_()
    right = torch.autograd.grad(polar(W64, eps_mode=eps_mode), W64, dL_dU.double())[0]
    W.requires_grad_()
    got = torch.autograd.grad(polar(W, eps_mode=eps_mode), W, dL_dU)[0]
    assert (got - right).norm() <= 3e-6 * right.norm()


@pytest.mark.parametrize(
    "W",
    [
        torch.ones(100, MOST_COLUMNS + 1),
        torch.ones(2, 100, 3),
        torch.ones(100, 3, dtype=torch.float64),
    ],
    ids=["wide", "batch", "float64"],
)
def test_other_matrices_are_left_to_torch(W):
    with pytest.raises(AssertionError, match="torch's implementation ran"), only_kernels():
        polar(W)
