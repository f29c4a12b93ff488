"""How orthonormal U is, as ε determines it: initially, in training, and under weight decay.

The singular values of U are σ/√(σ² + ε²) for those of W, σ, so that ‖UᵀU − I‖ is ε²/(σ² + ε²) of
the smallest σ. That is the mathematics; what is tested is that nothing else is lost.
"""

import numpy as np
import oracle
import pytest
import torch
from threadpoolctl import threadpool_limits
from torch import nn

from tensorprojection import TensorProjection, TransposeTensorProjection

STARTS = {
    "paper": {},
    "orthonormal": {"init": "orthogonal"},
    "relative": {"eps_mode": "relative"},
}
starts = pytest.mark.parametrize("options", STARTS.values(), ids=STARTS)


@pytest.fixture(autouse=True, scope="module")
def one_thread():
    """Small matrices a thousand times: threads would mostly wait for one another."""
    with threadpool_limits(1):
        yield


def predicted(layer):
    """The largest ε²/(σ² + ε²) of all modes, in float64."""
    errors = []
    for W, eps in zip(layer.Ws, layer.eps, strict=True):
        if W is not None:
            W = W.detach().double().numpy()
            shift = oracle.shift(W, eps, layer.eps_mode)
            sigma = np.linalg.svd(W, compute_uv=False).min()
            errors.append(shift / (sigma**2 + shift))
    return max(errors)


def measured(layer):
    """The largest ‖UᵀU − I‖ of all modes (spectral norm), of the U's as they are, in float64."""
    Us = [U.detach().double().numpy() for U in layer.projections() if U is not None]
    return max(np.linalg.norm(U.T @ U - np.eye(U.shape[1]), 2) for U in Us)


def smallest_singular_value(layer):
    Us = [U.detach().double().numpy() for U in layer.projections() if U is not None]
    return min(np.linalg.svd(U, compute_uv=False).min() for U in Us)


def assert_as_predicted(layer):
    assert measured(layer) == pytest.approx(predicted(layer), rel=0, abs=1e-6)
    assert layer.orthogonality_error().item() == pytest.approx(measured(layer), rel=0, abs=1e-9)


# At the start


@starts
@pytest.mark.parametrize(
    ("large", "small"),
    [
        pytest.param((32, 12, 12), (20, 6, 6), id="oct"),
        pytest.param((1024, 5, 5), (64, None, None), id="chest"),
        pytest.param((128, 16, 16), (None, 8, 8), id="kvasir"),
        pytest.param((8, 32), (7, 31), id="near-square"),
    ],
)
def test_orthonormality_at_initialization(large, small, options):
    torch.manual_seed(0)
    assert_as_predicted(TensorProjection(large, small, **options))
    small = [p if q is None else q for p, q in zip(large, small, strict=True)]
    assert_as_predicted(TransposeTensorProjection(small, large, **options))


def test_the_papers_init_is_orthonormal_to_about_1e_4():
    """0.05 · normal with ε² = 1e-6, 12×6: σ is some 0.05 at the least, and ε²/σ² some 4e-4."""
    torch.manual_seed(0)
    errors = [measured(TensorProjection((12,), (6,))) for _ in range(50)]
    assert 1e-4 < np.median(errors) < 1e-3
    assert min(errors) > 5e-5


@pytest.mark.parametrize("name", ["orthonormal", "relative"])
def test_the_other_inits_are_orthonormal_to_2e_6(name):
    torch.manual_seed(0)
    for _ in range(50):
        assert measured(TensorProjection((32, 12), (20, 6), **STARTS[name])) <= 2e-6


def test_a_larger_eps_is_less_orthonormal():
    """ε = 0.5 at an orthonormal start: 0.25/1.25."""
    layer = TensorProjection((12,), (6,), init="orthogonal", eps=0.5)
    assert measured(layer) == pytest.approx(0.2, abs=1e-6)
    assert_as_predicted(layer)


# In training


def task():
    """Sixty samples in three classes that differ along a few directions of the second axis."""
    generator = torch.Generator().manual_seed(0)
    y = torch.arange(60) % 3
    means = torch.randn(3, 4, 12, generator=generator)
    return means[y] + 0.5 * torch.randn(60, 4, 12, generator=generator), y


def train(model, optimizer, steps):
    x, y = task()
    losses = []
    for _ in range(steps):
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


@starts
def test_after_1000_steps_of_adam(options):
    """Still what ε predicts; and nothing of a drift: 2e-6 and less where ε is relative.

    An orthonormal start alone does not promise that much for ever: an absolute ε follows wherever
    the training takes W's smallest singular value.
    """
    torch.manual_seed(0)
    layer = TensorProjection((4, 12), (None, 6), **options)
    W = layer.W2.detach().clone()
    model = nn.Sequential(layer, nn.Flatten(), nn.Linear(24, 3))
    losses = train(model, torch.optim.Adam(model.parameters(), lr=1e-3), 1000)
    assert losses[-1] < 0.05 * losses[0]
    assert torch.linalg.norm(layer.W2 - W) > 0.1 * torch.linalg.norm(W)
    assert_as_predicted(layer)
    if options == STARTS["paper"]:
        assert 1e-6 < measured(layer) < 1e-3
    else:
        assert measured(layer) <= (2e-6 if options == STARTS["relative"] else 1e-5)


# Under weight decay


def smallest_after_decay(eps_mode):
    """The smallest singular value of U after AdamW with strong decay of W, and W's norm.

    Behind the projection stands a batch normalisation, so that the loss does not see the scale of
    U at all and nothing but ε is in W's way to zero.
    """
    torch.manual_seed(0)
    layer = TensorProjection((4, 12), (None, 6), eps_mode=eps_mode)
    model = nn.Sequential(layer, nn.Flatten(), nn.BatchNorm1d(24, affine=False), nn.Linear(24, 3))
    before = smallest_singular_value(layer), torch.linalg.norm(layer.W2).item()
    groups = [
        {"params": layer.parameters(), "weight_decay": 100.0},
        {"params": model[3].parameters(), "weight_decay": 0.0},
    ]
    losses = train(model, torch.optim.AdamW(groups, lr=2e-4), 400)
    assert losses[-1] < 0.9 * losses[0]
    assert_as_predicted(layer)
    return before, (smallest_singular_value(layer), torch.linalg.norm(layer.W2).item())


def test_weight_decay_eats_U_with_an_absolute_eps():
    """U hardly depends on W's scale, so a loss does not hold W against the decay; once W is as
    small as the paper's absolute ε, U's singular values σ/√(σ² + ε²) go with it.
    """
    (before, norm), (after, small_norm) = smallest_after_decay("absolute")
    assert small_norm < 0.05 * norm
    assert before > 0.999
    assert after < 0.5


def test_weight_decay_leaves_U_alone_with_a_relative_eps():
    """W shrinks just as much, but ε with it: U stays orthonormal."""
    (before, norm), (after, small_norm) = smallest_after_decay("relative")
    assert small_norm < 0.05 * norm
    assert before > 1 - 2e-6
    assert after > 1 - 2e-6
