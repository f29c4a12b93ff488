"""project and back_project: the multilinear map of Eq. 1 and its transpose, Eq. 13.

Only the public functions are used, and NumPy's einsum in float64 is the reference: whatever way
the library takes through a tensor's memory, this is what has to come out.
"""

from string import ascii_lowercase, ascii_uppercase

import numpy as np
import pytest
import tensorly
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from threadpoolctl import threadpool_limits
from torch.autograd import gradcheck, gradgradcheck
from torch.utils._python_dispatch import TorchDispatchMode

from tensorprojection import ProjectionDeviceError, ProjectionTypeError, ProjectionValueError
from tensorprojection.functional import back_project, polar, project

# What torch itself warns of when forward mode is used for the first time.
pytestmark = pytest.mark.filterwarnings("ignore:`torch.jit.script` is deprecated")


@pytest.fixture(autouse=True, scope="module")
def one_thread():
    """Small tensors by the hundred: threads would mostly wait for one another."""
    with threadpool_limits(1):
        yield


# Each is a list of p×q by mode; None leaves a mode alone, with its size.
MAPS = {
    "order1": [(5, 3)],
    "order2": [(5, 3), (4, 2)],
    "order3": [(5, 3), (4, 2), (6, 3)],
    "order4": [(3, 2), (4, 2), (3, 1), (5, 2)],
    "order5": [(3, 2), (2, 1), (3, 2), (2, 2), (4, 3)],
    "first-alone": [3, (6, 2), (4, 3)],
    "middle-alone": [(5, 3), 4, (6, 2)],
    "last-alone": [(5, 3), (4, 2), 3],
    "only-first": [(5, 3), 4, 3],
    "only-middle": [3, (5, 2), 4],
    "only-last": [3, 4, (5, 2)],
    "none-at-all": [3, 4],
    "alternating": [(4, 2), 3, (4, 3), 2, (3, 1)],
    "size-1-modes": [(1, 1), (4, 2), 1, (3, 1)],
    "square": [(4, 4), (3, 3)],
}
BATCHES = {"no-batch": (), "one": (3,), "single": (1,), "several": (2, 1, 3)}


def problem(modes, batch=(), *, transposed=False, dtype=torch.float64, seed=0):
    """An input and U's; the side that the map reads is the larger one, or transposed the smaller.

    The U's are any matrices, not orthonormal ones: the map is linear in each of them.
    """
    rng = np.random.default_rng(seed)
    sizes = [(m, m) if isinstance(m, int) else m for m in modes]
    x = rng.standard_normal((*batch, *(size[1 if transposed else 0] for size in sizes)))
    Us = [None if isinstance(m, int) else rng.standard_normal(m) for m in modes]
    return (
        torch.from_numpy(x).to(dtype),
        [None if U is None else torch.from_numpy(U).to(dtype) for U in Us],
    )


def reference(x, Us, *, transposed=False):
    """The sum of the definition, over all modes at once, in float64."""
    inside, outside = ascii_lowercase[: len(Us)], ascii_uppercase[: len(Us)]
    operands, terms, result = [x.detach().double().numpy()], [f"...{inside}"], "..."
    for i, o, U in zip(inside, outside, Us, strict=True):
        if U is None:
            result += i
        else:
            operands.append(U.detach().double().numpy())
            terms.append(o + i if transposed else i + o)
            result += o
    return np.einsum(f"{','.join(terms)}->{result}", *operands, optimize=True)


def run(x, Us, *, transposed=False):
    return back_project(x, Us) if transposed else project(x, Us)


def assert_right(x, Us, *, transposed=False, tolerance=1e-12):
    """Shape, type and values of the result; and of the gradients, by the reference."""
    x = x.detach().requires_grad_()  # of the same strides
    Us = [None if U is None else U.detach().requires_grad_() for U in Us]
    z = run(x, Us, transposed=transposed)
    expected = reference(x, Us, transposed=transposed)
    assert z.dtype == x.dtype
    assert z.shape == expected.shape
    assert_near(z.detach(), expected, tolerance)

    dL_dz = torch.from_numpy(np.random.default_rng(9).standard_normal(z.shape)).to(z.dtype)
    present = [U for U in Us if U is not None]
    dL_dx, *dL_dUs = torch.autograd.grad(z, [x, *present], dL_dz, materialize_grads=True)
    assert_near(dL_dx, reference(dL_dz, Us, transposed=not transposed), tolerance)
    for k, dL_dU in zip([k for k, U in enumerate(Us) if U is not None], dL_dUs, strict=True):
        expected = reference_dL_dU(x, Us, k, dL_dz, transposed)
        assert dL_dU.dtype == Us[k].dtype
        assert_near(dL_dU, expected, tolerance)
    return z, dL_dx


def assert_near(got, expected, tolerance):
    """Equal up to rounding, relative to the largest entry: the sums of small ones cancel."""
    largest = np.abs(expected).max(initial=1.0)
    np.testing.assert_allclose(got.double(), expected, rtol=0, atol=tolerance * largest)


def reference_dL_dU(x, Us, k, dL_dz, transposed):
    """Project all modes but the k-th, and contract with ∂L/∂Z over all axes but that."""
    rest = torch.from_numpy(reference(x, [*Us[:k], None, *Us[k + 1 :]], transposed=transposed))
    axis = k - len(Us)
    a = rest.movedim(axis, -1).reshape(-1, rest.shape[axis])
    b = dL_dz.double().movedim(axis, -1).reshape(-1, dL_dz.shape[axis])
    return (b.mT @ a if transposed else a.mT @ b).numpy()


both_ways = pytest.mark.parametrize("transposed", [False, True], ids=["project", "back_project"])
all_maps = pytest.mark.parametrize("modes", MAPS.values(), ids=MAPS)
all_batches = pytest.mark.parametrize("batch", BATCHES.values(), ids=BATCHES)


# Values


@both_ways
@all_batches
@all_maps
def test_einsum(modes, batch, transposed):
    assert_right(*problem(modes, batch, transposed=transposed), transposed=transposed)


@both_ways
@pytest.mark.parametrize(
    ("modes", "batch"),
    [
        pytest.param([32, (12, 6), (12, 6)], (30,), id="oct-1"),
        pytest.param([(32, 20), (12, 6), (12, 6)], (30,), id="oct-2"),
        pytest.param([(1024, 64), 5, 5], (4,), id="chest"),
        pytest.param([128, (16, 8), (16, 8)], (5,), id="kvasir"),
        pytest.param([128, (16, 4), (16, 4)], (5,), id="kvasir-aggressive"),
        pytest.param([(300, 7)], (2, 65), id="features"),
        pytest.param([(40, 2), (50, 45), (7, 7)], (1,), id="uneven"),
    ],
)
def test_sizes_of_real_use(modes, batch, transposed):
    """Large enough for any choice by size to show: the paper's layers, and some others."""
    x, Us = problem(modes, batch, transposed=transposed)
    assert_right(x, Us, transposed=transposed, tolerance=1e-10)
    x, Us = x.float(), [None if U is None else U.float() for U in Us]
    z = run(x, Us, transposed=transposed)
    expected = reference(x, Us, transposed=transposed)
    assert z.dtype == torch.float32
    assert np.abs(z.double().numpy() - expected).max() <= 2e-6 * np.abs(expected).max()


@st.composite
def any_problem(draw):
    modes = draw(
        st.lists(
            st.integers(1, 5) | st.tuples(st.integers(1, 6), st.integers(1, 6)),
            min_size=1,
            max_size=5,
        )
    )
    batch = draw(st.lists(st.integers(0, 4), max_size=3).map(tuple))
    transposed = draw(st.booleans())
    x, Us = problem(modes, batch, transposed=transposed, seed=draw(st.integers(0, 1000)))
    # In memory the axes lie in any order.
    axes = draw(st.permutations(range(x.ndim)))
    x = x.permute(axes).contiguous().permute(*np.argsort(axes).tolist())
    return x, Us, transposed


@settings(deadline=None, max_examples=150)
@given(any_problem())
def test_any_shape_any_memory_order(case):
    x, Us, transposed = case
    assert_right(x, Us, transposed=transposed)


@all_maps
@pytest.mark.usefixtures("tensorly_numpy")
def test_tensorly(modes):
    x, Us = problem(modes)
    present = [(k, U.numpy()) for k, U in enumerate(Us) if U is not None]
    if not present:
        present = [(0, np.eye(len(x)))]
    axes, matrices = zip(*present, strict=True)
    z = tensorly.tenalg.multi_mode_dot(x.numpy(), [U.T for U in matrices], axes)
    np.testing.assert_allclose(project(x, Us), z, rtol=1e-12, atol=1e-12)
    back = tensorly.tenalg.multi_mode_dot(z, matrices, axes)
    np.testing.assert_allclose(back_project(torch.from_numpy(z), Us), back, rtol=1e-12, atol=1e-12)


def test_back_project_is_a_right_inverse_for_orthonormal_U():
    z, Us = problem(MAPS["middle-alone"], (3,), transposed=True)
    Us = [None if U is None else torch.linalg.qr(U)[0] for U in Us]
    torch.testing.assert_close(project(back_project(z, Us), Us), z)


@both_ways
def test_nan_stays_in_its_sample(transposed):
    x, Us = problem(MAPS["order3"], (4,), transposed=transposed)
    clean = run(x, Us, transposed=transposed)
    x[1, 0, 0, 0], x[2, 0, 0, 0] = float("nan"), float("inf")
    z = run(x, Us, transposed=transposed)
    assert torch.isnan(z[1]).all()
    assert not torch.isfinite(z[2]).any()
    torch.testing.assert_close(z[[0, 3]], clean[[0, 3]])


@both_ways
def test_inputs_are_left_as_they_were(transposed):
    x, Us = problem(MAPS["first-alone"], (3,), transposed=transposed)
    before = [t.clone() for t in (x, *Us[1:])]
    run(x.requires_grad_(), Us, transposed=transposed).sum().backward()
    for tensor, kept in zip((x, *Us[1:]), before, strict=True):
        assert torch.equal(tensor, kept)


# Empty and small


@both_ways
@pytest.mark.parametrize("batch", [(0,), (3, 0), (0, 2)], ids=str)
@all_maps
def test_no_samples(modes, batch, transposed):
    """The gradient of U is zero then, not missing."""
    x, Us = problem(modes, batch, transposed=transposed)
    z, dL_dx = assert_right(x, Us, transposed=transposed)
    assert z.numel() == 0
    assert dL_dx.shape == x.shape


@both_ways
def test_no_samples_channels_last(transposed):
    x, Us = problem([5, (4, 2), (4, 2)], (0,), transposed=transposed)
    assert_right(x.to(memory_format=torch.channels_last), Us, transposed=transposed)


def test_a_vector():
    x, U = torch.tensor([1.0, 2.0, 3.0]), torch.tensor([[1.0], [0.0], [2.0]])
    assert torch.equal(project(x, [U]), torch.tensor([7.0]))
    assert torch.equal(back_project(torch.tensor([7.0]), [U]), torch.tensor([7.0, 0.0, 14.0]))


# Derivatives


def differentiable_problem(modes, batch, transposed):
    x, Us = problem(modes, batch, transposed=transposed)
    present = [U.requires_grad_() for U in Us if U is not None]

    def function(x, *present):
        rest = iter(present)
        return run(x, [None if U is None else next(rest) for U in Us], transposed=transposed)

    return function, (x.requires_grad_(), *present)


SMALL_MAPS = {
    "order1": [(3, 2)],
    "order2": [(3, 2), (2, 1)],
    "order3": [(3, 2), (2, 1), (3, 2)],
    "order4": [(2, 1), (2, 2), (2, 1), (3, 2)],
    "first-alone": [2, (3, 2), (3, 1)],
    "middle-alone": [(3, 2), 2, (3, 1)],
    "last-alone": [(3, 2), (3, 1), 2],
    "none-at-all": [2, 2],
}
small_maps = pytest.mark.parametrize("modes", SMALL_MAPS.values(), ids=SMALL_MAPS)


@both_ways
@small_maps
@pytest.mark.parametrize("batch", [(), (2,), (2, 1)], ids=str)
def test_gradcheck(modes, batch, transposed):
    function, inputs = differentiable_problem(modes, batch, transposed)
    assert gradcheck(
        function,
        inputs,
        check_forward_ad=True,
        check_batched_grad=True,
        check_batched_forward_grad=True,
        atol=1e-7,
        rtol=1e-7,
    )


@both_ways
@pytest.mark.parametrize(
    "modes", [SMALL_MAPS[k] for k in SMALL_MAPS if k != "none-at-all"], ids=lambda modes: str(modes)
)
def test_gradgradcheck(modes, transposed):
    function, inputs = differentiable_problem(modes, (2,), transposed)
    assert gradgradcheck(function, inputs, check_fwd_over_rev=True, atol=1e-7, rtol=1e-7)


@both_ways
@pytest.mark.parametrize("wanted", range(4))
def test_only_the_gradient_that_is_asked_for(wanted, transposed):
    """Of x alone, or of one U alone: the same as with all of them."""
    x, Us = problem(MAPS["order3"], (3,), transposed=transposed)
    tensors = [x, *Us]
    everything = [t.detach().requires_grad_() for t in tensors]
    z = run(everything[0], everything[1:], transposed=transposed)
    dL_dz = torch.ones_like(z) + z.detach()
    expected = torch.autograd.grad(z, everything, dL_dz)[wanted]
    alone = [t.detach().requires_grad_(k == wanted) for k, t in enumerate(tensors)]
    z = run(alone[0], alone[1:], transposed=transposed)
    torch.testing.assert_close(torch.autograd.grad(z, alone[wanted], dL_dz)[0], expected)


@both_ways
def test_one_U_in_two_modes(transposed):
    """Its gradient is the sum of both modes'."""
    x, (U, _) = problem([(4, 2), (4, 2)], (3,), transposed=transposed)
    shared = U.clone().requires_grad_()
    twice = [U.clone().requires_grad_(), U.clone().requires_grad_()]
    run(x, [shared, shared], transposed=transposed).square().sum().backward()
    run(x, twice, transposed=transposed).square().sum().backward()
    torch.testing.assert_close(shared.grad, twice[0].grad + twice[1].grad)


@both_ways
def test_backward_twice(transposed):
    x, Us = problem(MAPS["order3"], (2,), transposed=transposed)
    x.requires_grad_()
    z = run(x, Us, transposed=transposed).square().sum()
    (first,) = torch.autograd.grad(z, x, retain_graph=True)
    (second,) = torch.autograd.grad(z, x)
    assert torch.equal(first, second)


@both_ways
def test_through_polar(transposed):
    """As a layer does it: W -> U -> Z."""
    x, Ws = problem([(4, 2), 2, (3, 2)], (2,), transposed=transposed)

    def function(x, W1, W3):
        return run(x, [polar(W1, 0.1), None, polar(W3, 0.1)], transposed=transposed)

    inputs = [t.requires_grad_() for t in (x, Ws[0], Ws[2])]
    assert gradcheck(function, inputs, check_forward_ad=True)
    assert gradgradcheck(function, inputs)


# torch.func


@both_ways
@pytest.mark.parametrize("in_dim", [0, 1, -1])
def test_vmap_over_x(in_dim, transposed):
    x, Us = problem(MAPS["middle-alone"], (3, 2), transposed=transposed)
    moved = x.movedim(0, in_dim)
    z = torch.func.vmap(lambda x: run(x, Us, transposed=transposed), in_dims=in_dim)(moved)
    torch.testing.assert_close(z, run(x, Us, transposed=transposed))


@both_ways
@pytest.mark.parametrize("x_too", [False, True], ids=["same-x", "own-x"])
def test_vmap_over_U(x_too, transposed):
    """An ensemble: one set of U's for each."""
    members = [problem(MAPS["middle-alone"], (2,), transposed=transposed, seed=s) for s in range(3)]
    U1, U3 = (torch.stack([Us[k] for _, Us in members]) for k in (0, 2))
    xs = torch.stack([x for x, _ in members])

    def function(x, U1, U3):
        return run(x, [U1, None, U3], transposed=transposed)

    if x_too:
        z = torch.func.vmap(function)(xs, U1, U3)
    else:
        z = torch.func.vmap(function, in_dims=(None, 0, 0))(xs[0], U1, U3)
    for i, (x, Us) in enumerate(members):
        expected = run(x if x_too else xs[0], Us, transposed=transposed)
        torch.testing.assert_close(z[i], expected)


@both_ways
def test_vmap_over_one_U_of_two(transposed):
    x, (U1, U2) = problem(MAPS["order2"], (3,), transposed=transposed)
    U2s = torch.stack([U2, 2 * U2, -U2])
    z = torch.func.vmap(lambda U2: run(x, [U1, U2], transposed=transposed))(U2s)
    one = run(x, [U1, U2], transposed=transposed)
    torch.testing.assert_close(z, torch.stack([one, 2 * one, -one]))


@both_ways
def test_gradients_by_sample(transposed):
    """vmap of grad: ∂L/∂U of each sample; they add up to that of the batch."""
    x, Us = problem(MAPS["order3"], (4,), transposed=transposed)

    def loss(Us, x):
        return run(x, Us, transposed=transposed).square().sum()

    by_sample = torch.func.vmap(torch.func.grad(loss), in_dims=(None, 0))(Us, x)
    whole = torch.func.grad(loss)(Us, x)
    for each, total in zip(by_sample, whole, strict=True):
        assert each.shape == (4, *total.shape)
        torch.testing.assert_close(each.sum(0), total)


@both_ways
def test_jvp(transposed):
    """The map is linear in x and in each U, so its derivative is a sum of such maps."""
    x, Us = problem(MAPS["order2"], (3,), transposed=transposed)
    dx, dUs = problem(MAPS["order2"], (3,), transposed=transposed, seed=1)

    def function(x, *Us):
        return run(x, list(Us), transposed=transposed)

    z, dz = torch.func.jvp(function, (x, *Us), (dx, *dUs))
    torch.testing.assert_close(z, function(x, *Us))
    expected = function(dx, *Us) + function(x, dUs[0], Us[1]) + function(x, Us[0], dUs[1])
    torch.testing.assert_close(dz, expected)


@both_ways
def test_jvp_of_one_argument(transposed):
    x, Us = problem(MAPS["order2"], (3,), transposed=transposed)
    dx, dUs = problem(MAPS["order2"], (3,), transposed=transposed, seed=1)
    _, dz = torch.func.jvp(lambda x: run(x, Us, transposed=transposed), (x,), (dx,))
    torch.testing.assert_close(dz, run(dx, Us, transposed=transposed))
    _, dz = torch.func.jvp(lambda U: run(x, [Us[0], U], transposed=transposed), (Us[1],), (dUs[1],))
    torch.testing.assert_close(dz, run(x, [Us[0], dUs[1]], transposed=transposed))


@both_ways
def test_jacobians_agree(transposed):
    x, Us = problem(MAPS["order2"], (2,), transposed=transposed)

    def function(U):
        return run(x, [U, Us[1]], transposed=transposed)

    torch.testing.assert_close(
        torch.func.jacrev(function)(Us[0]), torch.func.jacfwd(function)(Us[0])
    )


@both_ways
def test_hessian(transposed):
    """Quadratic in U: the Hessian of ‖Z‖² is constant, and gives the value back."""
    x, (U,) = problem(MAPS["order1"], (3,), transposed=transposed)

    def loss(U):
        return run(x, [U], transposed=transposed).square().sum()

    hessian = torch.func.hessian(loss)(U)
    torch.testing.assert_close(torch.einsum("ij,ijkl,kl->", U, hessian, U) / 2, loss(U))


# Memory formats


FORMATS = {
    "channels_last": (
        torch.channels_last,
        {
            "spatial": [5, (6, 3), (4, 2)],
            "channels": [(6, 4), 3, 5],
            "all": [(6, 4), (5, 2), (4, 3)],
            "one-axis": [5, 6, (4, 2)],
        },
    ),
    "channels_last_3d": (
        torch.channels_last_3d,
        {
            "spatial": [5, (4, 2), (6, 3), (4, 2)],
            "channels": [(6, 4), 3, 2, 5],
            "all": [(6, 4), (3, 2), (4, 2), (5, 3)],
            "one-axis": [5, 3, (6, 2), 4],
        },
    ),
}
formats = pytest.mark.parametrize(
    ("memory_format", "modes"),
    [
        pytest.param(memory_format, modes, id=f"{name}-{case}")
        for name, (memory_format, cases) in FORMATS.items()
        for case, modes in cases.items()
    ],
)


def assert_format(tensor, memory_format):
    assert tensor.is_contiguous(memory_format=memory_format), tensor.stride()
    assert not tensor.is_contiguous(), "the shape does not tell the formats apart"


@both_ways
@formats
def test_memory_format_is_kept(memory_format, modes, transposed):
    x, Us = problem(modes, (3,), transposed=transposed)
    z, _ = assert_right(x.to(memory_format=memory_format), Us, transposed=transposed)
    assert_format(z, memory_format)


@both_ways
@formats
@pytest.mark.parametrize("dL_dz_is", ["of-the-format", "contiguous", "expanded"])
def test_memory_format_of_the_gradient(memory_format, modes, transposed, dL_dz_is):
    """That of x, whatever the gradient of z comes in: a Flatten behind the layer makes it
    contiguous, a sum expands one number. U's gradient is asked for too, as in training.
    """
    x, Us = problem(modes, (3,), transposed=transposed)
    x = x.to(memory_format=memory_format).requires_grad_()
    present = [U.requires_grad_() for U in Us if U is not None]
    z = run(x, Us, transposed=transposed)
    dL_dz = torch.from_numpy(np.random.default_rng(9).standard_normal(z.shape))
    if dL_dz_is == "of-the-format":
        dL_dz = dL_dz.to(memory_format=memory_format)
    elif dL_dz_is == "expanded":
        dL_dz = torch.tensor(1.0, dtype=torch.float64).expand(z.shape)
    dL_dx = torch.autograd.grad(z, [x, *present], dL_dz)[0]
    np.testing.assert_allclose(
        dL_dx, reference(dL_dz, Us, transposed=not transposed), rtol=1e-12, atol=1e-12
    )
    assert_format(dL_dx, memory_format)


@both_ways
@all_maps
def test_contiguous_stays_contiguous(modes, transposed):
    """In training too, where U's gradient is asked for as well."""
    x, Us = problem(modes, (3,), transposed=transposed)
    z, dL_dx = assert_right(x, Us, transposed=transposed)
    assert z.is_contiguous()
    assert dL_dx.is_contiguous()


class Copies(TorchDispatchMode):
    """Notes every copy of a tensor: the memory it comes from, and the memory it goes to."""

    def __init__(self):
        super().__init__()
        self.sources, self.targets = set(), set()
        self.alive = []  # so that no memory is used twice

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        out = function(*args, **(kwargs or {}))
        self.alive.append((args, out))
        if function.overloadpacket in (torch.ops.aten.clone, torch.ops.aten._to_copy):
            self.sources.add(memory(args[0]))
            self.targets.add(memory(out))
        if function.overloadpacket is torch.ops.aten.copy_:
            self.sources.add(memory(args[1]))
            self.targets.add(memory(args[0]))
        return out


def memory(tensor):
    return tensor.untyped_storage().data_ptr()


@pytest.mark.parametrize(
    "memory_format", [torch.contiguous_format, torch.channels_last], ids=["nchw", "nhwc"]
)
@pytest.mark.parametrize(
    "modes",
    [[8, (6, 3), (6, 3)], [(8, 4), (6, 3), (6, 3)], [(8, 4), 6, 6]],
    ids=["spatial", "all", "channels"],
)
@pytest.mark.parametrize("training", [False, True], ids=["inference", "training"])
class TestNoCopy:
    """In the format it comes in, x is read where it lies, and its gradient is written so."""

    def problem(self, modes, memory_format, training):
        x, Us = problem(modes, (5,))
        Us = [None if U is None else U.requires_grad_(training) for U in Us]
        return x.to(memory_format=memory_format).requires_grad_(), Us

    def test_of_the_input(self, modes, memory_format, training):
        x, Us = self.problem(modes, memory_format, training)
        with Copies() as copies:
            project(x, Us)
        assert memory(x) not in copies.sources

    def test_of_its_gradient(self, modes, memory_format, training):
        x, Us = self.problem(modes, memory_format, training)
        z = project(x, Us)
        dL_dz = torch.ones_like(z)
        with Copies() as copies:
            (dL_dx,) = torch.autograd.grad(z, x, dL_dz)
        assert memory(dL_dx) not in copies.targets


def test_a_copy_would_be_noticed():
    x = torch.ones(2, 3)
    with Copies() as copies:
        y = x.mT.contiguous()
    assert copies.sources == {memory(x)}
    assert copies.targets == {memory(y)}


# Other memory layouts


def noncontiguous(x, kind):
    """The same values, laid out otherwise; or for an expanded one, values of its own."""
    if kind == "sliced":
        base = torch.zeros([2 * n for n in x.shape], dtype=x.dtype)
        view = base[tuple(slice(None, None, 2) for _ in x.shape)]
        return view.copy_(x)
    if kind == "cropped":
        base = torch.zeros([n + 3 for n in x.shape], dtype=x.dtype)
        view = base[tuple(slice(1, n + 1) for n in x.shape)]
        return view.copy_(x)
    if kind == "reversed-axes":
        return x.permute(*reversed(range(x.ndim))).contiguous().permute(*reversed(range(x.ndim)))
    if kind == "batch-innermost":
        return x.movedim(0, -1).contiguous().movedim(-1, 0)
    if kind == "expanded-batch":
        return x[:1].expand(x.shape)
    if kind == "expanded-mode":
        return x[:, :, :1].expand(x.shape)
    if kind == "all-expanded":
        return x.flatten()[0].expand(x.shape)
    raise ValueError(kind)


LAYOUTS = [
    "sliced",
    "cropped",
    "reversed-axes",
    "batch-innermost",
    "expanded-batch",
    "expanded-mode",
    "all-expanded",
]


@both_ways
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("name", ["order3", "first-alone", "middle-alone", "last-alone"])
def test_input_of_any_layout(name, layout, transposed):
    x, Us = problem(MAPS[name], (3,), transposed=transposed)
    other = noncontiguous(x, layout)
    assert not other.is_contiguous()
    assert_right(other, Us, transposed=transposed)


@both_ways
@pytest.mark.parametrize("layout", ["sliced", "reversed-axes", "expanded-batch"])
def test_two_batch_axes_of_any_layout(layout, transposed):
    x, Us = problem(MAPS["order2"], (2, 3), transposed=transposed)
    assert_right(noncontiguous(x, layout), Us, transposed=transposed)


@both_ways
@pytest.mark.parametrize("layout", LAYOUTS)
def test_gradient_of_z_of_any_layout(layout, transposed):
    x, Us = problem(MAPS["order3"], (3,), transposed=transposed)
    x.requires_grad_()
    for U in Us:
        U.requires_grad_()
    z = run(x, Us, transposed=transposed)
    dL_dz = noncontiguous(torch.ones_like(z) + z.detach().square(), layout)
    dL_dx, *dL_dUs = torch.autograd.grad(z, [x, *Us], dL_dz)
    np.testing.assert_allclose(
        dL_dx, reference(dL_dz, Us, transposed=not transposed), rtol=1e-11, atol=1e-11
    )
    for k, dL_dU in enumerate(dL_dUs):
        expected = reference_dL_dU(x, Us, k, dL_dz, transposed)
        np.testing.assert_allclose(dL_dU, expected, rtol=1e-11, atol=1e-11)


@both_ways
def test_U_of_any_layout(transposed):
    x, (U1, U2, U3) = problem(MAPS["order3"], (3,), transposed=transposed)
    wide = torch.zeros(U2.shape[0], 2 * U2.shape[1], dtype=U2.dtype)[:, ::2].copy_(U2)
    Us = [U1.mT.contiguous().mT, wide, U3[:, :1].expand(U3.shape)]
    assert not any(U.is_contiguous() for U in Us)
    assert_right(x, Us, transposed=transposed)


# Types


@both_ways
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_the_type_is_that_of_x(dtype, transposed):
    """And U is cast to it; the gradient of U has U's own."""
    x, Us = problem(MAPS["order3"], (3,), transposed=transposed)
    x = x.to(dtype)
    Us = [U.requires_grad_() for U in Us]
    z = run(x, Us, transposed=transposed)
    assert z.dtype == dtype
    expected = reference(x, Us, transposed=transposed)
    error = np.abs(z.detach().double().numpy() - expected).max()
    assert error <= 8 * torch.finfo(dtype).eps * np.abs(expected).max()
    z.sum().backward()
    assert all(U.grad.dtype == torch.float64 for U in Us)


@both_ways
def test_autocast(transposed):
    x, Us = problem(MAPS["order3"], (3,), transposed=transposed, dtype=torch.float32)
    x.requires_grad_()
    with torch.autocast("cpu", torch.bfloat16):
        z = run(x, Us, transposed=transposed)
    assert z.dtype == torch.bfloat16
    expected = reference(x, Us, transposed=transposed)
    error = np.abs(z.detach().double().numpy() - expected).max()
    assert error <= 8 * torch.finfo(torch.bfloat16).eps * np.abs(expected).max()
    z.sum().backward()
    assert x.grad.dtype == torch.float32


@both_ways
def test_autocast_leaves_float64_alone(transposed):
    x, Us = problem(MAPS["order3"], (3,), transposed=transposed)
    with torch.autocast("cpu", torch.bfloat16):
        z = run(x, Us, transposed=transposed)
    assert z.dtype == torch.float64
    np.testing.assert_allclose(z, reference(x, Us, transposed=transposed), rtol=1e-12, atol=1e-12)


# Wrong inputs


@both_ways
@pytest.mark.parametrize("shape", [(), (4,)], ids=str)
def test_at_least_one_axis_a_mode(shape, transposed):
    with pytest.raises(ProjectionValueError, match="at least 2 axes") as error:
        run(torch.zeros(shape), [None, torch.zeros(4, 4)], transposed=transposed)
    assert str(shape) in str(error.value)


@both_ways
def test_at_least_one_mode(transposed):
    with pytest.raises(ProjectionValueError, match=r"at least 1 axes.*0 matrices"):
        run(torch.zeros(3), [], transposed=transposed)


@pytest.mark.parametrize("shape", [(3, 6), (5, 2), (6,), (1, 6, 3)], ids=str)
def test_U_has_the_inputs_size(shape):
    x = torch.zeros(7, 4, 6)
    with pytest.raises(ProjectionValueError, match=r"U2 of shape \(6, q\)") as error:
        project(x, [torch.zeros(4, 2), torch.zeros(shape)])
    assert str(shape) in str(error.value)
    assert "(7, 4, 6)" in str(error.value)


@pytest.mark.parametrize("shape", [(6, 3), (2, 5), (6,), (1, 3, 6)], ids=str)
def test_U_has_the_inputs_size_transposed(shape):
    x = torch.zeros(7, 4, 6)
    with pytest.raises(ProjectionValueError, match=r"U2 of shape \(p, 6\)") as error:
        back_project(x, [torch.zeros(5, 4), torch.zeros(shape)])
    assert str(shape) in str(error.value)


@both_ways
@pytest.mark.parametrize("dtype", [torch.int64, torch.bool, torch.complex64])
def test_real_and_floating_point(dtype, transposed):
    x, U = torch.zeros(3, 4), torch.zeros(4, 4)
    with pytest.raises(ProjectionTypeError, match=f"the input .*got {dtype}"):
        run(x.to(dtype), [U], transposed=transposed)
    with pytest.raises(ProjectionTypeError, match=f"U1 .*got {dtype}"):
        run(x, [U.to(dtype)], transposed=transposed)


@both_ways
def test_tensors_only(transposed):
    with pytest.raises(ProjectionTypeError, match=r"the input .*got ndarray"):
        run(np.zeros((3, 4)), [torch.zeros(4, 4)], transposed=transposed)
    with pytest.raises(ProjectionTypeError, match=r"U1 .*got ndarray"):
        run(torch.zeros(3, 4), [np.zeros((4, 4))], transposed=transposed)


@both_ways
def test_one_device(transposed):
    with pytest.raises(ProjectionDeviceError, match=r"on one device.*cpu.*U1 on meta"):
        run(torch.zeros(3, 4), [torch.zeros(4, 4, device="meta")], transposed=transposed)
