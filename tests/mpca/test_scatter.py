"""Scatter matrices by mode, of streams of batches."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.testing import assert_close
from torch.utils.data import DataLoader, TensorDataset

from tensorprojection import ProjectionTypeError, ProjectionValueError
from tensorprojection.mpca import batches as source_module
from tensorprojection.mpca.batches import Source
from tensorprojection.mpca.scatter import (
    ModeScatter,
    core_energies,
    leading,
    projected_scatter,
    scatter,
)

shapes = st.lists(st.integers(1, 5), min_size=1, max_size=4)


def by_hand(x, center=True):
    """The definition, with NumPy, in float64, one unfolding after the other."""
    x = np.asarray(x, dtype=np.float64)
    x = x - x.mean(0) if center else x
    unfolded = [np.moveaxis(x, k, 0).reshape(x.shape[k], -1) for k in range(1, x.ndim)]
    return [torch.from_numpy(A @ A.T) for A in unfolded]


def mixed(*shape, seed=0):
    """Data with a mean and with some directions stronger than others."""
    g = torch.Generator().manual_seed(seed)
    x = torch.randn(*shape, generator=g, dtype=torch.float64) + 3
    return x @ torch.randn(shape[-1], shape[-1], generator=g, dtype=torch.float64)


@settings(deadline=None)
@given(shape=shapes, cuts=st.lists(st.integers(1, 7), min_size=1, max_size=5), center=st.booleans())
def test_any_order_and_any_cut_into_batches(shape, cuts, center):
    x = mixed(sum(cuts), *shape)
    seen = ModeScatter(center=center)
    for batch in x.split(cuts):
        seen.update(batch)
    assert seen.count == len(x)
    assert_close(seen.mean, x.mean(0) if center else torch.zeros_like(x[0]))
    for S, expected in zip(seen.scatters, by_hand(x, center), strict=True):
        assert_close(S, expected, rtol=1e-9, atol=1e-9)


def test_merging_two_is_seeing_both():
    x = mixed(30, 4, 3)
    left, right = ModeScatter(), ModeScatter()
    left.update(x[:11])
    right.update(x[11:])
    both = ModeScatter()
    both.merge(left)
    both.merge(right)
    assert (left.count, right.count, both.count) == (11, 19, 30)
    assert_close(left.scatters, by_hand(x[:11]))  # a merge leaves its parts alone
    for S, expected in zip(both.scatters, by_hand(x), strict=True):
        assert_close(S, expected)


def test_a_large_mean_costs_no_digits():
    # In float32, where Σ x xᵀ − n m mᵀ would keep none.
    spread = torch.randn(400, 5, 4)
    x = 1000 + spread
    seen = ModeScatter()
    for batch in x.split(7):
        seen.update(batch)
    for S, expected in zip(seen.scatters, by_hand(x), strict=True):
        assert (S - expected).norm() < 1e-5 * expected.norm()


@pytest.mark.parametrize("chunk", [1, 700, 10**9])
def test_the_chunks_do_not_matter(monkeypatch, chunk):
    monkeypatch.setattr(source_module, "CHUNK_BYTES", chunk)
    x = mixed(20, 5, 6, 3)
    for S, expected in zip(scatter(Source(x)).scatters, by_hand(x), strict=True):
        assert_close(S, expected)


@pytest.mark.parametrize("shape", [(6,), (6, 5), (2, 9, 3), (5, 2, 30)])
def test_projected_scatter_and_energies(shape):
    x = mixed(15, *shape)
    center = x.mean(0)
    Us = [torch.linalg.qr(torch.randn(p, max(1, p // 2), dtype=torch.float64))[0] for p in shape]
    letters = "abc"[: len(shape)]

    def down(k=None):
        z = x - center
        for j, U in enumerate(Us):
            if j != k:
                z = torch.tensordot(z, U, dims=([j + 1], [0])).movedim(-1, j + 1)
        return z

    for k, c in enumerate(letters):
        z = down(k)
        two = letters.replace(c, "z")
        expected = torch.einsum(f"n{letters},n{two}->{c}z", z, z)
        assert_close(projected_scatter(Source(x), center, Us, k), expected)
    assert_close(core_energies(Source(x), center, Us), down().square().sum(0))


def test_leading_eigenvectors_are_sorted_and_have_a_sign():
    S = by_hand(mixed(50, 6))[0]
    values, V = leading(S, 4)
    assert (values.diff() <= 0).all()
    assert_close(S @ V, V * values)
    assert (V.gather(0, V.abs().argmax(0, keepdim=True)) > 0).all()


# What a source takes


def test_sources_of_all_kinds_give_the_same(tmp_path):
    x = mixed(50, 4, 3)
    np.save(tmp_path / "x.npy", x.numpy())
    y = torch.zeros(50)
    sources = [
        x,
        x.numpy(),
        x.numpy()[::-1],
        x.numpy().astype(">f8"),
        np.load(tmp_path / "x.npy", mmap_mode="r"),
        list(x.split(7)),
        (batch for batch in x.split(7)),
        [(batch.numpy(), 0) for batch in x.split(7)],
        DataLoader(TensorDataset(x, y), batch_size=8, shuffle=True),
    ]
    for data in sources:
        for S, expected in zip(scatter(Source(data)).scatters, by_hand(x), strict=True):
            assert_close(S, expected)


def test_flattened_batches_and_a_transform():
    x = mixed(20, 4, 3)
    for data, options in [
        (x.reshape(20, 12), {"in_shape": (4, 3)}),
        (x.split(6), {"transform": lambda b: b}),
        ([(b.mT, 1) for b in x.split(6)], {"transform": lambda b: b.mT}),
    ]:
        for S, expected in zip(scatter(Source(data, **options)).scatters, by_hand(x), strict=True):
            assert_close(S, expected)


@pytest.mark.parametrize(
    ("dtype", "working"),
    [
        (torch.uint8, torch.float32),
        (torch.bool, torch.float32),
        (torch.float16, torch.float32),
        (torch.int64, torch.float64),
        (torch.float64, torch.float64),
    ],
)
def test_types_are_read_without_loss(dtype, working):
    x = (torch.arange(24).reshape(6, 4) % 5 == 0).to(dtype)
    (chunk,) = Source(x).chunks()
    assert chunk.dtype == working
    assert torch.equal(chunk.to(dtype), x)


def test_a_parameter_of_a_network_is_read_without_its_history():
    assert not scatter(Source(torch.randn(5, 3, requires_grad=True))).scatters[0].requires_grad


# Wrong data


@pytest.mark.parametrize(
    ("data", "error", "message"),
    [
        ([], ProjectionValueError, "at least one sample, got empty data"),
        (torch.ones(0, 3), ProjectionValueError, "at least one sample, got empty data"),
        (torch.ones(1, 3), ProjectionValueError, "at least 2 samples.*got 1 sample"),
        (torch.ones(5, 3), ProjectionValueError, "data that varies, got the same sample"),
        (torch.full((90, 3), 0.1), ProjectionValueError, "data that varies, got the same sample"),
        (torch.tensor([[1.0], [torch.nan]]), ProjectionValueError, "finite.*got NaN"),
        (torch.tensor([[1.0], [torch.inf]]), ProjectionValueError, "finite.*infinity"),
        (torch.tensor([[1e30], [-1e30]]), ProjectionValueError, "too large for their type"),
        (torch.ones(5), ProjectionValueError, r"shape \(n, p1, ...\).*got \(5,\)"),
        (torch.ones(5, 0), ProjectionValueError, r"at least 1, got shape \(5, 0\)"),
        (
            [torch.ones(5, 3), torch.ones(5, 4)],
            ProjectionValueError,
            r"one shape, \(3,\), got \(4,\)",
        ),
        ([{"x": torch.ones(5, 3)}], ProjectionTypeError, "tuples.*got dict"),
        ([("a", 1)], ProjectionTypeError, "got a tuple of str"),
        ([()], ProjectionTypeError, "got an empty tuple"),
        (3, ProjectionTypeError, "a loader that gives batches of them, got int"),
        (torch.ones(5, 3, dtype=torch.complex64), ProjectionTypeError, "real.*complex64"),
        (np.array([["a"], ["b"]]), ProjectionTypeError, "real numbers, got <U1"),
    ],
)
def test_wrong_data(data, error, message):
    with pytest.raises(error, match=message):
        scatter(Source(data))


def test_zeros_are_wrong_and_constants_are_not_without_centring():
    assert scatter(Source(torch.ones(5, 3)), center=False).total == 15
    with pytest.raises(ProjectionValueError, match="varies, got zeros only"):
        scatter(Source(torch.zeros(5, 3)), center=False)


def test_a_loader_that_gives_fewer_samples_the_second_time():
    class Shrinking:
        left = 5

        def __iter__(self):
            yield torch.randn(self.left, 3)
            self.left -= 1

    source = Source(Shrinking())
    seen = scatter(source)
    with pytest.raises(ProjectionValueError, match=r"same samples.*got 5 in the first and 4"):
        core_energies(source, seen.mean, [None])


def test_a_shape_that_changes_between_updates():
    seen = ModeScatter()
    seen.update(torch.randn(5, 3))
    with pytest.raises(ProjectionValueError, match=r"shape \(3,\), as before, got \(4,\)"):
        seen.update(torch.randn(5, 4))
