"""vec, unfold, fold and mode_product: the paper's appendices C and D, for any order."""

import numpy as np
import pytest
import tensorly
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tensorprojection import ProjectionError, ProjectionValueError
from tensorprojection.functional import fold, mode_product, unfold, vec


def numbers(*shape):
    """Every entry different, so that no permutation of them goes unnoticed."""
    return np.arange(np.prod(shape), dtype=np.float64).reshape(shape)


def random(*shape, seed=0):
    return np.random.default_rng(seed).standard_normal(shape)


shapes = st.lists(st.integers(1, 4), min_size=1, max_size=5).map(tuple)
batches = st.lists(st.integers(1, 3), max_size=2).map(tuple)

examples = settings(deadline=None, max_examples=60)


@st.composite
def shape_mode_batch(draw):
    shape = draw(shapes)
    return shape, draw(st.integers(1, len(shape))), draw(batches)


# vec (appendix C)


def test_vec_of_the_appendix_matrix():
    """a11, a21, …, am1, a12, …"""
    A = torch.tensor([[11, 12, 13], [21, 22, 23]])
    assert vec(A).tolist() == [11, 21, 12, 22, 13, 23]


def test_vec_of_the_appendix_tensor():
    """a111, a211, …, ap11, a121, …, apq1, a112, …"""
    A = torch.tensor([[[111, 112], [121, 122]], [[211, 212], [221, 222]]])
    assert vec(A).tolist() == [111, 211, 121, 221, 112, 212, 122, 222]


@examples
@given(shapes)
def test_vec_is_numpys_fortran_reshape(shape):
    X = numbers(*shape)
    assert np.array_equal(vec(torch.from_numpy(X)), X.reshape(-1, order="F"))


@examples
@given(shapes, batches)
def test_vec_batch(shape, batch):
    X = numbers(*batch, *shape)
    expected = np.empty((*batch, np.prod(shape)))
    for index in np.ndindex(*batch):
        expected[index] = X[index].reshape(-1, order="F")
    actual = vec(torch.from_numpy(X), batch_dims=len(batch))
    assert np.array_equal(actual, expected)


# Unfolding and folding (appendix D.2.1)


@pytest.mark.parametrize(("mode", "permutation"), [(1, (0, 1, 2)), (2, (1, 0, 2)), (3, (2, 0, 1))])
def test_unfold_is_the_appendix(mode, permutation):
    """reshape(permute(X, [2, 1, 3]), [p_2, p_3 p_1]), and so on; NumPy's axes count from 0."""
    X = numbers(2, 3, 4)
    expected = X.transpose(permutation).reshape(X.shape[mode - 1], -1, order="F")
    assert np.array_equal(unfold(torch.from_numpy(X), mode), expected)


@pytest.mark.parametrize(
    ("mode", "sizes", "permutation"),
    [(1, (2, 3, 4), (0, 1, 2)), (2, (3, 2, 4), (1, 0, 2)), (3, (4, 2, 3), (1, 2, 0))],
)
def test_fold_is_the_appendix(mode, sizes, permutation):
    """permute(reshape(X_(3), [p_3, p_1, p_2]), [2, 3, 1]), and so on."""
    matrix = numbers(sizes[0], sizes[1] * sizes[2])
    expected = matrix.reshape(sizes, order="F").transpose(permutation)
    assert np.array_equal(fold(torch.from_numpy(matrix), mode, (2, 3, 4)), expected)


@examples
@given(shape_mode_batch())
def test_unfold_any_order(case):
    shape, mode, batch = case
    X = numbers(*batch, *shape)
    p = shape[mode - 1]
    expected = np.empty((*batch, p, np.prod(shape) // p))
    for index in np.ndindex(*batch):
        expected[index] = np.moveaxis(X[index], mode - 1, 0).reshape(p, -1, order="F")
    actual = unfold(torch.from_numpy(X), mode, batch_dims=len(batch))
    assert np.array_equal(actual, expected)


@examples
@given(shape_mode_batch())
def test_fold_undoes_unfold(case):
    shape, mode, batch = case
    x = torch.from_numpy(numbers(*batch, *shape))
    matrix = unfold(x, mode, batch_dims=len(batch))
    assert torch.equal(fold(matrix, mode, shape), x)


@examples
@given(shape_mode_batch())
def test_unfold_undoes_fold(case):
    shape, mode, batch = case
    p = shape[mode - 1]
    matrix = torch.from_numpy(numbers(*batch, p, int(np.prod(shape)) // p))
    x = fold(matrix, mode, shape)
    assert x.shape == (*batch, *shape)
    assert torch.equal(unfold(x, mode, batch_dims=len(batch)), matrix)


@examples
@given(shape_mode_batch())
@pytest.mark.usefixtures("tensorly_numpy")
def test_unfold_is_tensorlys_with_modes_reversed(case):
    """tensorly counts modes from 0 and is C-ordered: the last mode changes fastest.

    Reversing the modes turns one order into the other.
    """
    shape, mode, _ = case
    X = numbers(*shape)
    expected = tensorly.unfold(X.transpose(), len(shape) - mode)
    assert np.array_equal(unfold(torch.from_numpy(X), mode), expected)
    folded = tensorly.fold(expected, len(shape) - mode, shape[::-1]).transpose()
    assert np.array_equal(fold(torch.from_numpy(expected.copy()), mode, shape), folded)


@pytest.mark.parametrize("dtype", [torch.int64, torch.bool, torch.complex64, torch.bfloat16])
def test_moving_entries_needs_no_arithmetic(dtype):
    x = torch.arange(24).reshape(2, 3, 4).to(dtype)
    assert torch.equal(fold(unfold(x, 2), 2, x.shape), x)
    assert vec(x).dtype == dtype


# The mode product (appendix D.1)


@pytest.mark.parametrize(
    ("mode", "formula"), [(1, "al,ljk->ajk"), (2, "al,ilk->iak"), (3, "al,ijl->ija")]
)
def test_mode_product_is_the_appendix(mode, formula):
    X = random(3, 4, 5)
    A = random(2, X.shape[mode - 1], seed=1)
    actual = mode_product(torch.from_numpy(X), torch.from_numpy(A), mode)
    np.testing.assert_allclose(actual, np.einsum(formula, A, X), rtol=1e-13, atol=1e-13)


@examples
@given(shape_mode_batch(), st.integers(1, 5))
def test_mode_product_is_folding_of_the_product(case, size):
    """Appendix D.2.2: unfold, multiply, fold."""
    shape, mode, batch = case
    x = torch.from_numpy(random(*batch, *shape))
    A = torch.from_numpy(random(size, shape[mode - 1], seed=1))
    out_shape = (*shape[: mode - 1], size, *shape[mode:])
    expected = fold(A @ unfold(x, mode, batch_dims=len(batch)), mode, out_shape)
    actual = mode_product(x, A, mode, batch_dims=len(batch))
    assert actual.shape == expected.shape == (*batch, *out_shape)
    torch.testing.assert_close(actual, expected, rtol=1e-13, atol=1e-13)


@examples
@given(shape_mode_batch(), st.integers(1, 5))
@pytest.mark.usefixtures("tensorly_numpy")
def test_mode_product_is_tensorlys(case, size):
    shape, mode, _ = case
    X, A = random(*shape), random(size, shape[mode - 1], seed=1)
    expected = tensorly.tenalg.mode_dot(X, A, mode - 1)
    actual = mode_product(torch.from_numpy(X), torch.from_numpy(A), mode)
    np.testing.assert_allclose(actual, expected, rtol=1e-13, atol=1e-13)


def test_mode_product_is_differentiable():
    x = torch.from_numpy(random(2, 3, 4)).requires_grad_()
    A = torch.from_numpy(random(5, 3, seed=1)).requires_grad_()
    assert torch.autograd.gradcheck(lambda x, A: mode_product(x, A, 1, batch_dims=1), (x, A))


# No samples at all


@pytest.mark.parametrize("batch", [(0,), (3, 0), (0, 2)])
class TestEmptyBatch:
    def test_vec(self, batch):
        assert vec(torch.empty(*batch, 2, 3), batch_dims=len(batch)).shape == (*batch, 6)

    def test_unfold(self, batch):
        x = torch.empty(*batch, 2, 3, 4)
        assert unfold(x, 2, batch_dims=len(batch)).shape == (*batch, 3, 8)

    def test_fold(self, batch):
        assert fold(torch.empty(*batch, 3, 8), 2, (2, 3, 4)).shape == (*batch, 2, 3, 4)

    def test_mode_product(self, batch):
        z = mode_product(torch.empty(*batch, 2, 3), torch.ones(5, 3), 2, batch_dims=len(batch))
        assert z.shape == (*batch, 2, 5)


# The identities that the paper's proofs rest on (appendix A)


def test_vec_of_AXB():
    A, X, B = random(5, 3), random(3, 4, seed=1), random(4, 2, seed=2)
    expected = np.kron(B.T, A) @ vec(torch.from_numpy(X)).numpy()
    np.testing.assert_allclose(vec(torch.from_numpy(A @ X @ B)), expected, rtol=1e-12)


@pytest.mark.parametrize("shape", [(4,), (3, 4), (3, 4, 2), (2, 3, 2, 4)])
def test_vec_of_mode_products(shape):
    """vec(X ×_1 A_1 ×_2 A_2 ×_3 A_3) = (A_3 ⊗ A_2 ⊗ A_1) vec(X)."""
    X = random(*shape)
    As = [random(k + 1, p, seed=k) for k, p in enumerate(shape, start=1)]
    z, kron = torch.from_numpy(X), np.eye(1)
    for k, A in enumerate(As, start=1):
        z = mode_product(z, torch.from_numpy(A), k)
        kron = np.kron(A, kron)
    np.testing.assert_allclose(
        vec(z), kron @ vec(torch.from_numpy(X)).numpy(), rtol=1e-12, atol=1e-12
    )


def test_unfolding_of_mode_products():
    """Z_(1) = A_1 X_(1) (A_3 ⊗ A_2)ᵀ."""
    x = torch.from_numpy(random(3, 4, 2))
    A1, A2, A3 = (torch.from_numpy(random(k + 1, p, seed=k)) for k, p in [(1, 3), (2, 4), (3, 2)])
    z = mode_product(mode_product(mode_product(x, A1, 1), A2, 2), A3, 3)
    torch.testing.assert_close(unfold(z, 1), A1 @ unfold(x, 1) @ torch.kron(A3, A2).mT)


# Wrong inputs


@pytest.mark.parametrize("mode", [0, 4, -1])
def test_modes_count_from_1(mode):
    x = torch.zeros(2, 3, 4)
    for call in (
        lambda: unfold(x, mode),
        lambda: fold(torch.zeros(2, 12), mode, (2, 3, 4)),
        lambda: mode_product(x, torch.zeros(2, 2), mode),
    ):
        with pytest.raises(ProjectionValueError, match=rf"from 1 to 3, got {mode}"):
            call()


def test_batch_axes_are_no_modes():
    x = torch.zeros(2, 3, 4)
    with pytest.raises(ProjectionValueError, match="from 1 to 2, got 3"):
        unfold(x, 3, batch_dims=1)
    with pytest.raises(ProjectionValueError, match="from 1 to 2, got 3"):
        mode_product(x, torch.zeros(2, 4), 3, batch_dims=1)


@pytest.mark.parametrize("batch_dims", [-1, 3, 7])
def test_at_least_one_axis_is_a_mode(batch_dims):
    x = torch.zeros(2, 3, 4)
    for call in (
        lambda: vec(x, batch_dims=batch_dims),
        lambda: unfold(x, 1, batch_dims=batch_dims),
        lambda: mode_product(x, torch.zeros(2, 2), 1, batch_dims=batch_dims),
    ):
        with pytest.raises(ProjectionValueError, match=rf"\(2, 3, 4\), got {batch_dims}"):
            call()


@pytest.mark.parametrize("shape", [(3, 7), (8, 3), (24,), (2, 3, 4)])
def test_fold_shows_the_wrong_matrix(shape):
    with pytest.raises(ProjectionValueError, match=r"\(\.\.\., 3, 8\)") as error:
        fold(torch.zeros(shape), 2, (2, 3, 4))
    assert str(shape) in str(error.value)


@pytest.mark.parametrize("shape", [(3, 5), (4,), (2, 3, 4)])
def test_mode_product_shows_the_wrong_matrix(shape):
    with pytest.raises(ProjectionValueError, match="4 columns for mode 3") as error:
        mode_product(torch.zeros(2, 3, 4), torch.zeros(shape), 3)
    assert str(shape) in str(error.value)


def test_errors_are_of_the_librarys_class_and_value_errors():
    with pytest.raises(ProjectionError) as error:
        unfold(torch.zeros(2, 3), 0)
    assert isinstance(error.value, ValueError)
