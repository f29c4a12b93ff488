"""The choice of dimensions: exact if data can be read twice, otherwise a guaranteed bound."""

import sys
from itertools import product
from math import prod

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.testing import assert_close

import tensorprojection as tp
from tensorprojection import ProjectionError, ProjectionTypeError, ProjectionValueError


def samples(*shape, seed=0, noise=0.2):
    g = torch.Generator().manual_seed(seed)
    x = torch.randn(*shape, generator=g, dtype=torch.float64)
    for axis, p in enumerate(shape[1:], start=1):
        decay = torch.arange(1, p + 1, dtype=torch.float64).pow(-1)
        mixing = torch.linalg.qr(torch.randn(p, p, generator=g, dtype=torch.float64))[0]
        x = (x.movedim(axis, -1) * decay @ mixing).movedim(-1, axis)
    return x + noise * torch.randn(*shape, generator=g, dtype=torch.float64) + 1


def directions(x):
    """The leading directions of each mode, by the singular value decomposition."""
    x = x - x.mean(0)
    unfolded = [x.movedim(k, 0).reshape(x.shape[k], -1) for k in range(1, x.ndim)]
    return [torch.linalg.svd(A, full_matrices=False)[0] for A in unfolded]


def energy_of(x, shape):
    """What the leading directions keep, measured."""
    z = x - x.mean(0)
    total = z.square().sum()
    for k, (V, q) in enumerate(zip(directions(x), shape, strict=True), start=1):
        z = torch.tensordot(z, V[:, :q], dims=([k], [0])).movedim(-1, k)
    return (z.square().sum() / total).item()


@settings(max_examples=20, deadline=None)
@given(
    seed=st.integers(0, 999),
    shape=st.lists(st.integers(1, 4), min_size=1, max_size=3),
    energy=st.floats(0.05, 1.0),
)
def test_it_is_the_smallest_of_all_shapes(seed, shape, energy):
    x = samples(20, *shape, seed=seed)
    found = tp.suggest_out_shape(x, energy)
    assert found.exact
    assert found.captured_energy == pytest.approx(energy_of(x, found.out_shape), abs=1e-10)
    assert found.captured_energy >= energy - 1e-9
    every = product(*(range(1, p + 1) for p in shape))
    enough = [s for s in every if energy_of(x, s) >= energy + 1e-9]
    assert all(prod(found.out_shape) <= prod(s) for s in enough)
    as_small = [s for s in enough if prod(s) == prod(found.out_shape)]
    assert all(found.captured_energy >= energy_of(x, s) - 1e-9 for s in as_small)


@settings(max_examples=20, deadline=None)
@given(
    seed=st.integers(0, 999),
    shape=st.lists(st.integers(1, 5), min_size=1, max_size=4),
    energy=st.floats(0.05, 1.0),
)
def test_an_iterator_gets_a_shape_that_keeps_at_least_as_much(seed, shape, energy):
    x = samples(20, *shape, seed=seed)
    found = tp.suggest_out_shape(iter(x.split(6)), energy)
    kept = energy_of(x, found.out_shape)
    assert kept >= found.captured_energy - 1e-10  # what it says it keeps at least
    assert found.captured_energy >= energy - 1e-10  # and that is enough
    assert prod(found.out_shape) >= prod(tp.suggest_out_shape(x, energy).out_shape)


def test_spectra_are_squared_singular_values():
    x = samples(30, 5, 4)
    found = tp.suggest_out_shape(x)
    centred = x - x.mean(0)
    for k, values in enumerate(found.spectra, start=1):
        sigma = torch.linalg.svdvals(centred.movedim(k, 0).reshape(x.shape[k], -1))
        assert_close(values, sigma.square() / sigma.square().sum())


def test_low_rank_is_found():
    x = torch.randn(50, 2, 3, 4).double()
    for k, p in enumerate((6, 7, 8), start=1):
        mixing = torch.randn(x.shape[k], p).double()
        x = torch.tensordot(x, mixing, dims=([k], [0])).movedim(-1, k)
    assert tp.suggest_out_shape(x, 1.0).out_shape == (2, 3, 4)
    assert tp.suggest_out_shape(iter([x]), 1.0).out_shape == (2, 3, 4)
    assert tp.suggest_out_shape(x.float(), 1 - 1e-6).out_shape == (2, 3, 4)


def test_a_loader_is_as_good_as_a_tensor():
    x = samples(40, 5, 4)
    whole, streamed = tp.suggest_out_shape(x, 0.9), tp.suggest_out_shape(x.split(7), 0.9)
    assert streamed.exact
    assert streamed.out_shape == whole.out_shape
    assert streamed.captured_energy == pytest.approx(whole.captured_energy)


def test_without_centring_the_mean_counts():
    x = 10 + samples(40, 5, 4)
    assert tp.suggest_out_shape(x, 0.9, center=False).out_shape == (1, 1)
    assert prod(tp.suggest_out_shape(x, 0.9).out_shape) > 1


def test_repr_and_table():
    x = torch.zeros(4, 3, 2)
    x[0, 0, 0], x[1, 0, 0], x[2, 1, 1], x[3, 1, 1] = 3.0, -3.0, 1.0, -1.0
    found = tp.suggest_out_shape(x, 0.85)
    assert repr(found) == "Suggestion((3, 2) -> (1, 1), keeps 90.00 % of the energy)"
    assert found.table().splitlines() == [
        "mode   size   90 %   95 %   99 %   suggested   its own share",
        "   1      3      1      2      2           1         90.00 %",
        "   2      2      1      2      2           1         90.00 %",
    ]
    assert "keeps at least 80.00 %" in repr(tp.suggest_out_shape(iter([x]), 0.8))


@pytest.mark.parametrize(
    ("energy", "error"),
    [
        (0, ProjectionValueError),
        (1.01, ProjectionValueError),
        (float("nan"), ProjectionValueError),
        ("most", ProjectionTypeError),
        (True, ProjectionTypeError),
    ],
)
def test_wrong_energy(energy, error):
    with pytest.raises(error, match=r"Expected (0 < energy <= 1|energy to be a number)"):
        tp.suggest_out_shape(torch.randn(9, 3), energy)


def test_wrong_data():
    with pytest.raises(ProjectionValueError, match="empty data"):
        tp.suggest_out_shape([])
    with pytest.raises(ProjectionValueError, match="data that varies"):
        tp.suggest_out_shape(torch.ones(9, 3))


# Drawing


def test_plot_shows_every_mode(tmp_path):
    x = samples(40, 5, 4)
    axes = tp.plot_spectra(x, tmp_path / "new" / "spectra.png")
    assert (tmp_path / "new" / "spectra.png").stat().st_size > 0
    found = tp.suggest_out_shape(x)
    labels = [text.get_text() for text in axes.get_legend().get_texts()]
    assert labels == [
        f"mode {k}: {q} of {p}"
        for k, (p, q) in enumerate(zip((5, 4), found.out_shape, strict=True), start=1)
    ]
    first = axes.lines[0]
    np.testing.assert_allclose(first.get_ydata(), found.spectra[0].cumsum(0))
    assert tp.plot_spectra(found, axes) is axes
    assert len(axes.lines) == 8


def test_plot_says_that_matplotlib_is_missing(monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    with pytest.raises(ProjectionError, match="needs matplotlib"):
        tp.plot_spectra(samples(40, 5, 4))


def test_a_suggestion_is_a_shape():
    suggestion = tp.suggest_out_shape(torch.randn(60, 5, 4), 0.7)
    assert tuple(suggestion) == suggestion.out_shape
    assert len(suggestion) == 2
    assert (suggestion[0], suggestion[-1], suggestion[:1]) == (
        suggestion.out_shape[0],
        suggestion.out_shape[1],
        suggestion.out_shape[:1],
    )
    for layer in (
        tp.TensorProjection((5, 4), suggestion),
        tp.LazyTensorProjection(suggestion),
        tp.TransposeTensorProjection(suggestion, (5, 4)).transpose(),
    ):
        assert layer(torch.ones(1, 5, 4)).shape == (1, *suggestion.out_shape)


def test_autocast_makes_no_difference():
    x = torch.randn(200, 6, 5)
    expected = tp.suggest_out_shape(x, 0.7)
    with torch.autocast("cpu", torch.bfloat16):
        got = tp.suggest_out_shape(x, 0.7)
    assert got.captured_energy == expected.captured_energy
    for a, b in zip(got.spectra, expected.spectra, strict=True):
        assert torch.equal(a, b)
