"""project and back_project as plain products, for tracers, transforms and a second derivative.

The planned map is compared with NumPy's einsum in test_multilinear.py.
"""

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from tensorprojection.functional import back_project, mode_product, project

MODES = ((7, 3), None, (5, 2))
LETTERS = "abcd"


def operands(transposed, dtype=torch.float64, batch=4):
    """An input of three modes, one of them left alone, and matrices that are not orthonormal."""
    torch.manual_seed(0)
    Us = [None if size is None else torch.randn(size, dtype=dtype) for size in MODES]
    sizes = [6 if U is None else U.shape[1 if transposed else 0] for U in Us]
    return torch.randn(batch, *sizes, dtype=dtype), Us


def planned(transposed):
    return back_project if transposed else project


directions = pytest.mark.parametrize("transposed", [False, True], ids=["project", "back_project"])


@pytest.mark.parametrize("axis", [-4, -3, -2, -1])
def test_one_product_along_any_axis(axis):
    x = torch.randn(2, 3, 4, 5, dtype=torch.float64)
    A = torch.randn(x.shape[axis], 7, dtype=torch.float64)
    letter = LETTERS[axis]
    expected = torch.einsum(f"{LETTERS},{letter}z->{LETTERS.replace(letter, 'z')}", x, A)
    torch.testing.assert_close(mode_product(x, A.mT, axis + 5), expected)


@directions
@pytest.mark.filterwarnings("ignore:`torch.jit.trace")
def test_a_jit_trace_holds_for_other_batches(transposed):
    x, Us = operands(transposed)

    def function(x, first, last):
        return planned(transposed)(x, [first, None, last])

    traced = torch.jit.trace(function, (x, Us[0], Us[2]))
    other, _ = operands(transposed, batch=9)
    expected = planned(transposed)(other, Us)
    torch.testing.assert_close(traced(other, Us[0], Us[2]), expected)


def test_plain_operations_begin_where_the_tensor_shrinks_most():
    """Its order changes no value, only the work: 8 to 7 first would be four times as much."""
    x = torch.randn(2, 8, 40)
    Us = [torch.randn(8, 7), torch.randn(40, 2)]
    with FlopCounterMode(display=False) as counted:
        torch.func.vmap(lambda x: project(x, Us))(x)
    assert counted.get_total_flops() == 2 * (2 * 8 * 40 * 2 + 2 * 8 * 7 * 2)


@directions
@pytest.mark.parametrize("wanted", ["x", "Us", "both"])
def test_flops_of_both_passes(transposed, wanted):
    """Mode by mode in the cheapest order; one product for dL/dx, two for the U's."""
    x, Us = torch.randn(2, 3, 8, 40), [None, torch.randn(8, 7), torch.randn(40, 2)]
    forward = 2 * 2 * 3 * (8 * 40 * 2 + 8 * 7 * 2)
    if transposed:
        x, forward = torch.randn(2, 3, 7, 2), 2 * 2 * 3 * (7 * 2 * 8 + 8 * 2 * 40)
    x.requires_grad_(wanted != "Us")
    for U in Us[1:]:
        U.requires_grad_(wanted != "x")
    with FlopCounterMode(display=False) as counted:
        z = planned(transposed)(x, Us)
        assert counted.get_total_flops() == forward
        z.sum().backward()
    assert counted.get_total_flops() == forward * {"x": 2, "Us": 3, "both": 4}[wanted]


@directions
def test_a_second_derivative_in_float32(transposed):
    """Where kernels serve, which autograd does not see into."""

    def second(dtype):
        x, Us = operands(transposed, torch.float64)
        leaves = [t.to(dtype).requires_grad_() for t in (x, Us[0], Us[2])]
        z = planned(transposed)(leaves[0], [leaves[1], None, leaves[2]])
        first = torch.autograd.grad(z.pow(3).sum(), leaves, create_graph=True)
        return torch.autograd.grad(sum(g.pow(2).sum() for g in first), leaves)

    for found, expected in zip(second(torch.float32), second(torch.float64), strict=True):
        error = (found.double() - expected).norm() / expected.norm()
        assert error < 1e-5


@directions
@pytest.mark.parametrize("last", [False, True], ids=["contiguous", "channels_last"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_fake_implementations_agree_with_the_real_ones(transposed, last, dtype):
    """Shapes, strides and types of the operators, by torch's own check of them."""
    memory_format = torch.channels_last if last else torch.contiguous_format
    x, Us = operands(transposed, dtype)
    z = planned(transposed)(x, Us).contiguous(memory_format=memory_format)
    x = x.contiguous(memory_format=memory_format)
    ops = torch.ops.tensorprojection
    _check(ops.multilinear.default, (x, Us, transposed))
    for wanted in ((True, True), (False, True), (True, False)):
        _check(ops.multilinear_backward.default, (x, z, Us, transposed, *wanted))
    Ws = [U for U in Us if U is not None]
    found = ops.polar([*Ws], [1e-3] * 2, False, dtype)
    _check(ops.polar.default, ([*Ws], [1e-3] * 2, False, dtype))
    _check(ops.polar_backward.default, ([*Ws], found[:2], found[2:], [1e-3] * 2, False))


def _check(operator, arguments):
    torch.library.opcheck(operator, arguments, test_utils=("test_schema", "test_faketensor"))
