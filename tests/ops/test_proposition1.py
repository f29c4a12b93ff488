"""The layers' gradients against the paper's Proposition 1, with the corrected Eq. 11."""

import numpy as np
import oracle
import pytest
import torch
from threadpoolctl import threadpool_limits

from tensorprojection import TensorProjection, TransposeTensorProjection

EPS = 1e-3


@pytest.fixture(autouse=True, scope="module")
def one_thread():
    """Small matrices by the hundred: threads would mostly wait for one another."""
    with threadpool_limits(1):
        yield


def normal(rng, p, q):
    return rng.standard_normal((p, q))


def paper_start(rng, p, q):
    return 0.05 * rng.standard_normal((p, q))


def orthonormal(rng, p, q):
    return np.linalg.qr(rng.standard_normal((p, q)))[0]


def repeated(rng, p, q):
    """Singular values in equal pairs: 2, 2, 1, 1, …"""
    left, right = orthonormal(rng, p, q), orthonormal(rng, q, q)
    return (left * np.repeat([2.0, 1.0, 0.5, 0.25], 2)[:q]) @ right.T


STARTS = [normal, paper_start, orthonormal, repeated]

SHAPES = [
    pytest.param((7,), (3,), id="order1"),
    pytest.param((6, 5), (3, 2), id="order2"),
    pytest.param((6, 5, 4), (3, 2, 2), id="order3"),
    pytest.param((5, 4, 6), (4, 3, 5), id="near-square"),
    pytest.param((4, 5, 4), (1, 4, 1), id="to-size-1"),
    pytest.param((3, 6, 6), (None, 2, 3), id="mode-left-alone"),
    pytest.param((4, 3, 3, 4), (2, 2, None, 3), id="order4"),
]


def problem(start, large, small, *, transposed, n=3):
    """A layer, and in NumPy its W's, a batch and the loss's gradient there."""
    rng = np.random.default_rng(0)
    small = tuple(p if q is None else q for p, q in zip(large, small, strict=True))
    Ws = [None if p == q else start(rng, p, q) for p, q in zip(large, small, strict=True)]
    if transposed:
        layer = TransposeTensorProjection(small, large, eps=EPS, dtype=torch.float64)
    else:
        layer = TensorProjection(large, small, eps=EPS, dtype=torch.float64)
    with torch.no_grad():
        for parameter, W in zip(layer.Ws, Ws, strict=True):
            if parameter is not None:
                parameter.copy_(torch.from_numpy(W))
    Xs = rng.standard_normal((n, *(small if transposed else large)))
    dL_dZs = rng.standard_normal((n, *(large if transposed else small)))
    return layer, Ws, Xs, dL_dZs


def assert_close(actual, expected, tolerance=1e-10):
    """To within tolerance, relative to the largest entry."""
    assert actual.shape == expected.shape
    assert np.abs(actual - expected).max() <= tolerance * max(1, np.abs(expected).max())


@pytest.mark.parametrize("transposed", [False, True], ids=["projection", "transposed"])
@pytest.mark.parametrize("start", STARTS)
@pytest.mark.parametrize(("large", "small"), SHAPES)
def test_layer_is_the_oracle(large, small, start, transposed):
    layer, Ws, Xs, dL_dZs = problem(start, large, small, transposed=transposed)
    x = torch.from_numpy(Xs).requires_grad_()
    z = layer(x)
    z.backward(torch.from_numpy(dL_dZs))

    assert_close(z.detach().numpy(), oracle.forward(Xs, Ws, EPS, transposed))
    dL_dXs, dL_dWs = oracle.proposition1(Xs, Ws, EPS, dL_dZs, transposed)
    assert_close(x.grad.numpy(), dL_dXs)
    for parameter, expected in zip(layer.Ws, dL_dWs, strict=True):
        if expected is None:
            assert parameter is None
        else:
            assert_close(parameter.grad.numpy(), expected)


@pytest.mark.parametrize("transposed", [False, True], ids=["projection", "transposed"])
def test_one_eps_per_mode(transposed):
    """The proposition's ε_k: with W this small each mode's own ε shows in its gradient."""
    large, small, eps = (6, 5), (3, 2), (0.2, 0.01)
    _, Ws, Xs, dL_dZs = problem(paper_start, large, small, transposed=transposed)
    kind = TransposeTensorProjection if transposed else TensorProjection
    shapes = (small, large) if transposed else (large, small)
    layer = kind(*shapes, eps=eps, dtype=torch.float64)
    layer.load_state_dict({f"W{k}": torch.from_numpy(W) for k, W in enumerate(Ws, start=1)})
    layer(torch.from_numpy(Xs)).backward(torch.from_numpy(dL_dZs))

    Us = [oracle.polar(W, e) for W, e in zip(Ws, eps, strict=True)]
    to_U = oracle.dZ_dU_transposed if transposed else oracle.dZ_dU
    for k, parameter in enumerate(layer.Ws, start=1):
        to_W = oracle.dU_dW(Ws[k - 1], eps[k - 1])
        rows = [
            oracle.vec(dL_dZ) @ to_U(X, Us, k) @ to_W for X, dL_dZ in zip(Xs, dL_dZs, strict=True)
        ]
        assert_close(parameter.grad.numpy(), oracle.unvec(sum(rows), Ws[k - 1].shape))


# The oracle itself, against nothing but the forward formula


def central_differences(loss, W, step=1e-5):
    gradient = np.empty_like(W)
    for index in np.ndindex(*W.shape):
        there = np.zeros_like(W)
        there[index] = step
        gradient[index] = (loss(W + there) - loss(W - there)) / (2 * step)
    return gradient


def relative_error(actual, expected):
    return np.linalg.norm(actual - expected) / np.linalg.norm(expected)


@pytest.mark.parametrize("transposed", [False, True], ids=["projection", "transposed"])
@pytest.mark.parametrize(
    ("large", "small", "wrong_by"),
    [
        pytest.param((12, 5, 4), (6, 2, 2), 0.01, id="12x6"),
        pytest.param((8, 3, 3), (7, 2, 2), 0.1, id="8x7"),
    ],
)
def test_eq11_as_printed_is_wrong(large, small, wrong_by, transposed):
    """So that nobody "fixes" it back.

    The paper prints Eq. 11 as ∂vec(G)/∂vec(M)ᵀ = -1/2 M^(-3/4) ⊗ M^(-3/4). Its proof takes
    (A B A)^(-1/2) for A^(-1/2) B^(-1/2) A^(-1/2), which holds only where A and B commute; the
    authors published a correction in October 2025. Central differences of the loss decide: the
    gradient with the corrected equation agrees with them, that with the printed one does not.
    """
    _, Ws, Xs, dL_dZs = problem(normal, large, small, transposed=transposed)

    def loss(W1):
        return np.sum(dL_dZs * oracle.forward(Xs, [W1, *Ws[1:]], EPS, transposed))

    truth = central_differences(loss, Ws[0])
    gradient = {
        eq11: oracle.proposition1(Xs, Ws, EPS, dL_dZs, transposed, eq11)[1][0]
        for eq11 in (oracle.dG_dM, oracle.dG_dM_as_printed)
    }
    assert relative_error(gradient[oracle.dG_dM], truth) < 1e-7
    assert relative_error(gradient[oracle.dG_dM_as_printed], truth) > wrong_by


def test_eq11_as_printed_is_right_for_equal_singular_values():
    """Where M is a multiple of the identity everything commutes, and the two equations agree."""
    M = oracle.gram(3 * orthonormal(np.random.default_rng(0), 7, 4), EPS)
    np.testing.assert_allclose(oracle.dG_dM_as_printed(M), oracle.dG_dM(M), atol=1e-14)


@pytest.mark.parametrize("transposed", [False, True], ids=["projection", "transposed"])
@pytest.mark.parametrize(("large", "small"), SHAPES)
def test_oracle_agrees_with_differences(large, small, transposed):
    _, Ws, Xs, dL_dZs = problem(normal, large, small, transposed=transposed, n=2)
    dL_dXs, dL_dWs = oracle.proposition1(Xs, Ws, EPS, dL_dZs, transposed)

    def loss(Xs, Ws):
        return np.sum(dL_dZs * oracle.forward(Xs, Ws, EPS, transposed))

    assert relative_error(dL_dXs, central_differences(lambda X: loss(X, Ws), Xs)) < 1e-7
    for k, W in enumerate(Ws):
        if W is not None:
            expected = central_differences(lambda V, k=k: loss(Xs, [*Ws[:k], V, *Ws[k + 1 :]]), W)
            assert relative_error(dL_dWs[k], expected) < 1e-7


@pytest.mark.parametrize("start", STARTS)
def test_the_two_forms_of_the_oracle_agree(start):
    """That of the Kronecker products, and that of the singular values, which serves any size."""
    rng = np.random.default_rng(0)
    W, dL_dU = start(rng, 7, 4), rng.standard_normal((7, 4))
    assert_close(oracle.polar_by_svd(W, EPS), oracle.polar(W, EPS))
    expected = oracle.unvec(oracle.vec(dL_dU) @ oracle.dU_dW(W, EPS), W.shape)
    assert_close(oracle.polar_gradient(W, EPS, dL_dU), expected)


@pytest.mark.parametrize("start", STARTS)
def test_oracle_of_the_relative_eps_agrees_with_differences(start):
    rng = np.random.default_rng(0)
    W, dL_dU = start(rng, 7, 4), rng.standard_normal((7, 4))
    truth = central_differences(
        lambda W: np.sum(dL_dU * oracle.polar_by_svd(W, 0.3, "relative")), W, step=1e-6
    )
    assert relative_error(oracle.polar_gradient(W, 0.3, dL_dU, "relative"), truth) < 1e-7


@pytest.mark.parametrize("shape", [(3, 2), (2, 5), (4, 4), (1, 3)])
def test_commutation_matrix(shape):
    A = np.random.default_rng(0).standard_normal(shape)
    assert np.array_equal(oracle.commutation(*shape) @ oracle.vec(A), oracle.vec(A.T))


@pytest.mark.parametrize("k", [1, 2, 3])
def test_permutation_matrix(k):
    Z = np.random.default_rng(0).standard_normal((2, 3, 4))
    assert np.array_equal(
        oracle.permutation(k, Z.shape) @ oracle.vec(oracle.unfold(Z, k)), oracle.vec(Z)
    )
