"""Structured inits, and the scale of W."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.nn.functional import avg_pool2d
from torch.testing import assert_close

from tensorprojection import (
    LazyTensorProjection,
    ProjectionTypeError,
    ProjectionValueError,
    TensorProjection,
    TransposeTensorProjection,
    init,
    parameter_groups,
)
from tensorprojection.init import INITS
from tensorprojection.init_matrices import _windows

POOLINGS = ["block", "blur", "dct"]
sizes = st.integers(1, 40).flatmap(lambda p: st.tuples(st.just(p), st.integers(1, p)))


@pytest.mark.parametrize("init", POOLINGS)
@settings(deadline=None)
@given(size=sizes)
def test_columns_are_orthonormal_for_any_size(init, size):
    p, q = size
    W = INITS[init](torch.full((p, q), torch.nan, dtype=torch.float64))
    assert_close(W.T @ W, torch.eye(q, dtype=torch.float64), rtol=0, atol=1e-13)


@settings(deadline=None)
@given(size=sizes)
def test_blocks_are_contiguous_and_as_even_as_can_be(size):
    p, q = size
    member = INITS["block"](torch.empty(p, q)) > 0
    assert (member.sum(1) == 1).all()  # every place lies in one block
    assert (member.int().argmax(1).diff() >= 0).all()  # in order
    lengths = member.sum(0)
    assert lengths.max() - lengths.min() <= 1


@pytest.mark.parametrize("pool", [1, 2, 3])
def test_block_init_is_average_pooling_up_to_a_factor(pool):
    layer = TensorProjection((5, 12, 12), (None, 12 // pool, 12 // pool), init="block")
    x = torch.randn(4, 5, 12, 12)
    assert_close(layer(x), pool * avg_pool2d(x, pool), rtol=0, atol=1e-5)


def test_dct_init_keeps_slow_waves_and_drops_fast_ones():
    layer = TensorProjection((16,), (4,), init="dct")
    places = (torch.arange(16) + 0.5) * torch.pi / 16
    waves = torch.stack([torch.cos(places * k) for k in range(16)])
    expected = (torch.arange(16) < 4).float()
    assert_close(layer.captured_energy(waves), expected, rtol=0, atol=1e-5)


def test_dct_init_is_the_cosine_transform_written_out():
    W = INITS["dct"](torch.empty(7, 5, dtype=torch.float64))
    # Eigenvectors of the path's Laplacian, a definition that names no cosine.
    L = 2 * torch.eye(7) - torch.eye(7).roll(1, 0).tril() - torch.eye(7).roll(-1, 0).triu()
    L[0, 0] = L[-1, -1] = 1
    _, V = torch.linalg.eigh(L.double())
    assert_close((V[:, :5].T @ W).abs(), torch.eye(5).double(), rtol=0, atol=1e-12)


# The blur initialization


def by_pascals_triangle(p, q):
    """Blur pooling of every s-th position for an integer s, one impulse at a time."""
    s = p // q
    window = torch.ones(1, dtype=torch.float64)
    for _ in range(s * s - 1):
        window = (
            torch.cat([window, window.new_zeros(1)]) + torch.cat([window.new_zeros(1), window])
        ) / 2
    before = (s * s - s) // 2  # of the window beyond a block of s
    impulses = torch.eye(p, dtype=torch.float64)
    turns = (
        2 * (before // p + 1) + 1
    )  # the axis and its mirror images, as often as a window reaches
    tiles = [impulses if k % 2 == turns // 2 % 2 else impulses.flip(1) for k in range(turns)]
    first = turns // 2 * p - before
    tiled = torch.cat(tiles, 1)[:, None, first : (turns // 2 + 1) * p + before + s * s]
    return torch.nn.functional.conv1d(tiled, window[None, None], stride=s)[:, 0, :q]


@pytest.mark.parametrize(("p", "q"), [(12, 6), (2, 1), (4, 2), (40, 20), (12, 4), (20, 5), (15, 3)])
def test_blur_init_is_the_frame_closest_to_blur_pooling(p, q):
    windows = by_pascals_triangle(p, q)
    W = INITS["blur"](torch.empty(p, q, dtype=torch.float64))
    # The polar factor, by its definition: what is left of the windows is symmetric and positive.
    left = W.T @ windows
    assert_close(left, left.T, rtol=0, atol=1e-12)
    assert torch.linalg.eigvalsh(left).min() > 0.1
    assert_close(W @ left, windows, rtol=0, atol=1e-12)


def test_blur_init_if_the_size_is_halved():
    windows = by_pascals_triangle(12, 6)
    assert (8 * windows[:, 0]).tolist() == [4, 3, 1] + 9 * [0]  # clamped
    assert (8 * windows[:, 2]).tolist() == [0, 0, 0, 1, 3, 3, 1, 0, 0, 0, 0, 0]
    inner = INITS["blur"](torch.empty(12, 6))[2:8, 2]
    assert_close(inner, torch.tensor([-0.11, 0.12, 0.69, 0.69, 0.12, -0.11]), rtol=0, atol=5e-3)


@settings(deadline=None)
@given(size=sizes)
def test_blur_init_is_symmetric_and_the_same_every_time(size):
    W = INITS["blur"](torch.empty(size, dtype=torch.float64))
    assert_close(W, W.flip(0, 1), rtol=0, atol=1e-12)
    torch.rand(1)
    assert torch.equal(INITS["blur"](torch.empty(size, dtype=torch.float64)), W)


@settings(deadline=None)
@given(size=st.integers(1, 120).flatmap(lambda p: st.tuples(st.just(p), st.integers(1, p))))
def test_blur_windows_are_independent_positive_averages(size):
    windows = torch.from_numpy(_windows(*size))
    assert (windows >= 0).all()
    assert_close(windows.sum(0), torch.ones(size[1]).double())
    values = torch.linalg.svdvals(windows)
    assert values.min() > 0.1 * values.max()


@pytest.mark.parametrize(("p", "q"), [(1024, 64), (1024, 1), (1024, 1023), (1000, 999), (700, 300)])
def test_blur_windows_of_long_axes(p, q):
    values = torch.linalg.svdvals(torch.from_numpy(_windows(p, q)))
    assert values.min() > 0.02 * values.max()


def test_blur_init_of_a_size_that_stays_is_the_identity():
    assert_close(INITS["blur"](torch.empty(9, 9)), torch.eye(9), rtol=0, atol=1e-6)


@pytest.mark.parametrize("factor", [1.5, 2, 2.5, 3, 4, 8])
def test_blur_init_is_local(factor):
    q = 24
    W = INITS["blur"](torch.empty(int(factor * q), q, dtype=torch.float64))
    places = torch.arange(len(W))[:, None]
    away = ((places + 0.5) / factor - 0.5 - torch.arange(q)).abs()  # in units of the factor
    near = (W.square() * (away < 1)).sum(0)
    assert near.min() > 0.93  # a column's energy within its own block and half of each neighbour
    for distance in range(1, 12):  # entries shrink at least by a half from block to block
        assert W[away >= distance].abs().max() < 0.8 * 0.5**distance
    dct = INITS["dct"](torch.empty_like(W))
    assert dct[away >= 11].abs().max() > 0.5 * dct.abs().max()


def test_blur_init_keeps_slow_waves_better_than_blocks_and_drops_fast_ones():
    places = (torch.arange(48) + 0.5) * torch.pi / 48
    slow, fast = (torch.cos(places * k)[None] for k in (12, 40))

    def energy(init, x):
        return TensorProjection((48,), (24,), init=init).captured_energy(x).item()

    assert energy("blur", slow) > energy("block", slow)
    assert energy("blur", fast) < energy("block", fast)


@pytest.mark.parametrize("init", POOLINGS)
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64])
def test_types(init, dtype):
    layer = TensorProjection((10,), (4,), init=init, dtype=dtype)
    W = layer.W1.detach().double()
    tolerance = 8 * torch.finfo(dtype).eps
    assert_close(W.T @ W, torch.eye(4).double(), rtol=0, atol=tolerance)


@pytest.mark.parametrize("init", POOLINGS)
def test_transposed_meta_and_lazy_layers(init):
    up = TransposeTensorProjection((4,), (9,), init=init)
    lazy = LazyTensorProjection((4,), init=init)
    lazy(torch.randn(2, 9))
    assert torch.equal(up.W1, lazy.W1)
    assert TensorProjection((9,), (4,), init=init, device="meta").W1.is_meta


def test_inits_by_mode():
    layer = TensorProjection((8, 6, 6), (4, 3, 3), init=("normal", "dct", "block"))
    assert abs(layer.W1.std().item() - 0.05) < 0.02
    assert torch.equal(layer.W2, INITS["dct"](torch.empty(6, 3)))
    assert torch.equal(layer.W3, INITS["block"](torch.empty(6, 3)))


@pytest.mark.parametrize("init", POOLINGS)
def test_gradients_are_finite_at_an_orthonormal_init(init):
    layer = TensorProjection((8, 6), (4, 3), init=init)
    (layer(torch.randn(5, 8, 6)).sin().sum()).backward()
    assert all(W.grad.isfinite().all() and W.grad.abs().max() > 0 for W in layer.parameters())


# The scale


@pytest.mark.parametrize("init", list(INITS))
def test_scale_multiplies_the_init(init):
    torch.manual_seed(1)
    plain = TensorProjection((9, 8), (4, 3), init=init)
    torch.manual_seed(1)
    scaled = TensorProjection((9, 8), (4, 3), init=init, init_scale=(0.25, 4))
    assert scaled.init_scale == (0.25, 4.0)
    assert_close(scaled.W1, 0.25 * plain.W1)
    assert_close(scaled.W2, 4 * plain.W2)


def test_scale_is_kept_by_all_that_make_a_layer():
    layer = TensorProjection((9, 8), (4, None), init="dct", init_scale=0.5)
    assert layer.transpose(tied=False).init_scale == (0.5, 0.5)
    expected = (
        "TensorProjection((9, 8) -> (4, 8), eps=0.001, init='dct', init_scale=0.5, 36 parameters)"
    )
    assert repr(layer) == expected
    lazy = LazyTensorProjection((4, None), init="dct", init_scale=0.5)
    lazy(torch.randn(2, 9, 8))
    assert torch.equal(lazy.W1, layer.W1)
    layer.W1.data.zero_()
    layer.reset_parameters()
    assert torch.equal(lazy.W1, layer.W1)


@pytest.mark.parametrize("scale", [0, -1.0, float("inf"), float("nan"), (1.0, 0.0)])
def test_a_scale_is_positive_and_finite(scale):
    with pytest.raises(ProjectionValueError, match="finite init_scale > 0, got"):
        TensorProjection((9, 8), (4, 3), init_scale=scale)


def test_a_scale_is_a_number_and_one_a_mode():
    with pytest.raises(ProjectionTypeError, match="init_scale to be a number, got 'big'"):
        TensorProjection((9, 8), (4, 3), init_scale="big")
    with pytest.raises(ProjectionValueError, match=r"init_scale.*one per mode \(2\), got 3"):
        TensorProjection((9, 8), (4, 3), init_scale=(1, 1, 1))


def turned(init, scale):
    """Radians between U's span at initialization and after 100 steps of Adam."""
    torch.manual_seed(0)
    x = torch.randn(256, 32) @ torch.randn(32, 32)
    layer = TensorProjection((32,), (8,), init=init, init_scale=scale)
    initial = layer.projections(torch.float64)[0].detach()
    optimizer = torch.optim.Adam(layer.parameters(), lr=1e-3)
    for _ in range(100):
        optimizer.zero_grad()
        (-layer.captured_energy(x).mean()).backward()
        optimizer.step()
    U = layer.projections(torch.float64)[0].detach()
    return torch.linalg.svdvals(initial.T @ U).min().clamp(max=1).acos().item()


# The table in init.py.
TURNED = {
    "orthogonal": (1.48, 1.32, 0.75, 0.26),
    "block": (1.47, 1.32, 0.69, 0.27),
    "blur": (1.50, 1.40, 0.70, 0.25),
    "dct": (1.49, 1.33, 0.77, 0.26),
    "normal": (1.50, 1.48, 1.38, 1.14),
}


@pytest.mark.parametrize("init", list(TURNED))
def test_the_scale_sets_how_fast_U_turns(init):
    angles = [turned(init, scale) for scale in (0.1, 0.3, 1, 3)]
    assert angles == sorted(angles, reverse=True)
    assert_close(angles, list(TURNED[init]), rtol=0, atol=0.05)


# The default, and functions as initializations


@pytest.mark.parametrize("kind", [TensorProjection, TransposeTensorProjection])
@pytest.mark.parametrize("order", [1, 2, 3, 4])
def test_auto_is_local_for_space_and_normal_for_channels(kind, order):
    large, small = (8, 6, 6, 6)[:order], (4, 3, 3, 3)[:order]
    shapes = (large, small) if kind is TensorProjection else (small, large)
    torch.manual_seed(3)
    layer = kind(*shapes)
    local = ("block",) * (order - 1) if order >= 3 else ("normal",) * (order - 1)
    assert layer.init == ("normal", *local)
    assert layer.init_scale == (1.0, *(3.0 if name == "block" else 1.0 for name in local))
    torch.manual_seed(3)
    by_name = kind(*shapes, init=layer.init, init_scale=layer.init_scale)
    for W, expected in zip(layer.Ws, by_name.Ws, strict=True):
        assert torch.equal(W, expected)


def test_a_scale_that_is_given_is_the_scale_of_auto():
    layer = TensorProjection((8, 6, 6), (4, 3, 3), init_scale=1.0)
    assert layer.init_scale == (1.0, 1.0, 1.0)
    assert_close(layer.W2, init.block_(torch.empty(6, 3)))


def test_the_repr_shows_what_auto_became():
    assert "init=('normal', 'block', 'block')" in repr(TensorProjection((8, 6, 6), (4, 3, 3)))
    assert "init='dct_'" in repr(TensorProjection((8,), (4,), init=init.dct_))


def test_a_lazy_layer_has_the_same_default():
    layer = LazyTensorProjection((4, 3, 3))
    layer(torch.randn(2, 8, 6, 6))
    assert layer.init == ("normal", "block", "block")


@pytest.mark.parametrize(
    "function", [init.dct_, torch.nn.init.orthogonal_, lambda W: W.data.fill_(0.5)]
)
def test_any_function_that_fills_a_tensor(function):
    torch.manual_seed(0)
    layer = TensorProjection((8, 6), (4, None), init=function, init_scale=2.0)
    torch.manual_seed(0)
    expected = torch.empty(8, 4)
    function(expected)
    assert_close(layer.W1, 2 * expected)


def test_one_function_or_name_per_mode():
    layer = TensorProjection((8, 6), (4, 3), init=(init.dct_, "block"))
    assert_close(layer.W1, init.dct_(torch.empty(8, 4)))
    assert_close(layer.W2, init.block_(torch.empty(6, 3)))


@pytest.mark.parametrize("wrong", ["Block", "paper", 3, None])
def test_an_unknown_init(wrong):
    with pytest.raises(ProjectionValueError, match=rf"'auto', 'normal'.*got {wrong!r}"):
        TensorProjection((8, 6), (4, 3), init=wrong)


def test_a_function_that_leaves_W_unset():
    with pytest.raises(ProjectionValueError, match=r"W1 in place, but .*lambda.* left NaN"):
        TensorProjection((8,), (4,), init=lambda W: torch.zeros_like(W))


def test_a_function_that_changes_the_shape_of_W():
    def transposed(W):
        W.data = torch.zeros(W.shape[::-1])

    with pytest.raises(ProjectionValueError, match=r"transposed changed its shape from \(8, 4\)"):
        TensorProjection((8,), (4,), init=transposed)


# Projections that are given


@pytest.mark.parametrize("eps_mode", ["absolute", "relative"])
def test_set_projections_is_the_right_inverse_of_projections(eps_mode):
    layer = TensorProjection((8, 6, 5), (4, None, 2), eps_mode=eps_mode)
    Us = TensorProjection((8, 6, 5), (4, None, 2), init="orthogonal").projections()
    layer.set_projections(Us)
    for U, expected in zip(layer.projections(), Us, strict=True):
        assert (U is None) == (expected is None)
        if U is not None:
            assert_close(U, expected, rtol=0, atol=2e-6)


@pytest.mark.parametrize(
    ("Us", "message"),
    [
        ([torch.eye(8, 4)], r"one U or None per mode \(2\), got 1"),
        ([torch.eye(8, 3), None], r"U1 of shape \(8, 4\), got \(8, 3\)"),
        ([None, None], r"U1 of shape \(8, 4\), got None"),
        ([torch.eye(8, 4), torch.eye(6, 6)], r"U2 of shape None, got \(6, 6\)"),
        ([1.1 * torch.eye(8, 4), None], r"U1 with orthonormal columns, got .* up to 0\.21"),
        ([torch.full((8, 4), torch.nan), None], "orthonormal columns, got .* up to nan"),
    ],
)
def test_projections_that_cannot_be_set(Us, message):
    layer = TensorProjection((8, 6), (4, None))
    W = layer.W1.detach().clone()
    with pytest.raises(ProjectionValueError, match=message):
        layer.set_projections(Us)
    assert torch.equal(layer.W1, W)


def test_weight_decay_leaves_the_projections_alone():
    down = TensorProjection((8, 6), (4, 3))
    model = torch.nn.Sequential(down, torch.nn.Linear(3, 3), down.transpose())
    decayed, others = parameter_groups(model, weight_decay=0.1)
    assert [p.shape for p in decayed["params"]] == [(3, 3), (3,)]
    assert decayed["weight_decay"] == 0.1
    assert {id(p) for p in others["params"]} == {id(down.W1), id(down.W2)}  # tied: once
    assert others["weight_decay"] == 0
    torch.optim.AdamW([decayed, others]).step()
