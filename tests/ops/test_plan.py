"""Plans: the map and its derivatives do not depend on the chosen steps."""

from dataclasses import replace

import pytest
import torch
from kernels.compiled import run_gradients, run_map

import tensorprojection as tp
from tensorprojection.bench.cases import CASES
from tensorprojection.bench.measure import kept_bytes
from tensorprojection.ops import layout as layouts
from tensorprojection.ops.kernels import calls
from tensorprojection.ops.layout import layout_of
from tensorprojection.ops.plan import candidates, fits_tile, make_plan

# (large, small, touched axes) of a tensor (L, d_1, …)
SHAPES = {
    "one mode": ((6,), (4,), (1,)),
    "a pair": ((6, 5), (4, 3), (1, 2)),
    "a pair, then one alone": ((6, 5, 7), (4, 3, 7), (1, 2)),
    "apart": ((6, 2, 5), (4, 2, 3), (1, 3)),
    "three": ((6, 5, 4), (4, 3, 2), (1, 2, 3)),
    "many channels, few places": ((64, 3), (32, 3), (1,)),
}


needs_kernels = pytest.mark.skipif(not tp.kernels(), reason="the compiled kernels are not built")


def problem(large, small, touched, rows=7, dtype=torch.float64):
    X, Z = torch.randn(rows, *large, dtype=dtype), torch.randn(rows, *small, dtype=dtype)
    As = [None] * len(large)
    for k in touched:
        As[k - 1] = torch.randn(large[k - 1], small[k - 1], dtype=dtype)
    return X, Z, As


def expected(X, Z, As):
    """grow(Z), shrink(X) and the derivatives, by autograd through tensordot in float64."""
    As = [None if A is None else A.double().clone().requires_grad_() for A in As]
    shrunk, grown = X.double(), Z.double()
    for k, A in enumerate(As, start=1):
        if A is not None:
            shrunk = torch.tensordot(shrunk, A, dims=([k], [0])).movedim(-1, k)
            grown = torch.tensordot(grown, A, dims=([k], [1])).movedim(-1, k)
    given = [A for A in As if A is not None]
    gradients = iter(torch.autograd.grad((shrunk * Z.double()).sum(), given))
    by_axis = [None if A is None else next(gradients) for A in As]
    return grown.detach(), shrunk.detach(), by_axis


def plan_of(steps, large, small, touched):
    return replace(make_plan(large, small, touched), shrink=steps, grow=steps, pair=steps)


def by_kernels(X, Z, As, plan):
    """grow(Z), shrink(X) and the derivatives, those of either backward pass."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(layouts, "make_plan", lambda *_: plan)
        layouts._layout.cache_clear()
        grown, gradients = run_gradients(X, Z, As)
        shrunk, of_grow = run_gradients(Z, X, As, transposed=True)
        alone = run_gradients(X, Z, As, want_x=False)[1]
        yield run_map(Z, As, transposed=True), run_map(X, As), alone
    layouts._layout.cache_clear()
    yield grown, shrunk, gradients
    yield grown, shrunk, of_grow


def assert_same(got, right, tolerance):
    for mine, theirs in zip((*got[:2], *got[2]), (*right[:2], *right[2]), strict=True):
        assert (mine is None) == (theirs is None)
        assert mine is None or torch.allclose(mine.double(), theirs, rtol=tolerance, atol=tolerance)


@needs_kernels
@pytest.mark.parametrize("shape", SHAPES)
def test_all_candidates_agree_by_compiled_kernels(shape):
    large, small, touched = SHAPES[shape]
    X, Z, As = problem(large, small, touched, dtype=torch.float32)
    right = expected(X, Z, As)
    options = list(candidates(touched, large, small))
    assert len(options) == len(set(options)) > 0
    for steps in options:
        for got in by_kernels(X, Z, As, plan_of(steps, large, small, touched)):
            assert_same(got, right, 1e-4)


@needs_kernels
@pytest.mark.parametrize("steps", [((1,), (2,)), ((2,), (1,))])
def test_pieces_give_the_whole_by_compiled_kernels(steps, monkeypatch):
    large, small, touched = (16, 16, 8), (8, 4, 8), (1, 2)
    monkeypatch.setattr(calls, "_CHUNK", 3 * 16 * 16 * 8)
    X, Z, As = problem(large, small, touched, rows=11, dtype=torch.float32)  # 3 + 3 + 3 + 2
    right = expected(X, Z, As)
    for got in by_kernels(X, Z, As, plan_of(steps, large, small, touched)):
        assert_same(got, right, 1e-4)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64])
@pytest.mark.parametrize(
    "sizes", [(9, 5, 3, 1), (9, 5, 3, 4), (2, 80, 40, 3), (2, 80, 40, 50), (4, 6, 5, 50)], ids=str
)
def test_products_of_any_shape_and_type(sizes, dtype, without_kernels):
    """Products and derivatives take another form if the axis is the last, or short, or long."""
    left, P, Q, right = sizes
    x, A, z = (torch.randn(s).to(dtype) for s in ((left, P, right), (P, Q), (left, Q, right)))
    tolerance = 3e-2 if dtype == torch.bfloat16 else 1e-5
    x.requires_grad_(), A.requires_grad_()
    product = tp.functional.project(x, [A, None])
    gradients = torch.autograd.grad(product, [x, A], z)
    of_z = tp.functional.back_project(z, [A, None])
    x, A, z = x.double(), A.double(), z.double()
    for got, right in (
        (product, torch.einsum("lpr,pq->lqr", x, A)),
        (gradients[0], torch.einsum("lqr,pq->lpr", z, A)),
        (of_z, torch.einsum("lqr,pq->lpr", z, A)),
        (gradients[1], torch.einsum("lpr,lqr->pq", x, z)),
    ):
        assert got.dtype == dtype
        assert (got.double() - right).norm() <= tolerance * right.norm()


def test_the_plan_does_not_depend_on_the_batch():
    U = torch.randn(12, 6)
    layouts = {
        layout_of(torch.empty(n, 32, 12, 12), [None, U, U], transposed=False).plan
        for n in (1, 7, 300)
    }
    assert len(layouts) == 1


def test_modes_left_alone_are_rows_or_one_axis():
    U = torch.randn(12, 6)
    x = torch.empty(3, 2, 5, 12, 4, 6)
    plan = layout_of(x, [None, U, None, None], transposed=False).plan
    assert (plan.large, plan.small, plan.shrink) == ((12, 24), (6, 24), ((1,),))


def test_the_shrinking_mode_goes_first():
    # 64 → 4 leaves a sixteenth of the tensor for the other mode; the other way round a half.
    plan = make_plan((64, 7, 64), (32, 7, 4), (1, 3))
    assert plan.shrink == ((3,), (1,))
    assert plan.grow == ((1,), (3,))


@pytest.mark.parametrize(
    ("large", "small"),
    [
        ((12, 12), (6, 6)),
        ((32, 12, 12), (20, 6, 6)),
        ((60, 60), (2, 2)),  # too many numbers for a tile
        ((58, 58), (36, 36)),  # too many entries
        ((4, 4, 4, 4, 4), (2, 2, 2, 2, 2)),  # too many modes
    ],
)
def test_modes_that_go_together_fit_a_tile(large, small):
    plan = make_plan(large, small, tuple(range(1, len(large) + 1)))
    for group in (*plan.shrink, *plan.grow, *plan.pair):
        p, q = (tuple(side[k - 1] for k in group) for side in (large, small))
        assert len(group) == 1 or fits_tile(p, q)


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_no_more_is_kept_for_backward_than_the_output(case):
    layer, x = case.layer(), case.input("NCHW")
    output = layer(x).untyped_storage().nbytes()
    assert kept_bytes(layer, x) <= output


def test_explanation():
    layer = tp.TensorProjection((32, 12, 12), (20, 6, 6))
    x = torch.empty(2, 32, 12, 12)
    explanation = tp.explain(layer, x.to(memory_format=torch.channels_last))
    assert explanation.memory_order == (2, 3, 1)
    for choice in (explanation.forward, explanation.backward, explanation.derivative):
        assert sorted(mode for group in choice for mode in group) == [1, 2, 3]
    assert "modes in memory   2, 3, 1" in str(explanation)
    forward = tp.explain(layer.transpose(), layer(torch.randn(2, 32, 12, 12))).forward
    assert forward == tp.explain(layer, x).backward


def test_the_explanation_of_a_layer_that_changes_nothing():
    text = str(tp.explain(tp.TensorProjection((6, 5), (6, None)), torch.empty(2, 6, 5)))
    assert text.count("no mode changes") == 3


@pytest.mark.parametrize("shape", [(2, 12, 32, 12), (2, 32, 12, 11), (12, 12), ()], ids=str)
def test_an_input_that_the_layer_refuses_has_no_plan(shape):
    layer, x = tp.TensorProjection((32, 12, 12), (20, 6, 6)), torch.empty(shape)
    with pytest.raises(tp.ProjectionValueError) as by_layer:
        layer(x)
    with pytest.raises(tp.ProjectionValueError) as by_plan:
        tp.explain(layer, x)
    assert str(by_plan.value) == str(by_layer.value)


def test_an_input_of_integers_has_no_plan():
    with pytest.raises(tp.ProjectionTypeError, match=r"floating-point tensor, got torch\.int64"):
        tp.explain(tp.TensorProjection((6,), (3,)), torch.ones(2, 6, dtype=torch.int64))


def test_a_lazy_layer_has_a_plan_after_its_first_call():
    layer, x = tp.LazyTensorProjection((20, None, 6)), torch.randn(2, 32, 12, 12)
    with pytest.raises(tp.ProjectionValueError, match="lazy layer has no shapes yet"):
        tp.explain(layer, x)
    layer(x)
    assert sorted(mode for group in tp.explain(layer, x).forward for mode in group) == [1, 3]


def test_many_modes_are_planned_at_once():
    # All orders of all groupings of ten modes would be more than a thousand million.
    options = list(candidates(tuple(range(1, 11)), (3,) * 10, (2,) * 10))
    assert len(options) == 2
    x, Us = torch.randn(*[3] * 8, dtype=torch.float64), [torch.randn(3, 2, dtype=torch.float64)] * 8
    expected = x
    for k, U in enumerate(Us):
        expected = torch.tensordot(expected, U, dims=([k], [0])).movedim(-1, k)
    assert torch.allclose(tp.functional.project(x, Us), expected)


@pytest.mark.parametrize("transposed", [False, True])
def test_gradient_through_constant_U_keeps_the_format_of_x(transposed):
    U = torch.randn(6, 3)
    map_ = tp.functional.back_project if transposed else tp.functional.project
    size, result = (3, 6) if transposed else (6, 3)
    x = torch.randn(2, 4, size, size).to(memory_format=torch.channels_last).requires_grad_()
    grad = torch.randn(2, 4, result, result)
    dL_dx = torch.autograd.grad(map_(x, [None, U, U]), x, grad)[0]
    assert dL_dx.is_contiguous(memory_format=torch.channels_last)
    trained = torch.autograd.grad(map_(x, [None, U.requires_grad_(), U]), x, grad)[0]
    assert torch.allclose(dL_dx, trained, rtol=1e-4, atol=1e-4)
