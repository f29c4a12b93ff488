"""What projections learn: which frequencies U lets through, before and after training."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import fft
from scipy.stats import ortho_group
from synthetic_runs import synthetic_run

from tensorprojection.studies.report import page
from tensorprojection.studies.report.pictures import heat_map, low_pass
from tensorprojection.studies.report.run import read_run
from tensorprojection.studies.results import JobFiles

# Frequencies


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


# In the page


def test_the_page_has_every_U_at_its_init_and_at_the_end(tmp_path):
    folder = synthetic_run(tmp_path / "run", models=("base", "tpl1"), trials=1, epochs=5)
    text = page.write(read_run(folder), tmp_path).read_text("utf-8")
    with np.load(JobFiles.of(folder, 0, "tpl1").observed) as found:
        end, init = (found[f"{kind}/pool4/2"].astype(np.float64) for kind in ("U", "start"))
    assert f"→ {100 * low_pass(end):.0f} % (50 % by chance)" in text
    top = float(max(np.abs(init).max(), np.abs(end).max()))
    assert heat_map(init.T, top) in text
    assert heat_map(end.T, top) in text
    left = 100 * np.square(np.linalg.svd(init.T @ end)[1]).sum() / 6
    assert f"{left:.1f} % of the first subspace left" in text


def test_a_low_pass_share_is_of_the_trials_that_have_the_matrix(tmp_path):
    folder = synthetic_run(tmp_path / "run", models=("tpl1",), trials=3)
    JobFiles.of(folder, 1, "tpl1").observed.unlink()
    shares = []
    for trial in (0, 2):
        with np.load(JobFiles.of(folder, trial, "tpl1").observed) as there:
            shares.append(low_pass(there["U/pool4/2"].astype(float)))
    text = page.write(read_run(folder), tmp_path).read_text("utf-8")
    assert f"→ {100 * np.median(shares):.0f} % (50 % by chance)" in text
