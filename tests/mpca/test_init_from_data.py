"""Initializations from data."""

import pytest
import torch
from sklearn.decomposition import PCA
from torch import nn
from torch.testing import assert_close

import tensorprojection as tp
from tensorprojection import (
    LazyTensorProjection,
    LazyTransposeTensorProjection,
    ProjectionTypeError,
    ProjectionValueError,
    TensorProjection,
    TransposeTensorProjection,
)


def samples(*shape, noise=0.3, seed=0):
    g = torch.Generator().manual_seed(seed)
    x = torch.randn(*shape, generator=g)
    for axis, p in enumerate(shape[1:], start=1):
        mixing = torch.randn(p, p, generator=g) / torch.arange(1, p + 1)[:, None]
        x = (x.movedim(axis, -1) @ mixing).movedim(-1, axis)
    return x + noise * torch.randn(*shape, generator=g) + 2


def projector(U):
    return U @ U.mT


def leading(x, k, q):
    """The leading q directions of mode k, by the singular value decomposition."""
    centred = (x - x.mean(0)).double()
    A = centred.movedim(k, 0).reshape(x.shape[k], -1)
    return torch.linalg.svd(A, full_matrices=False)[0][:, :q]


def test_U_spans_the_leading_directions_of_every_mode():
    x = samples(60, 7, 6, 5)
    layer = TensorProjection((7, 6, 5), (3, None, 2))
    assert tp.init_from_data(layer, x) is layer
    U1, U2, U3 = layer.projections(torch.float64)
    assert_close(projector(U1), projector(leading(x, 1, 3)), rtol=0, atol=1e-5)
    assert U2 is None
    assert_close(projector(U3), projector(leading(x, 3, 2)), rtol=0, atol=1e-5)
    assert all(W.requires_grad for W in layer.parameters())


def test_at_order_1_it_is_PCA():
    x = samples(60, 9)
    layer = tp.init_from_data(TensorProjection((9,), (4,)), x)
    V = torch.from_numpy(PCA(4).fit(x.double().numpy()).components_.T)
    assert_close(projector(layer.projections(torch.float64)[0]), projector(V), rtol=0, atol=1e-5)


def test_sweeps_reach_MPCA():
    x = samples(60, 7, 6, 5, noise=2).double()
    layer = TensorProjection((7, 6, 5), (2, 2, 2), dtype=torch.float64)
    centred = x - x.mean(0)

    def kept():
        return layer(centred).square().sum() / centred.square().sum()

    tp.init_from_data(layer, x)
    initial = kept()
    tp.init_from_data(layer, x, sweeps=40)
    mpca = tp.MPCA((2, 2, 2), max_iter=40, tol=0).fit(x)
    assert kept() > initial + 1e-4
    assert kept().item() == pytest.approx(mpca.captured_energy_ratio_, abs=1e-5)


def test_a_transposed_layer_learns_from_what_it_is_to_give():
    x = samples(60, 7, 6)
    up = tp.init_from_data(TransposeTensorProjection((3, 2), (7, 6)), x)
    down = tp.init_from_data(TensorProjection((7, 6), (3, 2)), x)
    assert torch.equal(up.W1, down.W1)
    assert torch.equal(up.W2, down.W2)
    with pytest.raises(ProjectionValueError, match=r"output shape, \(n, 7, 6\), got .*\(3, 2\)"):
        tp.init_from_data(up, samples(60, 3, 2))


def test_a_lazy_layer_takes_its_shape_from_the_data():
    x = samples(60, 7, 6)
    lazy = tp.init_from_data(LazyTensorProjection((3, None), dtype=torch.float64), x)
    assert type(lazy) is TensorProjection
    assert lazy.in_shape == (7, 6)
    eager = TensorProjection((7, 6), (3, None), dtype=torch.float64)
    assert torch.equal(lazy.W1, tp.init_from_data(eager, x).W1)


def test_a_lazy_transposed_layer_needs_a_call_first():
    layer, x = LazyTransposeTensorProjection((7, 6)), samples(60, 7, 6)
    with pytest.raises(ProjectionValueError, match=r"no shapes yet.*Call it once"):
        tp.init_from_data(layer, x)
    layer(torch.randn(3, 2))
    assert tp.init_from_data(layer, x).in_shape == (3, 2)


def test_scale_and_type_are_the_layers():
    layer = TensorProjection((7, 6), (3, 2), init_scale=(0.5, 2), dtype=torch.bfloat16)
    tp.init_from_data(layer, samples(60, 7, 6))
    assert layer.W1.dtype == torch.bfloat16
    for W, scale in zip(layer.parameters(), (0.5, 2.0), strict=True):
        norms = W.detach().double().norm(dim=0)
        assert_close(norms, torch.full_like(norms, scale), rtol=0.02, atol=0)


def test_without_centring_the_mean_is_the_first_direction():
    x = 20 + samples(60, 7)
    layer = tp.init_from_data(TensorProjection((7,), (1,)), x, center=False)
    mean = x.mean(0) / x.mean(0).norm()
    assert (layer.W1[:, 0] @ mean).abs() > 0.999
    tp.init_from_data(layer, x)
    assert (layer.W1[:, 0] @ mean).abs() < 0.9


def test_one_pass_over_a_stream_is_enough():
    x = samples(60, 7, 6)
    whole = tp.init_from_data(TensorProjection((7, 6), (3, 2)), x)
    streamed = tp.init_from_data(TensorProjection((7, 6), (3, 2)), (b for b in x.split(7)))
    assert_close(streamed.W1, whole.W1, rtol=0, atol=1e-4)
    with pytest.raises(ProjectionValueError, match=r"more than once.*got an iterator"):
        tp.init_from_data(streamed, (b for b in x.split(7)), sweeps=2)


def test_features_from_inside_a_model():
    model = nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU(), TensorProjection((8, 6, 6), (4, 3, 3)))
    images = [(samples(20, 3, 8, 8, seed=s), 0) for s in range(3)]
    tp.init_from_data(model[2], tp.capture(model, "1", images))
    with torch.no_grad():
        seen = model[1](model[0](torch.cat([x for x, _ in images])))
    expected = tp.init_from_data(TensorProjection((8, 6, 6), (4, 3, 3)), seen)
    for W, by_hand in zip(model[2].parameters(), expected.parameters(), strict=True):
        assert_close(W, by_hand, rtol=0, atol=1e-4)
    # It keeps more of what it will see than a random initialization.
    seen = seen - seen.mean(0)
    by_chance = TensorProjection((8, 6, 6), (4, 3, 3))
    assert model[2].captured_energy(seen).mean() > by_chance.captured_energy(seen).mean() + 0.1


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (samples(60, 6, 7), r"input shape, \(n, 7, 6\), got samples of shape \(6, 7\)"),
        (torch.ones(60, 7, 6), "data that varies"),
        (torch.full((60, 7, 6), torch.nan), "got NaN"),
        ([], "empty data"),
        (samples(1, 7, 6), "at least 2 samples.*got 1 sample"),
        ([samples(9, 7, 6), samples(9, 7, 5)], r"one shape, \(7, 6\), got \(7, 5\)"),
    ],
)
def test_wrong_data_leaves_the_layer_as_it_was(data, message):
    layer = TensorProjection((7, 6), (3, 2))
    W = layer.W1.detach().clone()
    with pytest.raises(ProjectionValueError, match=message):
        tp.init_from_data(layer, data)
    assert torch.equal(layer.W1, W)


def test_fewer_samples_than_directions():
    with pytest.raises(ProjectionValueError, match=r"enough samples for 5 .*got 4 samples.*mine 3"):
        tp.init_from_data(TensorProjection((9,), (5,)), samples(4, 9))


def test_wrong_arguments():
    with pytest.raises(ProjectionTypeError, match="got Linear"):
        tp.init_from_data(nn.Linear(3, 2), samples(9, 3))
    for sweeps in (-1, 1.5, True):
        with pytest.raises(ProjectionValueError, match="sweeps to be an integer >= 0"):
            tp.init_from_data(TensorProjection((3,), (2,)), samples(9, 3), sweeps=sweeps)


@pytest.mark.parametrize("sweeps", [0, 2])
def test_autocast_makes_no_difference(sweeps):
    x = torch.randn(200, 6, 5)
    expected = tp.init_from_data(TensorProjection((6, 5), (3, 2)), x, sweeps=sweeps)
    with torch.autocast("cpu", torch.bfloat16):
        got = tp.init_from_data(TensorProjection((6, 5), (3, 2)), x, sweeps=sweeps)
    assert torch.equal(got.W1, expected.W1)
    assert torch.equal(got.W2, expected.W2)
