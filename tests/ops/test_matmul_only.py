"""U with matrix products only, as on accelerators, here on the CPU; test_polar.py has the rest.

The oracle works on W's singular values in float64, so that it never squares the condition.
"""

import runpy
from pathlib import Path

import numpy as np
import oracle
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from implementations import implementation
from oracle import orthonormal, with_singular_values
from threadpoolctl import threadpool_limits

import tensorprojection as tp
from tensorprojection.ops.matmul_only import (
    _DOUBLINGS,
    GAIN,
    NEWTON,
    QUINTICS,
    SHIFTS,
    SMALLEST,
    SMALLEST_ROOT,
    STEEP,
    lyapunov,
    stacks,
)

# A warning of torch itself when forward mode is used for the first time.
pytestmark = pytest.mark.filterwarnings("ignore:`torch.jit.script` is deprecated")

MODES = ["absolute", "relative"]
DEFAULT_EPS = {"absolute": 1e-3, "relative": 1e-5}
CONDITIONS = [10.0**k for k in range(7)]
SIZES = [(12, 6), (32, 31), (20, 1), (64, 64), (256, 64)]

both_modes = pytest.mark.parametrize("eps_mode", MODES)


@pytest.fixture(autouse=True)
def matmul_only():
    """Small matrices by the hundred: threads would mostly wait for one another."""
    with threadpool_limits(1), implementation("matmul-only"):
        yield


def polar(W, eps_mode="absolute", eps=None):
    return tp.functional.polar(W, eps, eps_mode=eps_mode)


def with_condition(p, q, condition, scale=1.0, dtype=torch.float32):
    sigma = scale * np.logspace(0, -np.log10(condition), q)
    return torch.from_numpy(with_singular_values(p, sigma)).to(dtype)


def expected_U(W, eps_mode, eps=None):
    return oracle.polar_by_svd(W.detach().double().numpy(), eps or DEFAULT_EPS[eps_mode], eps_mode)


def expected_gradient(W, D, eps_mode):
    A, eps = W.detach().double().numpy(), DEFAULT_EPS[eps_mode]
    return oracle.polar_gradient(A, eps, D.double().numpy(), eps_mode)


def draw(shape, seed=2):
    return torch.from_numpy(np.random.default_rng(seed).standard_normal(shape))


def max_error(U, expected):
    assert U.shape == expected.shape
    return np.abs(U.detach().double().numpy() - expected).max()


def relative_error(actual, expected):
    return np.linalg.norm(actual.double().numpy() - expected) / np.linalg.norm(expected)


# The coefficients


def applied(coefficients, x):
    for a, b, c in coefficients:
        x = a * x + b * x**3 + c * x**5
    return x


def test_the_steps_take_all_numbers_to_one():
    x = np.geomspace(SMALLEST, 1, 100_001)
    x = x * (1 + GAIN / (1 + STEEP * x**2))
    assert np.abs(applied(QUINTICS, x) - 1).max() <= 1e-14
    assert np.abs(applied(QUINTICS, x * (1 + 1e-8)) - 1).max() <= 1e-14  # rounding of the inverse


@pytest.fixture(scope="module")
def script():
    path = Path(__file__).parents[2] / "benchmarks" / "quintics.py"
    if not path.is_file():
        pytest.skip("the benchmarks come with a clone of the project, not with the package")
    return runpy.run_path(str(path))


def test_the_tables_are_those_of_the_script(script):
    np.testing.assert_allclose(script["quintics"](), QUINTICS, rtol=1e-9)
    np.testing.assert_allclose(script["shifts"](), SHIFTS, rtol=1e-12)


@pytest.mark.parametrize("steps", [3, 6])
def test_other_quintics_are_worse(script, steps):
    """Newton's, which converge as fast at the end, are far behind; small changes are worse."""

    def worst(coefficients):
        return np.abs(applied(coefficients, np.geomspace(1e-3, 1, 20_001)) - 1).max()

    best = script["quintics"](1e-3, 1.0, steps)
    assert worst(best) < worst([NEWTON] * steps)
    for k in range(min(steps, 3)):
        for change in (0.999, 1.001):
            changed = [*best]
            changed[k] = tuple(change * number for number in best[k])
            assert worst(changed) > worst(best)


def test_shifts_are_the_best_for_their_interval():
    """The product's extremes are five, equal and alternating, as Chebyshev asks."""
    x = np.geomspace(SMALLEST_ROOT, 1, 400_001)
    K = np.prod([(x - p) / (x + p) for p in SHIFTS], axis=0)
    largest = np.abs(K).max()
    assert largest ** (2 * 2**_DOUBLINGS) <= 1e-8  # what is left of the sum
    signs = np.sign(K[np.abs(K) >= 0.999 * largest])
    assert (np.diff(signs) != 0).sum() == 4


def test_lyapunov():
    """Against the solution by entries in H's eigenbasis."""
    s = np.geomspace(SMALLEST_ROOT, 1, 12)
    V = orthonormal(12, 12)
    C = draw((12, 12)).numpy()
    expected = V @ (V.T @ C @ V / np.add.outer(s, s)) @ V.T
    X = lyapunov(torch.from_numpy(C)[None], torch.from_numpy(V * s @ V.T)[None])[0]
    # Solving with H + pI rounds by up to H's condition.
    assert relative_error(X, expected) <= np.finfo(float).eps / SMALLEST_ROOT


# U and its gradient, before any rounding to float32: what the docs promise, by condition

U_LIMIT = {1e0: 2e-13, 1e1: 1e-10, 1e2: 1e-10, 1e3: 2e-10, 1e4: 3e-9, 1e5: 3e-8, 1e6: 3e-7}
GRADIENT_LIMIT = {1e0: 1e-11, 1e1: 1e-9, 1e2: 1e-9, 1e3: 1e-8, 1e4: 1e-7, 1e5: 1e-6, 1e6: 3e-6}


@both_modes
@pytest.mark.parametrize("scale", [1e-3, 1, 1e3])
@pytest.mark.parametrize(("p", "q"), SIZES, ids=[f"{p}x{q}" for p, q in SIZES])
def test_exact(p, q, scale, eps_mode):
    D = draw((p, q))
    for condition in CONDITIONS:
        W = with_condition(p, q, condition, scale).requires_grad_()
        A = W.detach().double().requires_grad_()
        U = polar(A, eps_mode)
        assert max_error(U, expected_U(W, eps_mode)) <= U_LIMIT[condition], condition
        (gradient,) = torch.autograd.grad(U, A, D)
        error = relative_error(gradient, expected_gradient(W, D, eps_mode))
        assert error <= GRADIENT_LIMIT[condition], condition
        # And float32 has float32's rounding on top of it, no more.
        U32 = polar(W, eps_mode)
        assert U32.dtype == torch.float32
        assert torch.equal(U32, U.float())
        (gradient32,) = torch.autograd.grad(U32, W, D.float())
        assert relative_error(gradient32, expected_gradient(W, D.float(), eps_mode)) <= 1e-5


@pytest.mark.parametrize(("p", "q"), [(12, 6), (128, 80)])
@pytest.mark.parametrize("scale", [1e19, 1e-19])
@both_modes
def test_huge_and_tiny(p, q, scale, eps_mode):
    W = (scale * draw((p, q), 1)).float().requires_grad_()
    D = draw((p, q)).float()
    U = polar(W, eps_mode)
    (gradient,) = torch.autograd.grad(U, W, D)
    expected = expected_U(W, eps_mode)
    assert max_error(U, expected) <= 2e-7 * np.abs(expected).max()
    assert relative_error(gradient, expected_gradient(W, D, eps_mode)) <= 1e-6


@settings(deadline=None, max_examples=40)
@given(
    digits=st.floats(0, 300),
    dtype=st.sampled_from([torch.bfloat16, torch.float32, torch.float64]),
    eps_mode=st.sampled_from(MODES),
    size=st.sampled_from([(1, 1), (5, 2), (6, 6), (16, 5)]),
    scale=st.sampled_from([1e-15, 1.0, 1e15]),
)
def test_no_nan_at_any_condition(digits, dtype, eps_mode, size, scale):
    """Far beyond the range of the steps, U is still a contraction and all is finite."""
    sigma = scale * np.logspace(0, -digits, size[1])
    W = torch.from_numpy(with_singular_values(size[0], sigma)).to(dtype).requires_grad_()
    U = polar(W, eps_mode)
    (gradient,) = torch.autograd.grad(U.sum(), W)
    assert torch.isfinite(gradient).all()
    # On an accelerator a W of type float64, which may be worse conditioned, goes to the host.
    slack = 1e-3 if dtype == torch.float64 else 2e-5 + 4 * torch.finfo(dtype).eps
    assert np.linalg.norm(U.detach().double().numpy(), 2) <= 1 + slack


# A W without full rank, large beside an absolute ε

DEFICIENT = {
    "a column twice": lambda A: torch.cat([A[:, :-1], A[:, :1]], 1),
    "a column of zeros": lambda A: A * (torch.arange(A.shape[1]) != 1),
    "rank one": lambda A: torch.outer(A[:, 0], torch.ones(A.shape[1])),
    "a product": lambda A: A[:, :2] @ A[:2],  # of rank two, up to rounding
}


@pytest.fixture(params=["eager", "func in compile"], scope="module")
def step(request):
    """``step(x, D)`` of one layer: its output, and dL/dx for dL/dz = D; compiled once."""
    layer = tp.TensorProjection((12, 9), (6, 4)).requires_grad_(False)

    def gradient(x, D):
        def loss(x):
            z = layer(x)
            return (z * D).sum(), z

        dx, z = torch.func.grad(loss, has_aux=True)(x)
        return z, dx

    def eager(x, D):
        z = layer(x.requires_grad_())
        return z.detach(), torch.autograd.grad(z, x, D)[0]

    if request.param == "eager":
        return layer, eager
    torch.compiler.reset()
    return layer, torch.compile(gradient, backend="aot_eager", fullgraph=True)


@pytest.mark.parametrize("scale", [1e4, 1e5, 1e6])
@pytest.mark.parametrize("kind", DEFICIENT)
def test_a_large_W_without_full_rank(kind, scale, step):
    layer, run = step
    with torch.no_grad():
        for W in layer.Ws:
            W.copy_(scale * DEFICIENT[kind](draw(W.shape, 5).float()))
    x, D = draw((3, 12, 9)).float(), draw((3, 6, 4), 3).float()
    z, dx = run(x, D)
    Us = [torch.from_numpy(expected_U(W, "absolute")) for W in layer.Ws]
    right = torch.einsum("nab,ai,bj->nij", x.double(), *Us)
    assert relative_error(z, right.detach().numpy()) <= 1e-5
    right = torch.einsum("nij,ai,bj->nab", D.double(), *Us)
    assert relative_error(dx, right.numpy()) <= 1e-5


@pytest.mark.parametrize("scale", [1e4, 1e5, 1e6])
@pytest.mark.parametrize(("p", "rank"), [(64, 10), (64, 60), (1024, 10)])
def test_a_large_W_of_many_columns_without_full_rank(p, rank, scale):
    W = (scale * draw((p, rank)) @ draw((rank, 64), 3)).float().requires_grad_()
    D = draw((p, 64), 4).float()
    U = polar(W)
    assert relative_error(U.detach(), expected_U(W, "absolute")) <= 1e-5
    (gradient,) = torch.autograd.grad(U, W, D)
    assert relative_error(gradient, expected_gradient(W, D, "absolute")) <= 1e-3


# All modes of a layer

LAYERS = [
    [(32, 20), (12, 6), (12, 6)],
    [(16, 8), (16, 8)],
    [(7, 6), (5, 1), (9, 3), (2, 1)],
    [(300, 80), (16, 8), (300, 80), (15, 7)],
]


@both_modes
@pytest.mark.parametrize("shapes", LAYERS, ids=str)
def test_modes_together_are_the_modes_alone(shapes, eps_mode):
    """Padding and stacking change nothing, also if every mode has an ε of its own."""
    large, small = zip(*shapes, strict=True)
    eps = [DEFAULT_EPS[eps_mode] * (k + 1) for k in range(len(shapes))]
    layer = tp.TensorProjection(large, small, eps=eps, eps_mode=eps_mode, dtype=torch.float64)
    Ds = [draw(shape, 8 + k) for k, shape in enumerate(shapes)]
    with torch.no_grad():
        for k, W in enumerate(layer.Ws):
            W.copy_((10.0 ** (k - 2) * draw(W.shape, 4 + k)).float())
    Us = layer.projections()
    grads = torch.autograd.grad(Us, layer.Ws, Ds)
    for W, D, e, U, grad in zip(layer.Ws, Ds, eps, Us, grads, strict=True):
        A = W.detach().numpy()
        assert max_error(U, oracle.polar_by_svd(A, e, eps_mode)) <= 1e-10
        expected = oracle.polar_gradient(A, e, D.numpy(), eps_mode)
        assert relative_error(grad, expected) <= 1e-8


def test_one_gradient_of_a_stack():
    layer = tp.TensorProjection((9, 8, 7), (4, 3, 2))
    every = torch.autograd.grad(sum(U.sum() for U in layer.projections()), layer.Ws)
    layer.W2.requires_grad_(False)
    some = torch.autograd.grad(sum(U.sum() for U in layer.projections()), [layer.W1, layer.W3])
    torch.testing.assert_close(some, (every[0], every[2]), rtol=0, atol=0)


def test_what_is_stacked():
    """Small W's are stacked together, large ones with their equals.

    None is padded to a size that is large only because one W is tall and another wide.
    """
    assert [s.members for s in stacks([(32, 20), (12, 6), (12, 6)])] == [(0, 1, 2)]
    assert [s.members for s in stacks([(300, 80), (16, 8), (300, 80)])] == [(0, 2), (1,)]
    assert [s.members for s in stacks([(4096, 2), (64, 64), (4096, 2)])] == [(0, 2), (1,)]


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), -float("inf")])
def test_a_diverged_W_gives_nan_and_spoils_no_other(bad):
    layer = tp.TensorProjection((6, 5), (3, 2))
    with torch.no_grad():
        layer.W2[0, 0] = bad
    U1, U2 = layer.projections()
    grads = torch.autograd.grad(U1.sum() + U2.sum(), [layer.W1, layer.W2])
    assert [bool(t.isfinite().all()) for t in (U1, grads[0])] == [True, True]
    assert [bool(t.isnan().all()) for t in (U2, grads[1])] == [True, True]


@pytest.mark.parametrize("precision", ["high", "medium"])
def test_the_precision_of_float32_products_does_not_reach_U(precision):
    W, D = with_condition(32, 20, 1e3).requires_grad_(), draw((32, 20)).float()

    def run():
        U = polar(W)
        return U, *torch.autograd.grad(U, W, D)

    expected = run()
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision(precision)
    try:
        assert torch.backends.cuda.matmul.allow_tf32
        found = run()
    finally:
        torch.set_float32_matmul_precision(before)
    for a, b in zip(found, expected, strict=True):
        assert torch.equal(a, b)
