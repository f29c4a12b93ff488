"""U and its derivatives by products alone, as for accelerators, here on the CPU.

The oracle works on W's singular values in float64, so that it never squares the condition.
"""

import copy
import pickle

import numpy as np
import oracle
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from oracle import orthonormal, with_singular_values
from threadpoolctl import threadpool_limits
from torch.autograd import gradcheck, gradgradcheck

from tensorprojection import DivergedError
from tensorprojection.engine.device import (
    DeviceFlag,
    modes_gradients,
    modes_values,
    polar_by_products,
    polar_gradient_by_products,
)
from tensorprojection.engine.device import flag as flag_file
from tensorprojection.engine.device.lyapunov import shifts, solve
from tensorprojection.engine.device.modes import groups, in_stacks
from tensorprojection.engine.device.quintics import NEWTON, SMALLEST, best_quintic, quintics

# What torch itself warns of when forward mode is used for the first time.
pytestmark = pytest.mark.filterwarnings("ignore:`torch.jit.script` is deprecated")

MODES = ["absolute", "relative"]
DEFAULT_EPS = {"absolute": 1e-3, "relative": 1e-5}
CONDITIONS = [10.0**k for k in range(7)]
SCALES = [1e-3, 1, 1e3]
SIZES = [(12, 6), (32, 31), (20, 1), (64, 64), (256, 64)]

size_ids = [f"{p}x{q}" for p, q in SIZES]


@pytest.fixture(autouse=True, scope="module")
def one_thread():
    """Small matrices by the hundred: threads would mostly wait for one another."""
    with threadpool_limits(1):
        yield


def with_condition(p, q, condition, scale=1.0, dtype=torch.float32):
    sigma = scale * np.logspace(0, -np.log10(condition), q)
    return torch.from_numpy(with_singular_values(p, sigma)).to(dtype)


def polar(W, eps_mode="absolute", eps=None, dtype=None):
    eps = DEFAULT_EPS[eps_mode] if eps is None else eps
    return polar_by_products(W, eps, eps_mode == "relative", dtype or W.dtype)


def expected_U(W, eps_mode, eps=None):
    eps = DEFAULT_EPS[eps_mode] if eps is None else eps
    return oracle.polar_by_svd(W.detach().double().numpy(), eps, eps_mode)


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


def test_thirteen_quintics_take_all_numbers_to_one():
    x = np.geomspace(SMALLEST, 1, 100_001)
    for a, b, c in quintics():
        x = a * x + b * x**3 + c * x**5
    assert np.abs(x - 1).max() <= 1e-14


@pytest.mark.parametrize("steps", [3, 6])
def test_no_other_quintics_are_known_to_be_better(steps):
    """Newton's, which converge as fast at the end, are far behind; small changes are worse."""

    def worst(coefficients):
        x = np.geomspace(1e-3, 1, 20_001)
        for a, b, c in coefficients:
            x = a * x + b * x**3 + c * x**5
        return np.abs(x - 1).max()

    best = quintics(1e-3, steps)
    assert worst(best) < worst([NEWTON] * steps)
    for k in range(min(steps, 3)):
        for change in (0.999, 1.001):
            changed = [*best]
            changed[k] = tuple(change * number for number in best[k])
            assert worst(changed) > worst(best)


@pytest.mark.parametrize("low", [1e-6, 1e-2, 0.3, 0.9])
def test_the_error_of_the_best_quintic_alternates(low):
    """Four extremes of equal size and alternating sign: there is no better one (Chebyshev)."""
    step, error = best_quintic(low, 1.0)
    x = np.linspace(low, 1, 200_001)
    off = 1 - np.array([step.a * x + step.b * x**3 + step.c * x**5])[0]
    assert np.abs(off).max() == pytest.approx(error, rel=1e-6)
    signs = np.sign(off[np.abs(off) >= 0.999 * error])
    assert (np.diff(signs) != 0).sum() == 3


def test_shifts_are_the_best_for_their_interval():
    """The product's extremes are five, equal and alternating, as Chebyshev asks."""
    x = np.geomspace(SMALLEST, 1, 400_001)
    K = np.prod([(x - p) / (x + p) for p in shifts()], axis=0)
    largest = np.abs(K).max()
    assert largest <= 0.6
    signs = np.sign(K[np.abs(K) >= 0.999 * largest])
    assert (np.diff(signs) != 0).sum() == 4


def test_lyapunov():
    """Against the solution by entries in H's eigenbasis."""
    s = np.geomspace(SMALLEST, 1, 12)
    V = orthonormal(12, 12)
    C = draw((12, 12)).numpy()
    expected = V @ (V.T @ C @ V / np.add.outer(s, s)) @ V.T
    X = solve(torch.from_numpy(V * s @ V.T)[None], torch.from_numpy(C)[None])[0]
    assert relative_error(X, expected) <= 1e-8


# U and its gradient, before any rounding to float32: what the docs promise, by condition

U_LIMIT = {1e0: 2e-13, 1e1: 1e-10, 1e2: 1e-10, 1e3: 2e-10, 1e4: 3e-9, 1e5: 3e-8, 1e6: 3e-7}
GRADIENT_LIMIT = {1e0: 1e-11, 1e1: 1e-9, 1e2: 1e-9, 1e3: 1e-8, 1e4: 1e-7, 1e5: 1e-6, 1e6: 3e-6}


@pytest.mark.parametrize("eps_mode", MODES)
@pytest.mark.parametrize("scale", SCALES)
@pytest.mark.parametrize(("p", "q"), SIZES, ids=size_ids)
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


@pytest.mark.parametrize("eps_mode", MODES)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_types_lose_nothing_but_the_last_rounding(dtype, eps_mode):
    info = torch.finfo(dtype)
    D = draw((32, 20)).to(dtype)
    for condition in CONDITIONS:
        W = with_condition(32, 20, condition, dtype=dtype).requires_grad_()
        U = polar(W, eps_mode)
        expected = expected_U(W, eps_mode)
        half_step = 0.51 * np.maximum(info.eps * np.abs(expected), info.smallest_normal * info.eps)
        assert U.dtype == dtype
        assert (np.abs(U.detach().double().numpy() - expected) <= half_step).all(), condition
        (gradient,) = torch.autograd.grad(U, W, D)
        assert gradient.dtype == dtype
        if bool(gradient.isfinite().all()):  # float16 ends at 65504
            error = relative_error(gradient, expected_gradient(W, D, eps_mode))
            assert error <= info.eps / 2


@pytest.mark.parametrize("eps", [1e-6, 1e-2, 1.0, 50.0])
@pytest.mark.parametrize("eps_mode", MODES)
def test_any_eps(eps, eps_mode):
    W = with_condition(12, 6, 10, dtype=torch.float64)
    assert max_error(polar(W, eps_mode, eps), expected_U(W, eps_mode, eps)) <= 1e-9


@pytest.mark.parametrize(("p", "q"), [(12, 6), (128, 80)])
@pytest.mark.parametrize(
    ("scale", "eps_mode"),
    [(1e19, "absolute"), (1e19, "relative"), (1e-19, "relative"), (1e-19, "absolute")],
)
def test_huge_and_tiny(p, q, scale, eps_mode):
    W = (scale * draw((p, q), 1)).float().requires_grad_()
    D = draw((p, q)).float()
    U = polar(W, eps_mode)
    (gradient,) = torch.autograd.grad(U, W, D)
    expected = expected_U(W, eps_mode)
    assert max_error(U, expected) <= 2e-7 * np.abs(expected).max()
    assert relative_error(gradient, expected_gradient(W, D, eps_mode)) <= 1e-6


def test_zero_W_has_U_zero_and_gradient_one_over_eps():
    W = torch.zeros(4, 2, requires_grad=True)
    U = polar(W, eps=0.5)
    U.backward(torch.ones(4, 2))
    assert torch.equal(U, torch.zeros(4, 2))
    torch.testing.assert_close(W.grad, torch.full((4, 2), 2.0))


def test_orthonormal_W_is_its_own_U():
    W = torch.from_numpy(orthonormal(12, 6))
    torch.testing.assert_close(polar(W), W / (1 + 1e-6) ** 0.5, rtol=0, atol=1e-12)


@settings(deadline=None, max_examples=40)
@given(
    digits=st.floats(0, 300),
    dtype=st.sampled_from([torch.bfloat16, torch.float32, torch.float64]),
    eps_mode=st.sampled_from(MODES),
    size=st.sampled_from([(1, 1), (5, 2), (6, 6), (16, 5)]),
    scale=st.sampled_from([1e-15, 1.0, 1e15]),
)
def test_no_nan_at_any_condition(digits, dtype, eps_mode, size, scale):
    """Far beyond what the steps are made for, U is still a contraction and all is finite."""
    sigma = scale * np.logspace(0, -digits, size[1])
    W = torch.from_numpy(with_singular_values(size[0], sigma)).to(dtype).requires_grad_()
    U = polar(W, eps_mode)
    (gradient,) = torch.autograd.grad(U.sum(), W)
    assert torch.isfinite(gradient).all()
    assert np.linalg.norm(U.detach().double().numpy(), 2) <= 1 + 1e-9 + 4 * torch.finfo(dtype).eps


# Derivatives

KINDS = {
    "random": np.random.default_rng(3).standard_normal((5, 2)),
    "paper-start": 0.05 * np.random.default_rng(3).standard_normal((5, 2)),
    "orthonormal": orthonormal(4, 3),
    "repeated-singular-values": with_singular_values(4, [2.0, 1.0, 1.0]),
    "rank-deficient": with_singular_values(4, [2.0, 1.0, 0.0]),
    "zero-column": np.random.default_rng(3).standard_normal((4, 3)) * [1.0, 0.0, 1.0],
    "zero": np.zeros((4, 3)),
    "square": np.random.default_rng(3).standard_normal((3, 3)),
    "one-column": np.random.default_rng(3).standard_normal((4, 1)),
    "batch": np.random.default_rng(3).standard_normal((2, 3, 2)),
}
CASES = [
    (kind, eps_mode)
    for eps_mode in MODES
    for kind in KINDS
    if not (kind == "zero" and eps_mode == "relative")
]


@pytest.mark.parametrize(("kind", "eps_mode"), CASES)
def test_gradcheck(kind, eps_mode):
    W = torch.from_numpy(KINDS[kind]).requires_grad_()
    assert gradcheck(
        lambda W: polar(W, eps_mode, 0.1),
        W,
        check_forward_ad=True,
        check_batched_grad=True,
        check_batched_forward_grad=True,
        atol=1e-6,
        rtol=1e-6,
    )


@pytest.mark.parametrize(("kind", "eps_mode"), CASES)
def test_gradgradcheck(kind, eps_mode):
    W = torch.from_numpy(KINDS[kind]).requires_grad_()
    assert gradgradcheck(
        lambda W: polar(W, eps_mode, 0.1), W, check_fwd_over_rev=True, atol=1e-5, rtol=1e-5
    )


@pytest.mark.parametrize("eps_mode", MODES)
def test_third_derivative(eps_mode):
    W = torch.from_numpy(KINDS["random"]).requires_grad_()
    D = draw(W.shape)

    def gradient(W):
        return torch.autograd.grad(polar(W, eps_mode, 0.3), W, D, create_graph=True)[0]

    assert gradgradcheck(gradient, W, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("eps_mode", MODES)
@pytest.mark.parametrize("kind", ["random", "rank-deficient", "batch"])
def test_the_gradient_as_a_function_of_its_own(kind, eps_mode):
    W, relative = torch.from_numpy(KINDS[kind]).requires_grad_(), eps_mode == "relative"
    D = draw(W.shape).requires_grad_()
    (expected,) = torch.autograd.grad(polar(W, eps_mode, 0.1), W, D)
    found = polar_gradient_by_products(W, D, 0.1, relative)
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-12)
    assert gradcheck(lambda W, D: polar_gradient_by_products(W, D, 0.1, relative), (W, D))


@pytest.mark.parametrize("jacobian", [torch.func.jacrev, torch.func.jacfwd])
@pytest.mark.parametrize("kind", [k for k in KINDS if k != "batch"])
def test_jacobian(kind, jacobian):
    """dU/dW as the paper writes it, in Kronecker products."""
    W = KINDS[kind]
    actual = jacobian(lambda W: polar(W, eps=0.01))(torch.from_numpy(W)).numpy()
    actual = actual.reshape(*W.shape, W.size, order="F").reshape(W.size, W.size, order="F")
    expected = oracle.dU_dW(W, 0.01)
    assert np.abs(actual - expected).max() <= 1e-9 * np.abs(expected).max()


@pytest.mark.parametrize("eps_mode", MODES)
def test_torch_func(eps_mode):
    """grad, jvp and vmap agree with a loop and with one another."""
    W, D = draw((3, 6, 4), 1), draw((3, 6, 4))
    V = draw((3, 6, 4), 3)

    def loss(W, D):
        return (polar(W, eps_mode, 0.1) * D).sum()

    gradients = torch.func.vmap(torch.func.grad(loss))(W, D)
    for k in range(3):
        A = W[k].clone().requires_grad_()
        (alone,) = torch.autograd.grad(loss(A, D[k]), A)
        torch.testing.assert_close(gradients[k], alone, rtol=0, atol=1e-12)
    _, along = torch.func.jvp(lambda W: polar(W, eps_mode, 0.1), (W,), (V,))
    torch.testing.assert_close((along * D).sum(), (gradients * V).sum(), rtol=1e-12, atol=0)
    mapped = torch.func.vmap(lambda W: polar(W, eps_mode, 0.1), in_dims=2)(W.movedim(0, 2))
    torch.testing.assert_close(mapped, polar(W, eps_mode, 0.1), rtol=0, atol=1e-13)


@pytest.mark.parametrize("eps_mode", MODES)
def test_hessian(eps_mode):
    """Forward over reverse and reverse over reverse are one matrix, and symmetric."""
    W, D = draw((4, 3), 1), draw((4, 3))

    def loss(W):
        return (polar(W, eps_mode, 0.1) * D).sum()

    hessian = torch.func.hessian(loss)(W).reshape(12, 12)
    other = torch.func.jacrev(torch.func.jacrev(loss))(W).reshape(12, 12)
    torch.testing.assert_close(hessian, other, rtol=0, atol=1e-10)
    torch.testing.assert_close(hessian, hessian.T, rtol=0, atol=1e-10)


def test_empty_batch():
    W = torch.empty(0, 5, 3, requires_grad=True)
    U = polar(W)
    U.sum().backward()
    assert U.shape == W.grad.shape == (0, 5, 3)


# All modes of a layer

LAYERS = [
    [(32, 20), (12, 6), (12, 6)],
    [(16, 8), (16, 8)],
    [(7, 7), (5, 1), (9, 3), (1, 1)],
    [(300, 80), (16, 8), (300, 80), (15, 7)],
]


@pytest.mark.parametrize("eps_mode", MODES)
@pytest.mark.parametrize("shapes", LAYERS, ids=str)
def test_modes_together_are_the_modes_alone(shapes, eps_mode):
    """Zeros around a W change nothing, also not where every mode has an ε of its own."""
    relative = eps_mode == "relative"
    scales = [1e-3, 1e3, 1.0, 10.0]
    Ws = [(scales[k] * draw(shape, 4 + k)).float() for k, shape in enumerate(shapes)]
    Ds = [draw(shape, 8 + k) for k, shape in enumerate(shapes)]
    eps = [DEFAULT_EPS[eps_mode] * (k + 1) for k in range(len(shapes))]
    Us, found = modes_values(Ws, eps, relative, torch.float64)
    grads = modes_gradients(Ds, found, eps, relative, [torch.float64] * len(Ws))
    for W, D, e, U, grad in zip(Ws, Ds, eps, Us, grads, strict=True):
        assert U.is_contiguous()
        assert grad.is_contiguous()
        A = W.double().numpy()
        assert max_error(U, oracle.polar_by_svd(A, e, eps_mode)) <= 1e-10
        expected = oracle.polar_gradient(A, e, D.numpy(), eps_mode)
        # Of a 1 × 1 matrix and a relative ε it is zero, up to the rounding of D G.
        rounding = 1e-14 * np.linalg.norm(D) / np.linalg.norm(A)
        error = np.linalg.norm(grad.numpy() - expected)
        assert error <= 1e-8 * np.linalg.norm(expected) + rounding


def test_what_is_stacked():
    """Small W's all together; large ones with their equals; and none is filled up to a size that
    is large only because one W is tall and another wide."""
    assert [g.members for g in groups([(32, 20), (12, 6), (12, 6)])] == [(0, 1, 2)]
    assert [g.members for g in groups([(300, 80), (16, 8), (300, 80)])] == [(0, 2), (1,)]
    assert [g.members for g in groups([(4096, 2), (64, 64), (4096, 2)])] == [(0, 2), (1,)]
    assert in_stacks([(300, 80), (16, 8), (300, 80)], ["W1", "W2", "W3"]) == ["W1", "W3", "W2"]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64])
def test_types_of_modes(dtype):
    Ws = [torch.randn(6, 3).to(dtype), torch.randn(5, 2)]
    Us, found = modes_values(Ws, [1e-3, 1e-3], False, dtype)
    assert [U.dtype for U in Us] == [dtype, dtype]
    grads = modes_gradients(Us, found, [1e-3, 1e-3], False, [W.dtype for W in Ws])
    assert [g.dtype for g in grads] == [dtype, torch.float32]


# A W that has diverged


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), -float("inf")])
def test_diverged_W_is_named_at_the_next_step(bad):
    flag = DeviceFlag()
    Ws = [torch.randn(6, 3), torch.randn(5, 2)]
    for _ in range(3):
        flag.check()
        Us, found = modes_values(Ws, [1e-3, 1e-3], False, torch.float32)
        flag.put(["W1", "W2"], [f.size for f in found])
    Ws[1][0, 0] = bad
    flag.check()
    Us, found = modes_values(Ws, [1e-3, 1e-3], False, torch.float32)
    assert torch.isfinite(Us[0]).all(), "the other W of the stack is as it was"
    assert not torch.isfinite(Us[1]).any()
    flag.put(["W1", "W2"], [f.size for f in found])
    with pytest.raises(DivergedError, match="W2 contained NaN or infinity"):
        flag.check()


def test_relative_eps_needs_a_scale():
    flag = DeviceFlag()
    _, found = modes_values([torch.zeros(4, 2)], [1e-5], True, torch.float32)
    flag.put(["W7"], [f.size for f in found])
    with pytest.raises(DivergedError, match="W7 was all zeros"):
        flag.check()


def test_a_copy_that_is_on_its_way_is_not_overtaken():
    """`put` starts no second copy before the first has arrived; `check` does not wait for it."""

    class Slow:
        started, arrived = 0, False

        def start(self, norms):
            self.started += 1
            return self

        def ready(self):
            return self.arrived

        def numbers(self):
            return [1.0]

    transport = Slow()
    flag = DeviceFlag(transport)
    for _ in range(3):
        flag.check()
        flag.put(["W1"], [torch.ones(1)])
    assert transport.started == 1
    transport.arrived = True
    flag.check()
    flag.put(["W1"], [torch.ones(1)])
    assert transport.started == 2


def test_a_copy_without_a_wait_is_followed_by_an_event(monkeypatch):
    """What a GPU does, with stand-ins: copies that do not block, then an event that is asked."""
    order = []

    class Place:
        def copy_(self, norm, non_blocking):
            assert non_blocking
            order.append("copy")
            self.norm = norm

        def flatten(self):
            return self.norm.flatten()

    class Event:
        passed = False

        def __init__(self, device):
            assert device == torch.device("cpu")

        def record(self):
            order.append("event")

        def query(self):
            order.append("query")
            return Event.passed

    monkeypatch.setattr(flag_file, "_pinned_like", lambda norm: Place())
    monkeypatch.setattr(torch, "Event", Event)
    norms = [torch.ones(2, 1, 1), torch.full((1, 1, 1), float("nan"))]
    arrival = flag_file._OnItsWay(norms)
    assert order == ["copy", "copy", "event"]
    assert not arrival.ready()
    Event.passed = True
    assert arrival.ready()
    assert arrival.numbers()[:2] == [1.0, 1.0]
    assert np.isnan(arrival.numbers()[2])
    # Asking an event while a graph is captured would end the capture.
    monkeypatch.setattr(flag_file, "_is_capturing", lambda device: True)
    asked = order.count("query")
    assert not arrival.ready()
    assert order.count("query") == asked


def test_nothing_is_copied_while_a_graph_is_captured(monkeypatch):
    monkeypatch.setattr(flag_file, "_is_capturing", lambda device: True)
    flag = DeviceFlag()
    flag.put(["W1"], [torch.full((1,), float("nan"))])
    flag.check()


def test_nothing_is_noted_where_it_cannot_be():
    """A transport may have nothing to give."""

    class Captures:
        def start(self, norms):
            return None

    flag = DeviceFlag(Captures())
    flag.put(["W1"], [torch.full((1,), float("nan"))])
    flag.check()


@pytest.mark.parametrize("again", [copy.deepcopy, lambda f: pickle.loads(pickle.dumps(f))])
def test_a_copied_flag_starts_anew(again):
    flag = DeviceFlag()
    flag.put(["W1"], [torch.full((1,), float("nan"))])
    again(flag).check()
    with pytest.raises(DivergedError):
        flag.check()


# TF32 and its like


@pytest.mark.parametrize("precision", ["high", "medium"])
def test_the_precision_of_products_is_not_for_U(precision):
    """U is float64 throughout, so what a user allows for float32 products does not reach it."""
    W = with_condition(32, 20, 1e3)
    D = draw((32, 20)).float()

    def run():
        Us, found = modes_values([W], [1e-3], False, torch.float32)
        return *Us, *modes_gradients([D], found, [1e-3], False, [torch.float32])

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
