"""Spectra of data from tensors, arrays and streams of batches, and the data that is refused."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils.data import DataLoader, TensorDataset

import tensorprojection as tp
from tensorprojection import MPCA, ProjectionTypeError, ProjectionValueError

shapes = st.lists(st.integers(1, 5), min_size=1, max_size=4)


def by_hand(x, center=True):
    """The spectra by definition, with NumPy, in float64, one unfolding after the other."""
    x = np.asarray(x, dtype=np.float64)
    x = x - x.mean(0) if center else x
    unfolded = [np.moveaxis(x, k, 0).reshape(x.shape[k], -1) for k in range(1, x.ndim)]
    values = [np.linalg.eigvalsh(A @ A.T)[::-1] for A in unfolded]
    return [v / v.sum() for v in values]


def check(data, x, center=True, atol=1e-9):
    spectra = tp.suggest_out_shape(data, center=center).spectra
    for found, expected in zip(spectra, by_hand(x, center), strict=True):
        np.testing.assert_allclose(found, expected, atol=atol)


def mixed(*shape, seed=0):
    """Data with a mean and with some directions stronger than others."""
    g = torch.Generator().manual_seed(seed)
    x = torch.randn(*shape, generator=g, dtype=torch.float64) + 3
    return x @ torch.randn(shape[-1], shape[-1], generator=g, dtype=torch.float64)


@settings(deadline=None)
@given(shape=shapes, cuts=st.lists(st.integers(1, 7), min_size=2, max_size=5), center=st.booleans())
def test_any_order_and_any_cut_into_batches(shape, cuts, center):
    x = mixed(sum(cuts), *shape)
    check(list(x.split(cuts)), x, center)


def test_a_large_mean_costs_no_digits():
    # In float32, where Σ x xᵀ − n m mᵀ would keep none.
    x = 1000 + torch.randn(400, 5, 4)
    check(list(x.split(7)), x, atol=1e-5)


def test_data_of_several_chunks():
    x = mixed(400, 60, 60)  # 11.5 MB: chunks have 8
    check(x, x)
    check(x.numpy(), x)


def test_components_are_sorted_and_have_a_sign():
    mpca = MPCA((4, 3)).fit(mixed(50, 6, 5))
    for U in mpca.components_:
        assert (np.take_along_axis(U, np.abs(U).argmax(0)[None], 0) > 0).all()
    for values in mpca.mode_spectra_:
        assert (np.diff(values) <= 0).all()


# Kinds of data


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
        check(data, x)


def test_flattened_batches():
    x = mixed(20, 4, 3)
    mpca = MPCA((2, 2), in_shape=(4, 3)).fit_loader(list(x.reshape(20, 12).split(6)))
    for found, expected in zip(mpca.mode_spectra_, by_hand(x), strict=True):
        np.testing.assert_allclose(found, expected, atol=1e-9)


@pytest.mark.parametrize("dtype", [torch.uint8, torch.bool, torch.float16, torch.int64])
def test_types_are_read_without_loss(dtype):
    x = (torch.arange(24).reshape(6, 4) % 5 == 0).to(dtype)
    check(x, x.double(), atol=1e-6)
    if dtype is torch.int64:
        check(2**40 + x, x.double(), atol=1e-6)  # float32 would lose x


def test_a_parameter_of_a_network_is_read_without_its_history():
    x = torch.randn(5, 3, requires_grad=True)
    assert not tp.suggest_out_shape(x).spectra[0].requires_grad


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
        tp.suggest_out_shape(data)


def test_zeros_are_wrong_and_constants_are_not_without_centring():
    assert tp.suggest_out_shape(torch.ones(5, 3), center=False).out_shape == (1,)
    with pytest.raises(ProjectionValueError, match="varies, got zeros only"):
        tp.suggest_out_shape(torch.zeros(5, 3), center=False)


def test_a_shape_that_changes_between_updates():
    mpca = MPCA().partial_fit(torch.randn(5, 3, 2))
    with pytest.raises(ProjectionValueError, match=r"shape \(n, 3, 2\).*got \(5, 4, 2\)"):
        mpca.partial_fit(torch.randn(5, 4, 2))


def test_data_that_gives_other_samples_in_a_later_pass_is_refused():
    class Once:
        def __init__(self):
            self.batches = iter(torch.randn(3, 5, 4, 3))

        def __iter__(self):
            return (batch for batch in self.batches)

    layer = tp.TensorProjection((4, 3), (2, 2))
    with pytest.raises(tp.ProjectionValueError, match="the same samples in every pass, got 15"):
        tp.init_from_data(layer, Once(), sweeps=2)
