"""Maps and derivatives by the compiled kernels are those of the definition, for any shape."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tensorprojection import functional
from tensorprojection.ops.limits import MOST_AXES

from .compiled import (
    assert_close,
    assert_right,
    derivatives,
    in_memory,
    matrices,
    numbers,
    only_kernels,
    plan_of,
    problem,
    project,
    run_gradients,
    run_map,
)

pytestmark = pytest.mark.usefixtures("kernels")

both_ways = pytest.mark.parametrize("transposed", [False, True], ids=["project", "back_project"])


@st.composite
def modes_and_batch(draw):
    """Up to five modes, at least one of them with a matrix, and up to 2^14 numbers."""
    left = 2**14
    sizes = []
    for _ in range(draw(st.integers(1, 5))):
        sizes.append(draw(st.integers(1, min(20, left))))
        left //= sizes[-1]
    modes = [(p, draw(st.integers(1, p))) if draw(st.booleans()) else p for p in sizes]
    if all(isinstance(mode, int) for mode in modes):
        modes[-1] = (sizes[-1], draw(st.integers(1, sizes[-1])))
    batch = []
    for _ in range(draw(st.integers(0, 2))):
        batch.append(draw(st.integers(1, min(70, left))))
        left //= batch[-1]
    return draw(st.permutations(modes)), batch


@settings(deadline=None, max_examples=300)
@given(sizes=modes_and_batch(), transposed=st.booleans(), data=st.data())
def test_any_shape_in_any_memory_format(sizes, transposed, data):
    modes, batch = sizes
    orders = st.permutations(range(len(modes)))
    x, grad, Us = problem(modes, batch, transposed=transposed)
    x, grad = (in_memory(t, data.draw(orders)) for t in (x, grad))
    if data.draw(st.booleans()):
        Us = [None if U is None else in_memory(U, (1, 0)) for U in Us]
    assert_right(x, grad, Us, transposed=transposed)


# Right of the mode: nothing; less than a tile's lanes; lanes that straddle rows.
@both_ways
@pytest.mark.parametrize("right", [1, 3, 25, 36])
@pytest.mark.parametrize("mode", [(300, 70), (1030, 33), (257, 1), (33, 33)], ids=str)
def test_a_large_mode(mode, right, transposed):
    assert_right(*problem([mode, right], (29,), transposed=transposed), transposed=transposed)


@both_ways
def test_a_large_mode_beside_small_ones(transposed):
    modes = [(6, 3), (300, 70), (5, 2)]
    assert_right(*problem(modes, (7,), transposed=transposed), transposed=transposed)


@both_ways
@pytest.mark.parametrize("right", [1, 3, 25, 36, 64])
def test_tiles_that_the_rows_do_not_fill(right, transposed):
    for rows in (1, 2, 31, 32, 33, 97):
        modes = [(5, 3), (4, 2), right]
        assert_right(*problem(modes, (rows,), transposed=transposed), transposed=transposed)


@both_ways
@pytest.mark.parametrize("rows", [1, 3, 4, 10, 11])
@pytest.mark.parametrize(
    "modes",
    [
        [(64, 20), (12, 6), (12, 6)],
        [(12, 6), (12, 6), (64, 20)],
        [(8, 4), 3, (9, 5), (6, 2)],
        [(16, 4), (16, 16), (8, 2), (16, 16)],
    ],
    ids=str,
)
def test_chunks_of_rows_give_the_whole(modes, rows, transposed, chunks_of):
    x, grad, Us = problem(modes, (10,), transposed=transposed)
    X = grad if transposed else x
    chunks_of(rows * X[0].numel())
    plan = plan_of(x, Us, transposed=transposed)
    assert min(map(len, (plan.shrink, plan.grow, plan.pair))) > 1  # else there are no chunks
    assert_right(x, grad, Us, transposed=transposed)


WITH_GAPS = {
    "every other row": lambda x: x[::2],
    "every other column": lambda x: x[..., ::2],
    "part of the first mode": lambda x: x[:, 1:-1],
    "part of each": lambda x: x[1:, 2:, 1:, :-1],
    "one image for all": lambda x: x[:1].expand(6, -1, -1, -1),
    "one column for all": lambda x: x[..., :1].expand(-1, -1, -1, 5),
    "one number for all": lambda x: x[:1, :1, :1, :1].expand(6, 8, 6, 5),
    "batch innermost": lambda x: x.movedim(0, -1).contiguous().movedim(-1, 0),
}


@pytest.mark.parametrize("gaps", WITH_GAPS.values(), ids=WITH_GAPS)
def test_tensors_with_gaps(gaps):
    x = gaps(numbers(6, 8, 6, 10))
    Us = [None, *matrices([(n, (n + 1) // 2) for n in x.shape[2:]])]
    grad = gaps(numbers(6, 8, 6, 10))[:, :, : Us[1].shape[1], : Us[2].shape[1]]
    assert_right(x, grad, Us)


@both_ways
def test_the_result_keeps_the_memory_format(transposed):
    x, grad, Us = problem([8, (6, 3), (6, 3)], (4,), transposed=transposed)
    x = x.to(memory_format=torch.channels_last)
    z = run_map(x, Us, transposed=transposed)
    grad_x, _ = run_gradients(x, grad, Us, transposed=transposed)
    for result in (z, grad_x):
        assert result.is_contiguous(memory_format=torch.channels_last)


def test_the_input_is_left_as_it_is():
    x, grad, Us = problem([(12, 6), (12, 6)], (50,))
    before = [t.clone() for t in (x, grad, *Us)]
    assert_right(x, grad, Us)
    for t, copy in zip((x, grad, *Us), before, strict=True):
        assert torch.equal(t, copy)


@both_ways
@pytest.mark.parametrize("modes", [[(12, 6), (12, 6)], [(5, 3), 7], [(300, 40)]], ids=str)
def test_a_row_with_nan_spoils_no_other(modes, transposed):
    x, _, Us = problem(modes, (40,), transposed=transposed)
    x[13] = torch.nan
    z = run_map(x, Us, transposed=transposed)
    assert z[13].isnan().all()
    others = [i for i in range(40) if i != 13]
    assert_close(z[others], project(x[others], Us, transposed=transposed))


# Sums of many numbers: no worse than those of torch's own product.
def test_a_long_sum_is_as_exact_as_that_of_torch():
    x, grad, Us = problem([(3, 2)], (500_000,))
    _, (dU,) = run_gradients(x, grad, Us, want_x=False)
    _, (right,) = derivatives(x, grad, Us)
    error, of_torch = ((t.double() - right).norm() / right.norm() for t in (dU, x.mT @ grad))
    assert error <= max(2 * of_torch, 3e-6)


def test_as_many_axes_as_the_kernels_take():
    assert_right(*problem([(2, 1)] * MOST_AXES, (3,)))


def assert_left_to_torch(x, Us):
    with pytest.raises(AssertionError, match="torch's implementation ran"), only_kernels():
        functional.project(x, Us)


def test_more_axes_are_left_to_torch():
    x, _, Us = problem([(2, 1)] * (MOST_AXES + 1), (3,))
    assert_left_to_torch(x, Us)
    assert_close(functional.project(x, Us), project(x, Us))


def test_an_empty_batch_is_left_to_torch():
    x, _, Us = problem([(4, 2), (5, 3)], (0,))
    assert_left_to_torch(x, Us)
    z = functional.project(x.requires_grad_(), [U.requires_grad_() for U in Us])
    assert z.shape == (0, 2, 3)
    dL_dx, *dL_dUs = torch.autograd.grad(z.sum(), [x, *Us])
    assert dL_dx.shape == x.shape
    assert not any(dL_dU.any() for dL_dU in dL_dUs)


def test_other_types_are_left_to_torch():
    x, _, Us = problem([(4, 2), (5, 3)], (3,))
    run_map(x, Us)
    assert_left_to_torch(x.double(), Us)
    assert_left_to_torch(x, [U.double() for U in Us])


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("layout", ["contiguous", "permuted", "a mode of size 1"])
def test_half_types_are_computed_in_float32(dtype, layout):
    """Rounded once, at the end, in the memory order that the fake implementation says."""
    x, Us = numbers(4, 6, 5), matrices([(6, 3), (5, 2)])
    transposed = layout == "a mode of size 1"
    if layout == "permuted":
        x = in_memory(x, (1, 0))
    if transposed:
        x, Us = numbers(4, 5, 6, 1).permute(0, 3, 2, 1), matrices([(3, 1), (8, 6), (7, 5)])
    x = x.to(dtype)
    z = run_map(x, Us, transposed=transposed)
    assert torch.equal(z, run_map(x.float(), Us, transposed=transposed).to(dtype))
    op = torch.ops.tensorprojection.multilinear
    torch.library.opcheck(op, (x, Us, transposed), test_utils=("test_faketensor",))
