"""polar: U = W (WᵀW + ε²I)^(-1/2), as exact as its type allows, and its derivatives.

The oracle is float64 and works on W's singular values, so that it never squares the condition.
"""

from contextlib import ExitStack

import mpmath
import numpy as np
import oracle
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from implementations import implementation
from oracle import orthonormal, with_singular_values
from threadpoolctl import threadpool_limits
from torch.autograd import gradcheck, gradgradcheck

from tensorprojection import (
    ProjectionTypeError,
    ProjectionValueError,
    TensorProjection,
    TransposeTensorProjection,
)
from tensorprojection.functional import polar
from tensorprojection.ops.kernels.library import load

# What torch itself warns of when forward mode is used for the first time.
pytestmark = pytest.mark.filterwarnings("ignore:`torch.jit.script` is deprecated")

MODES = ["absolute", "relative"]
DEFAULT_EPS = {"absolute": 1e-3, "relative": 1e-5}
CONDITIONS = [1, 1e1, 1e2, 1e3, 1e4, 1e5, 1e6]
FEW_CONDITIONS = [1, 1e3, 1e6]  # for the large sizes
SCALES = [1e-3, 1, 1e3]
SIZES = [(12, 6), (32, 31), (20, 1), (64, 64), (1024, 64), (1024, 256)]

size_ids = [f"{p}x{q}" for p, q in SIZES]


@pytest.fixture(autouse=True, scope="module")
def one_thread():
    """Small matrices by the hundred: threads would mostly wait for one another."""
    with threadpool_limits(1):
        yield


@pytest.fixture(params=["kernels", "matmul-only"])
def way(request):
    """On the host, and with products only as on an accelerator, here on the CPU."""
    with implementation(request.param):
        yield


both_ways = pytest.mark.usefixtures("way")


def with_condition(p, q, condition, scale=1.0, dtype=torch.float32):
    sigma = scale * np.logspace(0, -np.log10(condition), q)
    return torch.from_numpy(with_singular_values(p, sigma)).to(dtype)


def expected_U(W, eps_mode, eps=None):
    """The oracle's U in float64 for exactly this W, whatever its type."""
    eps = DEFAULT_EPS[eps_mode] if eps is None else eps
    return oracle.polar_by_svd(W.double().numpy(), eps, eps_mode)


def expected_gradient(W, dL_dU, eps_mode):
    return oracle.polar_gradient(
        W.detach().double().numpy(), DEFAULT_EPS[eps_mode], dL_dU.double().numpy(), eps_mode
    )


def max_error(U, expected):
    assert U.shape == expected.shape
    return np.abs(U.detach().double().numpy() - expected).max()


def relative_error(actual, expected):
    difference = actual.double().numpy() - expected
    return np.linalg.norm(difference) / np.linalg.norm(expected)


# U in float32 and float64


@both_ways
@pytest.mark.parametrize("eps_mode", MODES)
@pytest.mark.parametrize(
    ("p", "q", "scale"),
    [(p, q, scale) for p, q in SIZES for scale in SCALES if q < 256 or scale == 1],
)
def test_float32_and_its_gradient(p, q, scale, eps_mode):
    dL_dU = torch.from_numpy(np.random.default_rng(2).standard_normal((p, q))).float()
    for condition in CONDITIONS if p < 1000 else FEW_CONDITIONS:
        W = with_condition(p, q, condition, scale).requires_grad_()
        U = polar(W, eps_mode=eps_mode)
        assert U.dtype == torch.float32
        assert max_error(U, expected_U(W.detach(), eps_mode)) <= 2e-6, condition
        if condition <= 1e3:
            U.backward(dL_dU)
            assert relative_error(W.grad, expected_gradient(W, dL_dU, eps_mode)) <= 1e-5, condition


@pytest.mark.parametrize("eps_mode", MODES)
@pytest.mark.parametrize("scale", SCALES)
@pytest.mark.parametrize(("p", "q"), SIZES[:-1], ids=size_ids[:-1])
def test_float64(p, q, scale, eps_mode):
    for condition in CONDITIONS:
        W = with_condition(p, q, condition, scale, torch.float64)
        U = polar(W, eps_mode=eps_mode)
        assert U.dtype == torch.float64
        assert max_error(U, expected_U(W, eps_mode)) <= 1e-9, condition


@pytest.mark.parametrize("condition", [1, 1e3, 1e6])
def test_the_oracle_is_right_to_many_digits(condition):
    """The formula itself, M^(-1/2) of M = WᵀW + ε²I, with 60 digits."""
    W = with_condition(7, 4, condition, dtype=torch.float64).numpy()
    with mpmath.workdps(60):
        A = mpmath.matrix(W.tolist())
        squares, V = mpmath.eigsy(A.T * A + mpmath.mpf("1e-3") ** 2 * mpmath.eye(4))
        G = V * mpmath.diag([1 / mpmath.sqrt(x) for x in squares]) * V.T
        U = np.array((A * G).tolist(), dtype=np.float64)
    np.testing.assert_allclose(oracle.polar_by_svd(W, 1e-3), U, atol=1e-12)


@both_ways
@pytest.mark.parametrize("eps", [1e-8, 1e-2, 1.0, 50.0])
@pytest.mark.parametrize("eps_mode", MODES)
def test_any_eps(eps, eps_mode):
    W = with_condition(12, 6, 10)
    assert max_error(polar(W, eps, eps_mode=eps_mode), expected_U(W, eps_mode, eps)) <= 2e-6


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("eps", [1e-8, 1e-12, 1e-16, 1e-20])
def test_a_tiny_eps_does_not_spoil_the_other_directions(eps, dtype):
    """W has rank two. What U is in the third direction, rounding decides where ε is tiny; but it
    has to be right in the two that W has, and a contraction in all.
    """
    P, Q = orthonormal(6, 2), orthonormal(3, 2, seed=1)
    U = polar(torch.from_numpy(P @ Q.T).to(dtype), eps).double().numpy()
    np.testing.assert_allclose(U @ Q, P, atol=2e-6)
    assert np.linalg.norm(U, 2) <= 1 + 2e-6


@both_ways
def test_not_contiguous():
    W = with_condition(12, 6, 10)
    other = torch.empty(6, 24).T[::2]
    other.copy_(W)
    assert not other.is_contiguous()
    torch.testing.assert_close(polar(other), polar(W), rtol=0, atol=1e-7)


@both_ways
def test_dtype_of_U():
    """U is computed in float64 and cast once, to the type that is asked for."""
    W = with_condition(12, 6, 10)
    U = polar(W, dtype=torch.float64)
    assert U.dtype == torch.float64
    assert max_error(U, expected_U(W, "absolute")) <= 1e-12
    assert torch.equal(polar(W, dtype=torch.bfloat16), U.bfloat16())


# Half types and autocast: U is computed in float32 or better, and only then cast


@both_ways
@pytest.mark.parametrize("eps_mode", MODES)
@pytest.mark.parametrize("scale", SCALES)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_types_lose_nothing_but_the_last_rounding(dtype, scale, eps_mode):
    info = torch.finfo(dtype)
    for condition in CONDITIONS:
        W = with_condition(32, 20, condition, scale, dtype)
        U = polar(W, eps_mode=eps_mode)
        assert U.dtype == dtype
        expected = expected_U(W, eps_mode)
        half_step = 0.51 * np.maximum(info.eps * np.abs(expected), info.smallest_normal * info.eps)
        assert (np.abs(U.double().numpy() - expected) <= half_step).all(), condition


@settings(deadline=None, max_examples=60)
@given(
    digits=st.floats(0, 300),
    dtype=st.sampled_from([torch.bfloat16, torch.float16, torch.float32, torch.float64]),
    eps_mode=st.sampled_from(MODES),
    size=st.sampled_from([(1, 1), (5, 2), (6, 6), (16, 5)]),
)
def test_no_nan_at_any_condition(digits, dtype, eps_mode, size):
    W = torch.from_numpy(with_singular_values(size[0], np.logspace(0, -digits, size[1])))
    assert_finite(W.to(dtype), eps_mode)


@both_ways
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32, torch.float64])
@pytest.mark.parametrize("eps_mode", MODES)
def test_no_nan_without_full_rank(eps_mode, dtype):
    column = torch.arange(1.0, 7.0)[:, None]
    assert_finite((column @ torch.ones(1, 3)).to(dtype), eps_mode)  # equal columns
    assert_finite((column * torch.tensor([1.0, 0.0, 0.0])).to(dtype), eps_mode)  # zero columns
    if eps_mode == "absolute":
        assert_finite(torch.zeros(6, 3, dtype=dtype), eps_mode)


def assert_finite(W, eps_mode):
    W.requires_grad_()
    U = polar(W, eps_mode=eps_mode)
    U.sum().backward()
    assert U.dtype == W.grad.dtype == W.dtype
    assert torch.isfinite(U).all()
    # The gradient of a float16 W may be larger than the type can say: 1/ε is 1000, and more of a
    # W of no scale. It may overflow, as any gradient, but is not NaN.
    assert not torch.isnan(W.grad).any()
    if W.dtype != torch.float16:
        assert torch.isfinite(W.grad).all()


@both_ways
def test_zero_W_has_U_zero_and_gradient_one_over_eps():
    W = torch.zeros(4, 2, requires_grad=True)
    U = polar(W, 0.5)
    U.backward(torch.ones(4, 2))
    assert torch.equal(U, torch.zeros(4, 2))
    torch.testing.assert_close(W.grad, torch.full((4, 2), 2.0))


@both_ways
@pytest.mark.parametrize("eps_mode", MODES)
@pytest.mark.parametrize("cast_to", [torch.bfloat16, torch.float16])
def test_autocast_leaves_polar_alone(cast_to, eps_mode):
    W = with_condition(32, 20, 1e3).requires_grad_()
    dL_dU = torch.ones(32, 20)

    def run():
        U = polar(W, eps_mode=eps_mode)
        return U, *torch.autograd.grad(U, W, dL_dU)

    outside = run()
    with torch.autocast("cpu", cast_to):
        inside = run()
    for a, b in zip(outside, inside, strict=True):
        assert a.dtype == torch.float32
        assert torch.equal(a, b)


# The ways to a spectrum: by the compiled kernels; by `eigh` of the Gram matrix; by `svd` of W

needs_kernels = pytest.mark.skipif(load() is None, reason="the compiled kernels are not there")


@pytest.fixture
def calls(monkeypatch):
    """The decompositions that torch ran, by name."""
    names = []

    def spy(name):
        function = getattr(torch.linalg, name)

        def call(*args, **kwargs):
            names.append(name)
            return function(*args, **kwargs)

        monkeypatch.setattr(torch.linalg, name, call)

    spy("eigh")
    spy("svd")
    return names


@pytest.fixture
def turn_off_kernels():
    with ExitStack() as stack:
        yield lambda: stack.enter_context(implementation("torch"))


@pytest.mark.parametrize(
    ("W", "expected"),
    [
        pytest.param(with_condition(12, 6, 10), [], id="small", marks=needs_kernels),
        pytest.param(
            with_condition(12, 6, 1e6, scale=1e3), [], id="small and ill", marks=needs_kernels
        ),
        pytest.param(with_condition(512, 12, 10), [], id="tall", marks=needs_kernels),
        pytest.param(with_condition(512, 12, 1e6, scale=1e3), ["eigh", "svd"], id="tall and ill"),
        pytest.param(with_condition(80, 65, 10), ["eigh"], id="many columns"),
        pytest.param(with_condition(12, 6, 10, dtype=torch.float64), ["svd"], id="float64"),
        pytest.param(with_condition(12, 6, 10, dtype=torch.bfloat16), ["eigh"], id="bfloat16"),
    ],
)
def test_chosen_implementation(W, expected, calls):
    polar(W)
    assert calls == expected


@pytest.mark.parametrize(("condition", "expected"), [(10, ["eigh"]), (1e6, ["eigh", "svd"])])
def test_chosen_implementation_without_kernels(condition, expected, calls, turn_off_kernels):
    turn_off_kernels()
    polar(with_condition(12, 6, condition, scale=1e3))
    assert calls == expected


@pytest.mark.parametrize("eps_mode", MODES)
@pytest.mark.parametrize("scale", SCALES)
@pytest.mark.parametrize("condition", [1, 10, 1e2, 1e3])
def test_all_implementations_agree(
    condition, scale, eps_mode, monkeypatch, calls, turn_off_kernels
):
    """In U and in the gradient. If `eigh` fails, the next implementation runs."""
    W = with_condition(32, 20, condition, scale).requires_grad_()
    dL_dU = torch.from_numpy(np.random.default_rng(2).standard_normal((32, 20))).float()

    def run():
        U = polar(W, eps_mode=eps_mode)
        return U, *torch.autograd.grad(U, W, dL_dU)

    def fail(*args, **kwargs):
        raise torch.linalg.LinAlgError("did not converge")

    U1, gradient1 = run()
    assert calls == ([] if load() is not None else ["eigh"])
    calls.clear()
    turn_off_kernels()
    U2, gradient2 = run()
    monkeypatch.setattr(torch.linalg, "eigh", fail)
    U3, gradient3 = run()
    assert calls == ["eigh", "svd"]
    for U, gradient in ((U2, gradient2), (U3, gradient3)):
        torch.testing.assert_close(U1, U, rtol=0, atol=1e-6)
        assert relative_error(gradient1, gradient.double().numpy()) <= 1e-6


# Derivatives


@pytest.mark.parametrize(("p", "q"), [(12, 6), (128, 80)])
@pytest.mark.parametrize(
    ("scale", "eps_mode"),
    [(1e25, "absolute"), (1e12, "absolute"), (1e20, "relative"), (1e-20, "relative")],
)
def test_gradient_of_a_huge_or_tiny_W(p, q, scale, eps_mode):
    """1/s² is beyond float32 here."""
    dL_dU = torch.from_numpy(np.random.default_rng(2).standard_normal((p, q))).float()
    W = (scale * torch.randn(p, q)).requires_grad_()
    found = torch.autograd.grad(polar(W, eps_mode=eps_mode), W, dL_dU)[0]
    W64 = W.detach().double().requires_grad_()
    expected = torch.autograd.grad(polar(W64, eps_mode=eps_mode), W64, dL_dU.double())[0]
    assert (found - expected).norm() <= 1e-6 * expected.norm()


KINDS = {
    "random": np.random.default_rng(3).standard_normal((5, 2)),
    "paper-start": 0.05 * np.random.default_rng(3).standard_normal((5, 2)),
    "orthonormal": orthonormal(4, 3),
    "repeated-singular-values": with_singular_values(4, [2.0, 1.0, 1.0]),
    "rank-deficient": with_singular_values(4, [2.0, 1.0, 0.0]),
    "rank-one": np.outer([1.0, 2.0, 3.0, 4.0], [1.0, 1.0, 1.0]),
    "zero-column": np.random.default_rng(3).standard_normal((4, 3)) * [1.0, 0.0, 1.0],
    "zero": np.zeros((4, 3)),
    "near-square": np.random.default_rng(4).standard_normal((4, 3)),
    "square": np.random.default_rng(3).standard_normal((3, 3)),
    "identity": np.eye(2),
    "one-column": np.random.default_rng(3).standard_normal((4, 1)),
    "batch": np.random.default_rng(3).standard_normal((2, 3, 2)),
}


def kinds(eps_mode):
    return [kind for kind in KINDS if not (kind == "zero" and eps_mode == "relative")]


CASES = [(kind, eps_mode) for eps_mode in MODES for kind in kinds(eps_mode)]


@both_ways
@pytest.mark.parametrize(("kind", "eps_mode"), CASES)
def test_gradcheck(kind, eps_mode):
    W = torch.from_numpy(KINDS[kind]).requires_grad_()
    assert gradcheck(
        lambda W: polar(W, 0.1, eps_mode=eps_mode),
        W,
        check_forward_ad=True,
        check_batched_grad=True,
        check_batched_forward_grad=True,
        atol=1e-6,
        rtol=1e-6,
    )


# One of each behaviour of the spectrum and each shape. The others have their second derivatives
# checked with the paper's eps.
TWICE = ("random", "repeated-singular-values", "rank-deficient", "zero", "square", "batch")


@both_ways
@pytest.mark.parametrize(("kind", "eps_mode"), [case for case in CASES if case[0] in TWICE])
def test_gradgradcheck(kind, eps_mode):
    W = torch.from_numpy(KINDS[kind]).requires_grad_()
    assert gradgradcheck(
        lambda W: polar(W, 0.1, eps_mode=eps_mode),
        W,
        check_fwd_over_rev=True,
        atol=1e-5,
        rtol=1e-5,
    )


@both_ways
@pytest.mark.parametrize("eps_mode", MODES)
@pytest.mark.parametrize("kind", ["random", "identity", "one-column"])
def test_third_derivative(kind, eps_mode):
    """Every order is exact, not only the two that training uses."""
    W = torch.from_numpy(KINDS[kind]).requires_grad_()
    dL_dU = torch.from_numpy(np.random.default_rng(2).standard_normal(W.shape))

    def gradient(W):
        U = polar(W, 0.3, eps_mode=eps_mode)
        return torch.autograd.grad(U, W, dL_dU, create_graph=True)[0]

    assert gradgradcheck(gradient, W, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("kind", kinds("absolute"))
def test_gradcheck_with_the_papers_eps(kind):
    """Where W lacks rank, U bends within 1e-3 of it: torch's own tolerances, and no tighter."""
    W = torch.from_numpy(KINDS[kind]).requires_grad_()
    assert gradcheck(polar, W, check_forward_ad=True)
    assert gradgradcheck(polar, W, check_fwd_over_rev=True)


@both_ways
@pytest.mark.parametrize("kind", [k for k in kinds("absolute") if k != "batch"])
@pytest.mark.parametrize("jacobian", [torch.func.jacrev, torch.func.jacfwd])
def test_jacobian_is_eq9(kind, jacobian):
    """Against ∂vec(U)/∂vec(W)ᵀ as Kronecker products, where finite differences are too blunt."""
    W = KINDS[kind]
    actual = jacobian(lambda W: polar(W, 1e-2))(torch.from_numpy(W)).numpy()
    actual = actual.reshape(*W.shape, W.size, order="F").reshape(W.size, W.size, order="F")
    expected = oracle.dU_dW(W, 1e-2)
    assert np.abs(actual - expected).max() <= 1e-9 * np.abs(expected).max()


@both_ways
@pytest.mark.parametrize("eps_mode", MODES)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_gradient_loses_nothing_but_the_last_rounding(dtype, eps_mode):
    W = with_condition(12, 6, 10, dtype=dtype).requires_grad_()
    dL_dU = torch.from_numpy(np.random.default_rng(2).standard_normal((12, 6))).to(dtype)
    polar(W, eps_mode=eps_mode).backward(dL_dU)
    assert W.grad.dtype == dtype
    expected = expected_gradient(W, dL_dU, eps_mode)
    assert relative_error(W.grad, expected) <= torch.finfo(dtype).eps / 2


def test_gradient_is_blind_to_scale_with_a_relative_eps():
    """U does not change along W, so the gradient has no part along it."""
    W = with_condition(12, 6, 10, dtype=torch.float64).requires_grad_()
    dL_dU = torch.from_numpy(np.random.default_rng(2).standard_normal((12, 6)))
    polar(W, 0.3, eps_mode="relative").backward(dL_dU)
    assert abs((W.grad * W).sum().item()) <= 1e-12


# Batches of W


def batch_of_W(dtype):
    """Six, one of them so ill-conditioned that the Gram matrix does not do for it."""
    conditions = [1, 10, 1e2, 1e3, 1e4, 1e6]
    W = torch.stack([with_condition(8, 3, c, scale=10.0, dtype=dtype) for c in conditions])
    return W.reshape(2, 3, 8, 3)


@both_ways
@pytest.mark.parametrize("eps_mode", MODES)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("mapped", [False, True], ids=["batched", "vmap"])
def test_batch_is_a_loop(dtype, eps_mode, mapped):
    W = batch_of_W(dtype).requires_grad_()
    dL_dU = torch.from_numpy(np.random.default_rng(2).standard_normal(W.shape)).to(dtype)

    def one(W):
        return polar(W, eps_mode=eps_mode)

    U = torch.func.vmap(torch.func.vmap(one))(W) if mapped else one(W)
    (gradient,) = torch.autograd.grad(U, W, dL_dU)
    tolerance = 1e-6 if dtype == torch.float32 else 1e-10
    for index in np.ndindex(2, 3):
        alone = W[index].detach().requires_grad_()
        U_alone = one(alone)
        (gradient_alone,) = torch.autograd.grad(U_alone, alone, dL_dU[index])
        assert max_error(U[index], U_alone.detach().double().numpy()) <= tolerance
        assert relative_error(gradient[index], gradient_alone.double().numpy()) <= tolerance


@both_ways
def test_gradient_of_each_sample_by_vmap():
    W = batch_of_W(torch.float64)[0]
    dL_dU = torch.from_numpy(np.random.default_rng(2).standard_normal(W.shape))
    gradients = torch.func.vmap(torch.func.grad(lambda W, C: (polar(W) * C).sum()))(W, dL_dU)
    for gradient, V, C in zip(gradients, W, dL_dU, strict=True):
        assert relative_error(gradient, expected_gradient(V, C, "absolute")) <= 1e-9


@both_ways
def test_empty_batch():
    W = torch.empty(0, 5, 3, requires_grad=True)
    U = polar(W)
    U.sum().backward()
    assert U.shape == W.grad.shape == (0, 5, 3)


# Properties

examples = settings(deadline=None, max_examples=40)
seeds = st.integers(0, 2**32 - 2)


@st.composite
def matrices(draw):
    """A float64 W of any rank and some shape, with its singular values."""
    q = draw(st.integers(1, 5))
    p = draw(st.integers(q, 8))
    sigma = draw(st.lists(st.just(0.0) | st.floats(1e-3, 1e2), min_size=q, max_size=q))
    return with_singular_values(p, sigma, draw(seeds)), np.sort(sigma)[::-1]


@examples
@given(matrices(), st.floats(1e-3, 10))
def test_singular_values(case, eps):
    """σ / sqrt(σ² + ε²): U is orthonormal up to that, and always a contraction."""
    W, sigma = case
    U = polar(torch.from_numpy(W), eps).numpy()
    actual = np.linalg.svd(U, compute_uv=False)
    np.testing.assert_allclose(actual, sigma / np.sqrt(sigma**2 + eps**2), atol=1e-9)


@examples
@given(matrices(), st.floats(1e-3, 10))
def test_singular_values_relative(case, eps):
    W, sigma = case
    if not sigma.any():
        return
    U = polar(torch.from_numpy(W), eps, eps_mode="relative").numpy()
    actual = np.linalg.svd(U, compute_uv=False)
    expected = sigma / np.sqrt(sigma**2 + eps**2 * np.mean(sigma**2))
    np.testing.assert_allclose(actual, expected, atol=1e-9)


@examples
@given(matrices())
def test_gram_matrices_commute_and_WtU_is_symmetric(case):
    """UᵀU is a function of WᵀW; and WᵀU is positive semidefinite, as a polar factor's has to be."""
    W, _ = case
    U = polar(torch.from_numpy(W), 0.1).numpy()
    A, B = U.T @ U, W.T @ W
    scale = 1 + np.linalg.norm(B)
    np.testing.assert_allclose(A @ B, B @ A, atol=1e-11 * scale)
    np.testing.assert_allclose(W.T @ U, U.T @ W, atol=1e-11 * scale)
    assert np.linalg.eigvalsh(W.T @ U).min() >= -1e-11 * scale


@examples
@given(matrices(), seeds, st.sampled_from(MODES))
def test_rotations_pass_through(case, seed, eps_mode):
    """polar(P W Qᵀ) = P polar(W) Qᵀ for orthogonal P and Q."""
    W, sigma = case
    if not sigma.any():
        return
    P, Q = orthonormal(len(W), len(W), seed), orthonormal(W.shape[1], W.shape[1], seed + 1)
    U = polar(torch.from_numpy(W), 0.01, eps_mode=eps_mode).numpy()
    turned = polar(torch.from_numpy(P @ W @ Q.T), 0.01, eps_mode=eps_mode).numpy()
    np.testing.assert_allclose(turned, P @ U @ Q.T, atol=1e-9)


@examples
@given(matrices(), st.floats(1e-6, 1e6), st.sampled_from([1, -1]))
def test_relative_eps_makes_scale_irrelevant(case, c, sign):
    W, sigma = case
    if not sigma.any():
        return
    U = polar(torch.from_numpy(W), 0.01, eps_mode="relative")
    scaled = polar(torch.from_numpy(sign * c * W), 0.01, eps_mode="relative")
    torch.testing.assert_close(scaled, sign * U, rtol=0, atol=1e-9)


@examples
@given(matrices(), st.floats(1e-2, 1e2))
def test_absolute_eps_is_in_units_of_W(case, c):
    W, _ = case
    torch.testing.assert_close(
        polar(torch.from_numpy(c * W), c * 0.1), polar(torch.from_numpy(W), 0.1), rtol=0, atol=1e-9
    )


@both_ways
def test_polar_of_U_is_U():
    """For orthonormal W; and the paper's ε is what keeps it from being exact."""
    W = torch.from_numpy(orthonormal(12, 6))
    torch.testing.assert_close(polar(W, 1e-9), W, rtol=0, atol=1e-12)
    torch.testing.assert_close(polar(W), W / (1 + 1e-6) ** 0.5, rtol=0, atol=1e-12)


# NaN propagates


def run_with_gradient(W, **options):
    W = W.clone().requires_grad_()
    U = polar(W, **options)
    return U.detach(), *torch.autograd.grad(U.sum(), W)


IMPOSSIBLE = {
    "NaN": lambda W: W.index_put(
        (torch.tensor(-1), torch.tensor(-1)), torch.tensor(torch.nan).to(W)
    ),
    "infinity": lambda W: W.index_put(
        (torch.tensor(0), torch.tensor(0)), torch.tensor(torch.inf).to(W)
    ),
    "all NaN": lambda W: torch.full_like(W, torch.nan),
}


@pytest.mark.parametrize("name", ["kernels", "torch", "matmul-only"])
@pytest.mark.parametrize("eps_mode", MODES)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
@pytest.mark.parametrize("size", [(3, 1), (3, 2), (9, 8), (80, 70), (300, 260)], ids=str)
@pytest.mark.parametrize("kind", IMPOSSIBLE)
def test_nan_propagates(kind, size, dtype, eps_mode, name):
    with implementation(name):
        U, grad = run_with_gradient(
            IMPOSSIBLE[kind](torch.randn(size).to(dtype)), eps_mode=eps_mode
        )
    assert U.isnan().all()
    assert grad.isnan().all()


@both_ways
@pytest.mark.parametrize("condition", [10, 1e7])
def test_one_impossible_W_of_a_batch_leaves_the_others_alone(condition):
    W = torch.stack([with_condition(5, 3, condition, scale=1e2) for _ in range(4)])
    expected = run_with_gradient(W)
    W[2, 0, 0] = float("nan")
    found = run_with_gradient(W)
    for ours, theirs in zip(found, expected, strict=True):
        assert ours[2].isnan().all()
        others = [0, 1, 3]
        torch.testing.assert_close(ours[others], theirs[others], rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("kind", [TensorProjection, TransposeTensorProjection])
def test_a_layer_propagates_nan(kind, training):
    shapes = (6, 5, 4), (3, 2, 1)
    layer = kind(*(shapes if kind is TensorProjection else shapes[::-1])).train(training)
    x = torch.randn(2, *layer.in_shape, requires_grad=True)
    layer(x)
    with torch.no_grad():
        layer.W2[1, 0] = float("nan")
        assert layer(x).isnan().all()
    layer(x).sum().backward()
    assert layer.W2.grad.isnan().all()
    assert x.grad.isnan().all()


@both_ways
def test_a_W_whose_square_overflows_is_nan():
    U, grad = run_with_gradient(torch.full((3, 2), 1e200, dtype=torch.float64))
    assert U.isnan().all()
    assert grad.isnan().all()


@both_ways
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32, torch.float64])
@pytest.mark.parametrize("size", [(3, 1), (4, 2), (2, 4, 2)], ids=str)
def test_a_zero_W_has_no_scale_for_a_relative_eps(size, dtype):
    U, grad = run_with_gradient(torch.zeros(size, dtype=dtype), eps_mode="relative")
    assert U.isnan().all()
    assert grad.isnan().all()


# Wrong inputs


@pytest.mark.parametrize("eps", [0, -1e-3, float("nan"), float("inf"), -float("inf")])
def test_eps_is_positive_and_finite(eps):
    with pytest.raises(ProjectionValueError, match=rf"eps > 0, got {eps}"):
        polar(torch.ones(3, 2), eps)


@pytest.mark.parametrize("eps", ["1e-3", True, torch.tensor(1e-3), (1e-3, 1e-3)])
def test_eps_is_a_number(eps):
    with pytest.raises(ProjectionTypeError, match=f"number, got {type(eps).__name__}"):
        polar(torch.ones(3, 2), eps)


def test_eps_mode_is_one_of_two():
    with pytest.raises(ProjectionValueError, match="'absolute' or 'relative', got 'other'"):
        polar(torch.ones(3, 2), eps_mode="other")


@pytest.mark.parametrize("shape", [(2, 3), (3,), (), (3, 0), (0, 0), (5, 2, 3)])
def test_W_is_tall(shape):
    with pytest.raises(ProjectionValueError, match="1 <= q <= p") as error:
        polar(torch.ones(shape))
    assert str(shape) in str(error.value)


@pytest.mark.parametrize("dtype", [torch.int64, torch.bool, torch.complex64])
def test_W_is_real_and_floating_point(dtype):
    with pytest.raises(ProjectionTypeError, match=f"W .*got {dtype}"):
        polar(torch.ones(3, 2, dtype=dtype))


def test_W_is_a_tensor():
    with pytest.raises(ProjectionTypeError, match=r"torch\.Tensor, got ndarray"):
        polar(np.ones((3, 2)))


@pytest.mark.parametrize("shape", [(6, 3), (2, 5, 6, 3)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_the_fake_implementations_match(shape, dtype):
    """Shapes and types of the custom ops, with torch's own check of them."""
    W, ops = torch.randn(shape, dtype=dtype), torch.ops.tensorprojection
    checks = ("test_schema", "test_faketensor")
    torch.library.opcheck(ops.polar.default, ([W], [1e-3], False, dtype), test_utils=checks)
    U, spectrum = ops.polar([W], [1e-3], False, dtype)
    given = ([W], [torch.ones_like(U)], [spectrum], [1e-3], False)
    torch.library.opcheck(ops.polar_backward.default, given, test_utils=checks)
