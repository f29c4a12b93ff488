"""The penalties against their formulas in NumPy, and what each does to training."""

import numpy as np
import pytest
import torch
from torch.testing import assert_close

import tensorprojection as tp
from tensorprojection import ProjectionTypeError, ProjectionValueError, TensorProjection, penalties

# The formulas, transcribed loop by loop; nothing from the library


def D(U):
    """The paper's introduction."""
    q = U.shape[1]
    return sum(
        abs(U[:, i] @ U[:, j]) / (np.linalg.norm(U[:, i]) * np.linalg.norm(U[:, j]))
        for i in range(q)
        for j in range(i + 1, q)
    )


def authors_reconstruction_error(X, Us, rate):
    """rate · log(mean_i RMSE(X_i, back-projection of Z_i))."""
    by_sample = []
    for X_i in X:
        back = np.einsum("ap,bq,cr,pqr->abc", *(U @ U.T for U in Us), X_i)
        by_sample.append(np.sqrt(np.mean((X_i - back) ** 2)))
    return rate * np.log(np.mean(by_sample))


def authors_total_variation(Z, rate):
    """rate · log(mean_i of the root mean square of the centred Z_i)."""
    mean = Z.mean(axis=0)
    return rate * np.log(np.mean([np.sqrt(np.mean((Z_i - mean) ** 2)) for Z_i in Z]))


# HOPE's


@pytest.mark.parametrize("shape", [(5, 1), (5, 2), (5, 5), (3, 7), (40, 12)])
def test_hope_is_the_papers_D(shape):
    U = torch.randn(shape, dtype=torch.float64) * torch.logspace(-3, 3, shape[1])
    assert penalties.hope(U).item() == pytest.approx(D(U.numpy()), rel=1e-12)


def test_hope_from_orthogonal_to_parallel():
    assert penalties.hope(torch.linalg.qr(torch.randn(9, 4))[0]) < 1e-6
    assert penalties.hope(torch.ones(9, 4) * torch.tensor([1.0, -2.0, 3.0, -4.0])) == 6


def test_hope_by_finite_differences():
    U = torch.randn(6, 4, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(penalties.hope, U)


@pytest.mark.parametrize(
    "U",
    [
        torch.zeros(4, 3),
        torch.ones(4, 3),
        torch.eye(4)[:, :3],
        torch.tensor([[1.0, -1.0, 0.0], [1.0, -1.0, 0.0], [0.0, 0.0, 0.0]]),
    ],
    ids=["zeros", "parallel", "orthogonal", "opposite_and_zero"],
)
def test_hopes_gradient_where_there_is_none(U):
    # Where D has a kink or a maximum the gradient taken is 0.
    U = U.clone().requires_grad_()
    value = penalties.hope(U)
    value.backward()
    assert value.isfinite()
    assert_close(U.grad, torch.zeros_like(U), atol=1e-6, rtol=0)


def test_a_column_of_zeros_leaves_the_others_alone():
    U = torch.randn(5, 3)
    with_zero = torch.cat([U, torch.zeros(5, 1)], 1)
    assert_close(penalties.hope(with_zero), penalties.hope(U))


def test_hope_added_to_a_loss_makes_columns_orthogonal():
    x, y = torch.randn(50, 8), torch.randn(50, 3)

    def train(beta):
        U = torch.ones(8, 3) + 0.1 * torch.randn(8, 3, generator=torch.manual_seed(3))
        U.requires_grad_()
        optimizer = torch.optim.SGD([U], lr=0.05)
        for step in range(300):
            optimizer.param_groups[0]["lr"] = 0.05 * (1 - step / 300)
            optimizer.zero_grad()
            ((x @ U - y).square().mean() + beta * penalties.hope(U)).backward()
            optimizer.step()
        return D(U.detach().numpy())

    assert train(beta=1.0) < 0.1 * train(beta=0.0)
    assert train(beta=-1.0) > 2 * train(beta=0.0)  # the sign that the paper prints


# Reconstruction error


@pytest.fixture
def layer():
    return TensorProjection((5, 4, 6), (3, 2, 3), dtype=torch.float64)


def test_reconstruction_error_is_the_authors(layer):
    x = torch.randn(7, 5, 4, 6, dtype=torch.float64)
    got = 0.1 * penalties.reconstruction_error(layer, x).log()
    Us = [U.detach().numpy() for U in layer.projections()]
    assert got.item() == pytest.approx(authors_reconstruction_error(x.numpy(), Us, 0.1), rel=1e-12)


@pytest.mark.parametrize("training", [True, False])
def test_reconstruction_error_of_any_batch_axes(layer, training):
    layer.train(training)
    x = torch.randn(6, 5, 4, 6, dtype=torch.float64)
    expected = penalties.reconstruction_error(layer, x)
    assert_close(penalties.reconstruction_error(layer, x.reshape(2, 3, 5, 4, 6)), expected)
    alone = [penalties.reconstruction_error(layer, x_i) for x_i in x]
    assert_close(torch.stack(alone).mean(), expected)


def test_reconstruction_error_by_finite_differences(layer):
    x = torch.randn(2, 5, 4, 6, dtype=torch.float64, requires_grad=True)

    def error(x, *Ws):
        for k, W in enumerate(Ws, start=1):
            layer.register_parameter(f"W{k}", W)
        return penalties.reconstruction_error(layer, x)

    assert torch.autograd.gradcheck(error, (x, *layer.Ws))


def test_a_perfect_reconstruction_has_a_finite_gradient():
    layer = TensorProjection((4, 3), (None, None))
    x = torch.randn(5, 4, 3, requires_grad=True)
    error = penalties.reconstruction_error(layer, x)
    error.backward()
    assert error == 0
    assert not x.grad.any()


def test_reconstruction_error_raises_the_captured_energy():
    # Features that vary along one direction a mode, and noise.
    x = torch.randn(60, 1, 1) * torch.randn(8, 1) * torch.randn(6) + 0.1 * torch.randn(60, 8, 6)
    layer = TensorProjection((8, 6), (2, 2))
    optimizer = torch.optim.Adam(layer.parameters(), lr=0.01)
    before = layer.captured_energy(x).mean()
    for _ in range(100):
        optimizer.zero_grad()
        (0.1 * penalties.reconstruction_error(layer, x).log()).backward()
        optimizer.step()
    assert before < 0.5
    assert layer.captured_energy(x).mean() > 0.7


# Spread


def test_spread_is_the_authors_total_variation(layer):
    z = layer(torch.randn(7, 5, 4, 6, dtype=torch.float64) + 3).detach()
    got = 0.1 * penalties.spread(z).log()
    assert got.item() == pytest.approx(authors_total_variation(z.numpy(), 0.1), rel=1e-12)


def test_spread_by_finite_differences():
    z = torch.randn(4, 3, 2, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(penalties.spread, z)


@pytest.mark.parametrize("n", [1, 3])
def test_equal_samples_have_no_spread_and_a_finite_gradient(n):
    z = torch.ones(n, 3, 2, requires_grad=True)
    value = penalties.spread(z)
    value.backward()
    assert value == 0
    assert not z.grad.any()


def test_spread_is_blind_to_a_shift_and_follows_the_scale():
    z = torch.randn(20, 3, 4)
    assert_close(penalties.spread(z + 5), penalties.spread(z))
    assert_close(penalties.spread(3 * z), 3 * penalties.spread(z))


@pytest.mark.parametrize(("rate", "grows"), [(0.1, False), (-0.1, True)])
def test_the_sign_of_spreads_rate(rate, grows):
    # As the authors add it, it turns the projection away from what varies.
    x = torch.randn(60, 8) * torch.linspace(0.2, 3, 8)
    layer = TensorProjection((8,), (2,))
    before = penalties.spread(layer(x)).item()
    optimizer = torch.optim.Adam(layer.parameters(), lr=0.01)
    for _ in range(100):
        optimizer.zero_grad()
        (rate * penalties.spread(layer(x)).log()).backward()
        optimizer.step()
    after = penalties.spread(layer(x)).item()
    assert (after > 1.2 * before) if grows else (after < 0.6 * before)


# Bad input


def test_bad_input():
    with pytest.raises(ProjectionValueError, match=r"U to be a matrix, p × q, got \(3,\)"):
        penalties.hope(torch.ones(3))
    with pytest.raises(ProjectionTypeError, match=r"U to be a real floating-point.*int64"):
        penalties.hope(torch.ones(3, 2, dtype=torch.int64))
    with pytest.raises(ProjectionTypeError, match=r"reconstruct its input.*got Linear"):
        penalties.reconstruction_error(torch.nn.Linear(3, 2), torch.ones(2, 3))
    with pytest.raises(ProjectionTypeError, match=r"got TransposeTensorProjection"):
        penalties.reconstruction_error(tp.TransposeTensorProjection((2,), (3,)), torch.ones(2, 2))
    with pytest.raises(ProjectionValueError, match=r"input of shape \(\.\.\., 5\)"):
        penalties.reconstruction_error(TensorProjection((5,), (3,)), torch.ones(2, 4))
    with pytest.raises(ProjectionValueError, match=r"at least one of features, got \(3,\)"):
        penalties.spread(torch.ones(3))
    with pytest.raises(ProjectionTypeError, match=r"z to be a torch.Tensor, got list"):
        penalties.spread([1.0])


# Numbers whose squares are too large or too small


@pytest.mark.parametrize("size", [1e20, 1e-30, 1e-37])
def test_columns_of_any_size(size):
    U = (torch.randn(6, 3) * torch.tensor([1.0, size, 1.0])).requires_grad_()
    exact = U.detach().double().requires_grad_()
    value, expected = penalties.hope(U), penalties.hope(exact)
    assert value.item() == pytest.approx(D(exact.detach().numpy()), rel=1e-5)
    value.backward()
    expected.backward()
    ours, theirs = U.grad.double(), exact.grad
    for column in range(3):  # each by its own size
        scale = theirs[:, column].abs().max()
        assert_close(ours[:, column] / scale, theirs[:, column] / scale, rtol=0, atol=1e-5)


@pytest.mark.parametrize("size", [1e20, 1e-30])
def test_spread_and_reconstruction_error_of_any_size(size):
    z = torch.randn(5, 4, 3)
    assert_close(penalties.spread(size * z) / size, penalties.spread(z))
    layer = TensorProjection((4, 3), (2, 2))
    got = penalties.reconstruction_error(layer, size * z) / size
    assert_close(got, penalties.reconstruction_error(layer, z))
