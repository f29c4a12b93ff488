"""What projections learn: which frequencies U lets through, and how it changes by epoch."""

import io

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import fft
from scipy.stats import ortho_group
from synthetic_runs import synthetic_run

from tensorprojection.studies.report import charts, page
from tensorprojection.studies.report.charts import heat_map
from tensorprojection.studies.report.projections import cosines, low_pass
from tensorprojection.studies.report.run import read_runs
from tensorprojection.studies.results import JobFiles

# Frequencies


@pytest.mark.parametrize("p", [1, 2, 7, 12])
def test_cosines_are_scipys(p):
    np.testing.assert_allclose(cosines(p).T, fft.dct(np.eye(p), axis=0, norm="ortho"), atol=1e-12)


@given(p=st.integers(2, 12), q=st.integers(2, 12), seed=st.integers(0, 99))
def test_low_pass_depends_on_the_span_alone(p, q, seed):
    p, q = max(p, q), min(p, q)
    U = np.linalg.qr(np.random.default_rng(seed).normal(size=(p, q)))[0]
    turned = U @ ortho_group.rvs(q, random_state=seed)
    np.testing.assert_allclose(low_pass(turned), low_pass(U), atol=1e-9)


@given(p=st.integers(2, 12), q=st.integers(1, 12), seed=st.integers(0, 99))
def test_low_pass_is_what_a_low_pass_leaves_of_U(p, q, seed):
    """By the other way round: U's columns after the high frequencies are taken out of them."""
    p, q = max(p, q), min(p, q)
    U = np.random.default_rng(seed).normal(size=(p, q))
    spectrum = fft.dct(U, axis=0, norm="ortho")
    spectrum[q:] = 0
    left = fft.idct(spectrum, axis=0, norm="ortho")
    np.testing.assert_allclose(low_pass(U), np.square(left).sum() / np.square(U).sum())


def test_low_pass_is_one_for_cosines_and_nothing_for_the_others():
    k = np.arange(8)
    waves = np.cos(np.pi * (k[:, None] + 0.5) * k / 8)
    assert low_pass(waves[:, :3]) == pytest.approx(1)
    assert low_pass(waves[:, 5:]) == pytest.approx(0)


# By epoch, and in the page


@pytest.fixture
def run(tmp_path):
    def make(**settings):
        return synthetic_run(tmp_path / "run", **settings)

    return make


def change(folder, trial, model, **arrays):
    """Put other arrays into what was observed; None removes one."""
    file = JobFiles.of(folder, trial, model).observed
    with np.load(file) as found:
        whole = {**found, **{name.replace("__", "/"): a for name, a in arrays.items()}}
    buffer = io.BytesIO()
    np.savez(buffer, **{name: array for name, array in whole.items() if array is not None})
    file.write_bytes(buffer.getvalue())


def test_a_low_pass_share_is_of_the_trials_that_have_the_matrix(run):
    folder = run(models=("tpl1",), trials=3)
    change(folder, 1, "tpl1", by_epoch__pool4__2=None, by_epoch__pool4__3=None)
    [found] = read_runs([folder])
    [chart] = [c for c in charts.observations(found) if "mode 2" in c["title"]]
    assert chart["title"] == "Low-pass share of mode 2: pool4"
    shares = []
    for trial in (0, 2):
        with np.load(JobFiles.of(folder, trial, "tpl1").observed) as there:
            shares.append(low_pass(there["by_epoch/pool4/2"][0].astype(float)))
    assert chart["data"]["values"][0]["value"] == pytest.approx(np.median(shares), rel=1e-3)


@pytest.mark.parametrize("odd", [np.array("text"), np.array(1.0), np.ones((1, 12, 6))])
def test_odd_arrays_are_as_good_as_none(run, odd):
    folder = run(models=("tpl1",), trials=1, epochs=5)
    change(folder, 0, "tpl1", by_epoch__pool4__2=odd, by_epoch__pool4__x=np.ones((5, 2, 2)))
    titles = [chart["title"] for chart in charts.observations(read_runs([folder])[0])]
    assert "Low-pass share of mode 3: pool4" in titles


def test_the_page_has_every_U_at_its_init_and_at_the_end(run, tmp_path):
    folder = run(models=("base", "tpl1"), trials=1, epochs=5)
    text = page.write(read_runs([folder]), tmp_path).read_text("utf-8")
    with np.load(JobFiles.of(folder, 0, "tpl1").observed) as found:
        end, init = (found[f"{kind}/pool4/2"].astype(np.float64) for kind in ("U", "start"))
    assert f"→ {100 * low_pass(end):.0f} % (50 % by chance)" in text
    top = float(max(np.abs(init).max(), np.abs(end).max()))
    assert heat_map(init.T, top) in text
    assert heat_map(end.T, top) in text
    left = 100 * np.square(np.linalg.svd(init.T @ end)[1]).sum() / 6
    assert f"{left:.1f} % of the first subspace left" in text
