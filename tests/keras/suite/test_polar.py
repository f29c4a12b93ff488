"""W -> U and its derivatives, against the paper's formulas in float64."""

from contextlib import nullcontext

import keras
import numpy as np
import oracle
import pytest
from autodiff import compiled, gradient, gradient_of, hessian, hessian_of

from tensorprojection.errors import ProjectionError
from tensorprojection.keras.ops import polar

SHAPES = [(12, 6), (32, 20), (8, 7), (32, 31), (1024, 64)]
CONDITIONS = [1, 1e3, 1e6]
SCALES = [1e-3, 1, 1e3]
EPS = {"absolute": 1e-3, "relative": 1e-5}


def matrix(rng, p, q, condition=10.0, scale=1.0):
    """Singular values from scale down to scale / condition, evenly on a logarithmic axis."""
    P, _ = np.linalg.qr(rng.normal(size=(p, q)))
    V, _ = np.linalg.qr(rng.normal(size=(q, q)))
    return ((P * np.geomspace(scale, scale / condition, q)) @ V).astype(np.float32)


def array(x):
    return np.asarray(keras.ops.convert_to_numpy(x), np.float64)


def inner(A, B):
    return keras.ops.sum(keras.ops.multiply(A, B))


def relative_error(found, right):
    return np.linalg.norm(found - right) / np.linalg.norm(right)


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("eps_mode", EPS)
def test_float32_is_accurate_whatever_the_condition(rng, shape, eps_mode):
    function = compiled(lambda W: polar(W, eps_mode=eps_mode))
    for condition in CONDITIONS if shape[0] < 100 else CONDITIONS[-1:]:
        for scale in SCALES:
            W = matrix(rng, *shape, condition, scale)
            right = oracle.polar_by_svd(W.astype(np.float64), EPS[eps_mode], eps_mode)
            found = function(keras.ops.convert_to_tensor(W))
            assert np.abs(array(found) - right).max() <= 2e-6, (condition, scale)


def test_without_a_compiler_it_is_the_same(rng):
    W = matrix(rng, 12, 6, 1e6, 1e3)
    right = oracle.polar_by_svd(W.astype(np.float64), 1e-3)
    assert np.abs(array(polar(W)) - right).max() <= 2e-6


@pytest.mark.parametrize("eps_mode", EPS)
@pytest.mark.parametrize("shape", SHAPES[:4], ids=str)
def test_the_gradient_is_right_whatever_the_condition(rng, eps_mode, shape):
    differentiate = gradient_of(lambda W, dL_dU: inner(polar(W, eps_mode=eps_mode), dL_dU))
    for condition in CONDITIONS:
        for scale in SCALES:
            W = matrix(rng, *shape, condition, scale)
            dL_dU = rng.normal(size=shape).astype(np.float32)
            found, _ = differentiate(W, dL_dU)
            right = oracle.polar_gradient(
                W.astype(np.float64), EPS[eps_mode], dL_dU.astype(np.float64), eps_mode
            )
            assert relative_error(found, right) < 1e-5, (condition, scale)


SPECIAL = {
    "orthonormal": np.linalg.qr(np.random.default_rng(1).normal(size=(7, 4)))[0],
    "repeated singular values": np.diag([2.0, 2.0, 2.0, 0.5, 0.0])[:, :4],
    "rank-deficient": np.outer(np.arange(7.0), np.arange(4.0)),
    "zero": np.zeros((7, 4)),
}


@pytest.mark.parametrize("name", SPECIAL)
def test_the_gradient_is_finite_and_right_where_decompositions_have_none(rng, name):
    W = SPECIAL[name].astype(np.float32)
    dL_dU = rng.normal(size=W.shape).astype(np.float32)
    (found,) = gradient(lambda W: inner(polar(W), dL_dU), W)
    # The derivative itself as the Kronecker product of the paper's Proposition 1.
    J = oracle.dU_dW(W.astype(np.float64), 1e-3)
    right = oracle.unvec(J.T @ oracle.vec(dL_dU.astype(np.float64)), W.shape)
    assert relative_error(found, right) < 1e-5


@pytest.mark.parametrize("eps_mode", EPS)
def test_second_derivatives(rng, eps_mode):
    def loss(W, weight):
        return inner(keras.ops.sin(polar(W, 0.1, eps_mode=eps_mode)), weight)

    def right_gradient(W, weight):
        U = oracle.polar_by_svd(W, 0.1, eps_mode)
        return oracle.polar_gradient(W, 0.1, np.cos(U) * weight, eps_mode)

    differentiate = hessian_of(loss)
    random = {"random": rng.normal(size=(5, 3))}
    for name in (*random, "orthonormal", "repeated singular values"):
        W = {**SPECIAL, **random}[name][:5, :3].astype(np.float32)
        weight = rng.normal(size=W.shape).astype(np.float32)
        step, columns = 1e-5, []
        for place in np.ndindex(*W.shape):
            moved = np.zeros(W.shape)
            moved[place] = step
            difference = right_gradient(W + moved, weight) - right_gradient(W - moved, weight)
            columns.append(difference.ravel() / (2 * step))
        assert relative_error(differentiate(W, weight), np.stack(columns)) < 1e-5, name


def test_second_derivatives_are_finite_at_zero():
    found = hessian(lambda W: keras.ops.sum(polar(W) ** 3), np.zeros((4, 2), np.float32))
    assert np.isfinite(found).all()


@pytest.mark.parametrize(
    ("q", "eps_mode"), [(4, "absolute"), (4, "relative"), (1, "absolute"), (1, "relative")]
)
def test_nan_propagates(rng, q, eps_mode):
    """Also of a zero W with a relative ε, which has no scale."""
    dL_dU = rng.normal(size=(7, q)).astype(np.float32)
    Ws = []
    for value in (np.nan, np.inf, -np.inf):
        Ws.append(rng.normal(size=(7, q)).astype(np.float32))
        Ws[-1][2, -1] = value
    if eps_mode == "relative":
        Ws.append(np.zeros((7, q), np.float32))
    fast = compiled(lambda W: polar(W, eps_mode=eps_mode))
    for W in Ws:
        for U in (polar(W, eps_mode=eps_mode), fast(keras.ops.convert_to_tensor(W))):
            assert np.isnan(array(U)).all(), W
        (found,) = gradient(lambda W: inner(polar(W, eps_mode=eps_mode), dL_dU), W)
        assert np.isnan(found).all(), W


@pytest.mark.parametrize("eps_mode", EPS)
def test_large_numbers_are_no_problem_and_an_overflow_of_their_squares_gives_nan(rng, eps_mode):
    W = (1e30 * rng.normal(size=(7, 4))).astype(np.float32)
    right = oracle.polar_by_svd(W.astype(np.float64), EPS[eps_mode], eps_mode)
    assert np.abs(array(polar(W, eps_mode=eps_mode)) - right).max() <= 2e-6
    with double_precision():
        W = keras.ops.convert_to_tensor(1e200 * rng.normal(size=(7, 4)), "float64")
        assert np.isnan(array(polar(W, eps_mode=eps_mode))).all()


def double_precision():
    if keras.backend.backend() != "jax":
        return nullcontext()
    import jax

    return jax.enable_x64(True)


def test_half_types_are_computed_in_float32(rng):
    W = keras.ops.cast(matrix(rng, 12, 6), "bfloat16")
    right = oracle.polar_by_svd(array(keras.ops.cast(W, "float32")), 1e-3)
    U = polar(W)
    assert keras.backend.standardize_dtype(U.dtype) == "float32"
    assert np.abs(array(U) - right).max() < 2e-6


def test_a_wide_matrix_is_refused():
    with pytest.raises(ProjectionError, match=r"Expected W of shape .* got \(3, 5\)"):
        polar(keras.ops.ones((3, 5)))
