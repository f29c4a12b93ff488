"""Multilinear PCA as scikit-learn's users and TensorLy's see it."""

import pickle
import subprocess
import sys

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.base import clone
from sklearn.decomposition import PCA
from sklearn.exceptions import NotFittedError
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import GridSearchCV
from sklearn.pipeline import make_pipeline
from sklearn.utils.estimator_checks import check_estimator
from tensorly.decomposition import partial_tucker
from torch.utils.data import DataLoader, TensorDataset

import tensorprojection as tp
from tensorprojection import MPCA, ProjectionTypeError, ProjectionValueError


def samples(*shape, noise=0.3, seed=0):
    """Tensors with a mean, whose directions matter the less the later they come."""
    random = np.random.default_rng(seed)
    x = random.standard_normal(shape)
    for axis, size in enumerate(shape[1:], start=1):
        turn = np.linalg.qr(random.standard_normal((size, size)))[0]
        x = np.moveaxis(np.moveaxis(x, axis, -1) / np.arange(1, size + 1) @ turn, -1, axis)
    return x + noise * random.standard_normal(shape) + 2


def energy_kept(mpca, x):
    error = np.square(x - mpca.inverse_transform(mpca.transform(x))).sum()
    return 1 - error / np.square(x - x.mean(0)).sum()


# Right


@pytest.mark.parametrize("q", [1, 4, 9])
def test_order_1_is_PCA(q):
    x = samples(60, 9)
    mpca, pca = MPCA(q).fit(x), PCA(q, svd_solver="full").fit(x)
    signs = np.sign(np.sum(mpca.components_[0].T * pca.components_, axis=1))
    np.testing.assert_allclose(mpca.components_[0].T * signs[:, None], pca.components_, atol=1e-10)
    np.testing.assert_allclose(mpca.transform(x) * signs, pca.transform(x), atol=1e-10)
    np.testing.assert_allclose(mpca.mean_, pca.mean_)
    np.testing.assert_allclose(mpca.mode_spectra_[0][:q], pca.explained_variance_ratio_)
    assert mpca.captured_energy_ratio_ == pytest.approx(pca.explained_variance_ratio_.sum())
    back = mpca.inverse_transform(mpca.transform(x))
    np.testing.assert_allclose(back, pca.inverse_transform(pca.transform(x)), atol=1e-10)


def test_a_share_at_order_1_is_what_PCA_chooses():
    x = samples(60, 9)
    for share in (0.3, 0.6, 0.9, 0.99):
        assert MPCA(share).fit(x).out_shape_ == (
            PCA(share, svd_solver="full").fit(x).n_components_,
        )


@pytest.mark.usefixtures("tensorly_numpy")
@pytest.mark.parametrize(
    ("shape", "ranks"),
    [((8, 7), (3, 2)), ((7, 6, 5), (3, 3, 2)), ((5, 4, 3, 4), (2, 2, 2, 3)), ((7, 6), (7, 2))],
)
def test_energy_is_that_of_tensorlys_partial_tucker(shape, ranks):
    x = samples(40, *shape)
    mpca = MPCA(ranks, max_iter=500, tol=0).fit(x)
    modes = list(range(1, x.ndim))
    _, errors = partial_tucker(
        x - x.mean(0), rank=ranks, modes=modes, n_iter_max=500, init="svd", tol=1e-12
    )
    assert mpca.captured_energy_ratio_ == pytest.approx(1 - errors[-1] ** 2, abs=1e-6)
    assert energy_kept(mpca, x) == pytest.approx(mpca.captured_energy_ratio_, abs=1e-10)


@settings(max_examples=25, deadline=None)
@given(
    seed=st.integers(0, 1000),
    shape=st.lists(st.integers(2, 6), min_size=2, max_size=4),
    center=st.booleans(),
    data=st.data(),
)
def test_the_error_never_rises(seed, shape, center, data):
    x = samples(12, *shape, seed=seed)
    ranks = tuple(data.draw(st.integers(1, p)) for p in shape)
    mpca = MPCA(ranks, max_iter=8, tol=0, center=center).fit(x)
    assert np.all(np.diff(mpca.reconstruction_errors_) <= 1e-13)
    assert mpca.reconstruction_errors_[-1] == pytest.approx(1 - mpca.captured_energy_ratio_)
    for U in mpca.components_:
        np.testing.assert_allclose(U.T @ U, np.eye(U.shape[1]), atol=1e-10)


def test_sweeps_find_more_than_the_initialization():
    x = samples(40, 8, 7, 6, noise=2.0)
    mpca = MPCA((2, 2, 2), tol=0, max_iter=30).fit(x)
    assert mpca.n_iter_ > 1
    assert mpca.reconstruction_errors_[-1] < mpca.reconstruction_errors_[0] - 1e-4
    # Each error is a real one: stopping after a sweep gives it.
    for sweeps in (1, 3):
        stopped = MPCA((2, 2, 2), tol=0, max_iter=sweeps).fit(x)
        assert 1 - energy_kept(stopped, x) == pytest.approx(mpca.reconstruction_errors_[sweeps])


def test_a_larger_tol_stops_sooner():
    x = samples(40, 8, 7, 6, noise=2.0)
    few, many = (MPCA((2, 2, 2), tol=tol).fit(x).n_iter_ for tol in (1e-2, 1e-9))
    assert few < many
    # It is a share of the energy: the data's unit does not matter.
    for unit in (1e-3, 1e3):
        assert MPCA((2, 2, 2), tol=1e-2).fit(unit * x).n_iter_ == few


@pytest.mark.parametrize("share", [0.5, 0.8, 0.95, 1.0])
def test_a_share_is_kept(share):
    x = samples(40, 7, 6, 5)
    mpca = MPCA(share).fit(x)
    assert mpca.captured_energy_ratio_ >= share - 1e-10
    assert energy_kept(mpca, x) == pytest.approx(mpca.captured_energy_ratio_)
    assert mpca.out_shape_ == tp.suggest_out_shape(x, share).out_shape


def test_none_keeps_everything():
    x = samples(40, 4, 3)
    mpca = MPCA().fit(x)
    assert mpca.out_shape_ == (4, 3)
    np.testing.assert_allclose(mpca.inverse_transform(mpca.transform(x)), x)
    assert MPCA((None, 2)).fit(x).out_shape_ == (4, 2)
    assert MPCA(2).fit(x).out_shape_ == (2, 2)
    assert MPCA((np.int64(2), 1)).fit(x).out_shape_ == (2, 1)


def test_none_keeps_what_the_samples_determine():
    assert MPCA().fit(samples(4, 9)).out_shape_ == (3,)
    assert MPCA(center=False).fit(samples(4, 9)).out_shape_ == (4,)


def test_without_centring_nothing_is_taken_off():
    x = samples(40, 5, 4)
    mpca = MPCA((2, 2), center=False).fit(x)
    assert not mpca.mean_.any()
    U, V = mpca.components_
    np.testing.assert_allclose(mpca.transform(x), U.T @ x @ V)
    z = mpca.transform(x)
    assert mpca.captured_energy_ratio_ == pytest.approx(np.square(z).sum() / np.square(x).sum())


def test_mode_spectra_are_shares():
    mpca = MPCA((2, 2)).fit(samples(40, 5, 4))
    assert [s.shape for s in mpca.mode_spectra_] == [(5,), (4,)]
    for spectrum in mpca.mode_spectra_:
        assert spectrum.sum() == pytest.approx(1)
        assert np.all(np.diff(spectrum) <= 0)


# Streams


def test_a_loader_gives_what_the_whole_gives():
    x = torch.from_numpy(samples(50, 6, 5, 4))
    whole = MPCA((3, 2, 2)).fit(x)
    loader = DataLoader(TensorDataset(x, torch.zeros(50)), batch_size=7, shuffle=True)
    streamed = MPCA((3, 2, 2)).fit_loader(loader)
    for U, V in zip(whole.components_, streamed.components_, strict=True):
        np.testing.assert_allclose(U, V, atol=1e-8)
    np.testing.assert_allclose(streamed.mean_, whole.mean_)
    assert (streamed.n_iter_, streamed.n_samples_seen_) == (whole.n_iter_, 50)
    assert streamed.captured_energy_ratio_ == pytest.approx(whole.captured_energy_ratio_)
    flat = MPCA(0.9, in_shape=(6, 5, 4)).fit_loader([b.reshape(-1, 120) for b in x.split(9)])
    assert flat.out_shape_ == MPCA(0.9).fit(x).out_shape_


def test_batches_by_partial_fit_give_the_initialization_of_a_fit():
    x = samples(50, 6, 5, noise=1.0)
    mpca = MPCA((3, 2))
    for batch in np.array_split(x, 6):
        mpca.partial_fit(batch)
    first = MPCA((3, 2), max_iter=1).fit(x)
    for a, b in zip(mpca.mode_spectra_, first.mode_spectra_, strict=True):
        np.testing.assert_allclose(a, b)
    assert (mpca.n_iter_, mpca.n_samples_seen_) == (0, 50)
    assert energy_kept(mpca, x) == pytest.approx(1 - first.reconstruction_errors_[0])
    assert mpca.captured_energy_ratio_ <= energy_kept(mpca, x) + 1e-12  # a lower bound


def test_partial_fit_with_a_share_keeps_it():
    x = samples(50, 6, 5)
    mpca = MPCA(0.9).partial_fit(x[:20]).partial_fit(x[20:])
    assert energy_kept(mpca, x) >= mpca.captured_energy_ratio_ >= 0.9


def test_partial_fit_continues_a_fit_and_fit_does_not():
    x = samples(50, 6, 5)
    mpca = MPCA((3, 2)).fit(x[:30]).partial_fit(x[30:])
    np.testing.assert_allclose(mpca.mean_, x.mean(0))
    assert mpca.fit(x[:30]).n_samples_seen_ == 30


def test_a_refused_batch_leaves_the_estimator_as_it_was():
    x = torch.from_numpy(samples(50, 6, 5))
    mpca = MPCA((3, 2)).partial_fit(x)
    mean = mpca.mean_.copy()
    with pytest.raises(ProjectionValueError, match="got NaN"):
        mpca.partial_fit(torch.full((4, 6, 5), torch.nan))
    np.testing.assert_array_equal(mpca.mean_, mean)
    assert mpca.partial_fit(x).n_samples_seen_ == 100


def test_an_iterator_serves_where_one_pass_is_enough():
    x = torch.from_numpy(samples(50, 6, 5))
    one_mode = MPCA((3, None)).fit_loader(b for b in x.split(9))
    assert one_mode.captured_energy_ratio_ == pytest.approx(
        MPCA((3, 5)).fit(x).captured_energy_ratio_
    )
    with pytest.raises(ProjectionValueError, match=r"read more than once.*got an iterator"):
        MPCA((3, 2)).fit_loader(b for b in x.split(9))


# Kinds of input


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_numpy_in_numpy_out_of_its_type(dtype):
    x = samples(30, 5, 4).astype(dtype)
    mpca = MPCA((2, 3)).fit(x)
    z = mpca.transform(x)
    assert type(z) is np.ndarray
    assert (z.dtype, z.shape) == (dtype, (30, 2, 3))
    assert mpca.inverse_transform(z).dtype == dtype
    np.testing.assert_allclose(mpca.fit_transform(x), z)


@pytest.mark.parametrize("dtype", [torch.float16, torch.float32, torch.float64])
def test_torch_in_torch_out_of_its_type(dtype):
    x = torch.from_numpy(samples(30, 5, 4)).to(dtype)
    mpca = MPCA((2, 3)).fit(x)
    z = mpca.transform(x)
    assert (z.dtype, z.shape) == (dtype, (30, 2, 3))
    assert mpca.inverse_transform(z).dtype == dtype
    np.testing.assert_allclose(z.double(), mpca.transform(x.double().numpy()), atol=5e-3)


def test_transform_passes_gradients():
    x = torch.from_numpy(samples(30, 5, 4)).requires_grad_()
    MPCA((2, 3)).fit(x).transform(x).sum().backward()
    assert x.grad is not None


def test_flattened_in_flattened_out():
    x = samples(30, 5, 4)
    flat = x.reshape(30, 20)
    mpca = MPCA((2, 3), in_shape=(5, 4)).fit(flat)
    z = mpca.transform(flat)
    assert z.shape == (30, 6)
    np.testing.assert_allclose(z, MPCA((2, 3)).fit(x).transform(x).reshape(30, 6))
    np.testing.assert_allclose(mpca.transform(x), z.reshape(30, 2, 3))  # what came in decides
    assert mpca.inverse_transform(z).shape == (30, 20)
    assert mpca.inverse_transform(z.reshape(30, 2, 3)).shape == (30, 5, 4)
    assert list(mpca.get_feature_names_out()) == [f"mpca{i}" for i in range(6)]


def test_a_memory_map_is_fitted_and_transformed(tmp_path):
    x = samples(30, 5, 4)
    np.save(tmp_path / "x.npy", x)
    mapped = np.load(tmp_path / "x.npy", mmap_mode="r")
    np.testing.assert_allclose(MPCA((2, 3)).fit_transform(mapped), MPCA((2, 3)).fit_transform(x))


# scikit-learn


class Factored(MPCA):
    """MPCA with an in_shape made of whatever number of features a check brings."""

    def fit(self, X, y=None):
        return self._with_shape(X, super().fit)

    def partial_fit(self, X, y=None):
        return self._with_shape(X, super().partial_fit)

    def _with_shape(self, X, method):
        shape = X.shape if hasattr(X, "shape") else np.asarray(X).shape
        n = shape[1] if len(shape) == 2 and shape[1] else 1
        first = max(d for d in range(1, int(n**0.5) + 1) if n % d == 0)
        self.in_shape = (first, n // first)
        try:
            return method(X)
        finally:
            self.in_shape = None


@pytest.mark.filterwarnings("ignore:Skipping check check_array_api_input")
@pytest.mark.parametrize(
    "estimator", [MPCA(), MPCA(0.9), MPCA(1), Factored(), Factored(0.9), Factored(1)], ids=repr
)
def test_check_estimator(estimator):
    results = check_estimator(estimator)
    passed = [r["check_name"] for r in results if r["status"] == "passed"]
    assert len(passed) > 40


def test_the_factored_helper_has_two_modes():
    assert Factored(1).fit(samples(30, 10)).in_shape_ == (2, 5)


def test_in_a_pipeline_and_a_grid_search():
    x = samples(80, 6, 5).reshape(80, 30)
    y = (x[:, :5].sum(1) > x[:, :5].sum(1).mean()).astype(int)
    pipeline = make_pipeline(MPCA(in_shape=(6, 5)), LogisticRegression())
    grid = {"mpca__n_components": [(1, 1), (3, 4)], "mpca__center": [True, False]}
    search = GridSearchCV(pipeline, grid, cv=2).fit(x, y)
    assert search.best_params_["mpca__n_components"] != (1, 1)
    assert search.best_score_ > 0.7
    assert search.predict(x).shape == (80,)


def test_clone_and_pickle():
    x = samples(30, 5, 4)
    mpca = MPCA((2, 3), in_shape=(5, 4), tol=1e-3).fit(x)
    assert clone(mpca).get_params() == mpca.get_params()
    again = pickle.loads(pickle.dumps(mpca))
    np.testing.assert_array_equal(again.transform(x), mpca.transform(x))


# Wrong


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"n_components": (6, 2)}, ProjectionValueError, r"1 to 5 dim.*mode 1.*got 6 in \(6, 2\)"),
        ({"n_components": (2, 0)}, ProjectionValueError, "1 to 4 dimensions of mode 2.*got 0"),
        ({"n_components": (2, 2, 2)}, ProjectionValueError, r"one per mode \(2\), got 3"),
        ({"n_components": 1.5}, ProjectionValueError, "a share of the whole, got 1.5"),
        ({"n_components": 0.0}, ProjectionValueError, "a share of the whole, got 0.0"),
        ({"n_components": "many"}, ProjectionTypeError, "a shape such as.*got 'many'"),
        ({"n_components": (0.5, 2)}, ProjectionTypeError, r"a shape such as.*got \(0.5, 2\)"),
        ({"max_iter": 0}, ProjectionValueError, "max_iter >= 1, got 0"),
        ({"max_iter": 2.5}, ProjectionTypeError, "max_iter to be an integer, got 2.5"),
        ({"tol": -1}, ProjectionValueError, "tol >= 0, got -1"),
        ({"tol": "small"}, ProjectionTypeError, "tol to be a number, got 'small'"),
        ({"in_shape": (5, 5)}, ProjectionValueError, r"\(n, 5, 5\) or \(n, 25\), got \(30, 5, 4\)"),
        ({"in_shape": 20}, ProjectionTypeError, "in_shape to be a sequence"),
    ],
)
def test_wrong_parameters(options, error, message):
    with pytest.raises(error, match=message):
        MPCA(**options).fit(samples(30, 5, 4))


def test_fewer_samples_than_needed():
    with pytest.raises(ProjectionValueError, match=r"enough samples for 3 directions.*determine 2"):
        MPCA(3).fit(samples(3, 8))
    with pytest.raises(ValueError, match=r"2 samples.*got 1 sample"):
        MPCA(1).fit(samples(1, 8))


def test_wrong_data():
    nan = samples(30, 5, 4)
    nan[3, 2, 1] = np.nan
    with pytest.raises(ValueError, match="NaN"):
        MPCA((2, 2)).fit(nan)
    with pytest.raises(ProjectionValueError, match="NaN"):
        MPCA((2, 2)).fit(torch.from_numpy(nan))
    with pytest.raises(ProjectionValueError, match="data that varies"):
        MPCA((2, 2)).fit(np.ones((30, 5, 4)))
    with pytest.raises(ProjectionValueError, match="empty data"):
        MPCA((2, 2)).fit_loader([])
    with pytest.raises(ProjectionValueError, match=r"one shape, \(5, 4\), got \(5, 3\)"):
        MPCA((2, 2)).fit_loader([torch.randn(3, 5, 4), torch.randn(3, 5, 3)])


def test_wrong_data_for_a_fitted_one():
    mpca = MPCA((2, 2)).fit(samples(30, 5, 4))
    with pytest.raises(ProjectionValueError, match=r"\(n, 5, 4\) or \(n, 20\), got \(30, 4, 5\)"):
        mpca.transform(samples(30, 4, 5))
    with pytest.raises(ProjectionValueError, match=r"\(n, 5, 4\) or \(n, 20\), got \(30, 4, 5\)"):
        mpca.transform(torch.ones(30, 4, 5))
    with pytest.raises(ProjectionValueError, match=r"projections of shape \(n, 2, 2\) or \(n, 4\)"):
        mpca.inverse_transform(np.ones((30, 5)))
    with pytest.raises(NotFittedError):
        MPCA((2, 2)).transform(samples(30, 5, 4))


# Without scikit-learn


# In one process, as each imports torch: what is loaded, then without scikit-learn, then with it.
WITH_AND_WITHOUT = """
import sys, torch, tensorprojection as tp
from tensorprojection import *
print({"sklearn", "matplotlib", "scipy", "pandas"} & set(sys.modules))
sys.modules["sklearn"] = None
print(suggest_out_shape(torch.randn(50, 4, 3)).in_shape)
try:
    tp.MPCA
except ImportError as error:
    print(error)
del sys.modules["sklearn"]
tp.MPCA
print("sklearn" in sys.modules, "MPCA" in dir(tp))
"""


def test_scikit_learn_is_loaded_for_MPCA_alone_which_says_that_it_is_missing():
    command = [sys.executable, "-c", WITH_AND_WITHOUT]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    loaded, shape, message, there = done.stdout.splitlines()
    assert (loaded, shape, there) == ("set()", "(4, 3)", "True True")
    assert "needs scikit-learn: pip install 'tensorprojection[sklearn]'" in message


def test_other_names_are_missing_as_ever():
    with pytest.raises(AttributeError, match="has no attribute 'NPCA'"):
        _ = tp.NPCA


@pytest.mark.parametrize("kind", [np.asarray, torch.from_numpy])
def test_autocast_makes_no_difference(kind):
    x = kind(np.random.default_rng(0).normal(size=(50, 6, 5)).astype(np.float32))
    mpca = MPCA((3, 2)).fit(x)
    z = mpca.transform(x)
    back = mpca.inverse_transform(z)
    with torch.autocast("cpu", torch.bfloat16):
        assert (MPCA((3, 2)).fit(x).transform(x) == z).all()
        assert (mpca.inverse_transform(z) == back).all()


@pytest.mark.parametrize("mean", [0.0, 1e3, 1e6])
def test_float32_data_with_a_large_mean(mean):
    scales = np.linspace(2, 0.1, 6) * np.linspace(2, 0.1, 5)[:, None]
    x = (mean + np.random.default_rng(0).normal(size=(300, 5, 6)) * scales).astype(np.float32)
    exact = x.astype(np.float64)  # the same values, so the only difference is the arithmetic
    exact -= exact.mean(0)
    mpca, oracle = MPCA((2, 3)).fit(x), MPCA((2, 3)).fit(exact)
    z = mpca.transform(x)
    U1, U2 = mpca.components_
    np.testing.assert_allclose(z, np.einsum("nij,ia,jb->nab", exact, U1, U2), atol=1e-5)
    for U, V in zip(mpca.components_, oracle.components_, strict=True):
        np.testing.assert_allclose(U @ U.T, V @ V.T, atol=1e-5)
    for ours, theirs in zip(mpca.mode_spectra_, oracle.mode_spectra_, strict=True):
        np.testing.assert_allclose(ours, theirs, atol=1e-6)
