"""What projections learn: which frequencies U lets through, and the figure of it by epoch."""

import io
import re

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import fft
from scipy.stats import ortho_group
from synthetic_runs import synthetic_run

from tensorprojection.studies.report import page
from tensorprojection.studies.report.frequencies import cosines, low_pass, passed
from tensorprojection.studies.report.page.charts import observed_charts
from tensorprojection.studies.report.page.pictures import heat_map
from tensorprojection.studies.report.page.runs import read_runs
from tensorprojection.studies.report.projections import figure, learned_layers
from tensorprojection.studies.report.write import write
from tensorprojection.studies.results import UnitFiles

# Frequencies


@pytest.mark.parametrize("p", [1, 2, 7, 12])
def test_cosines_are_scipys(p):
    np.testing.assert_allclose(cosines(p).T, fft.dct(np.eye(p), axis=0, norm="ortho"), atol=1e-12)


@given(p=st.integers(2, 12), q=st.integers(2, 12), seed=st.integers(0, 99))
def test_what_is_let_through_depends_on_the_span_alone(p, q, seed):
    p, q = max(p, q), min(p, q)
    U = np.linalg.qr(np.random.default_rng(seed).normal(size=(p, q)))[0]
    turned = U @ ortho_group.rvs(q, random_state=seed)
    np.testing.assert_allclose(passed(turned), passed(U), atol=1e-9)
    np.testing.assert_allclose(passed(U), np.square(fft.dct(U, axis=0, norm="ortho")).sum(axis=1))
    np.testing.assert_allclose(passed(U).sum(), q)
    assert passed(U).max() <= 1 + 1e-9


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


# The figure


@pytest.fixture
def run(tmp_path):
    def make(**settings):
        return synthetic_run(tmp_path / "run", **settings)

    return make


def change(folder, trial, model, **arrays):
    """Put other arrays into what was observed; None removes one."""
    file = UnitFiles.of(folder, trial, model).observed
    with np.load(file) as found:
        whole = {**found, **{name.replace("__", "/"): a for name, a in arrays.items()}}
    buffer = io.BytesIO()
    np.savez(buffer, **{name: array for name, array in whole.items() if array is not None})
    file.write_bytes(buffer.getvalue())


def layers_of(folder, **part):
    [found] = read_runs([folder], **part)
    return found.curves, learned_layers(found.curves, found.observed)


def test_start_and_epochs_of_every_trial(run):
    folder = run(models=("base", "tpl1"), trials=3, epochs=5)
    curves, [layer] = layers_of(folder)
    assert layer.title == curves.model_title("tpl1")
    assert layer.epochs == 5
    assert {mode: Us.shape for mode, Us in layer.modes.items()} == dict.fromkeys(
        (2, 3), (3, 6, 12, 6)
    )
    with np.load(UnitFiles.of(folder, 1, "tpl1").observed) as there:
        np.testing.assert_array_equal(layer.modes[3][1, 0], there["start/pool4/3"])
        np.testing.assert_array_equal(layer.modes[3][1, 1:], there["by_epoch/pool4/3"])


def test_as_of_an_epoch(run):
    _, [layer] = layers_of(run(models=("tpl1",), trials=2, epochs=5), epoch=3)
    assert layer.epochs == 3
    assert layer.modes[2].shape == (2, 4, 12, 6)


def test_what_does_not_change_is_not_learned(run):
    folder = run(models=("tpl1", "tpl2"), trials=1, epochs=4)
    U = np.eye(12, 6, dtype=np.float16)
    fixed = {f"{kind}__pool4__{mode}": U for kind in ("start", "U") for mode in (2, 3)}
    fixed |= {f"by_epoch__pool4__{mode}": np.repeat(U[None], 4, 0) for mode in (2, 3)}
    change(folder, 0, "tpl1", **fixed)
    curves, layers = layers_of(folder)
    assert [layer.title for layer in layers] == [curves.model_title("tpl2")]


def test_trials_of_an_older_version_are_left_out(run):
    folder = run(models=("tpl1",), trials=3)
    change(folder, 1, "tpl1", by_epoch__pool4__2=None, by_epoch__pool4__3=None)
    _, [layer] = layers_of(folder)
    assert len(layer.modes[2]) == len(layer.modes[3]) == 2
    [chart] = [c for c in observed_charts(read_runs([folder])[0]) if "mode 2" in c["title"]]
    assert chart["title"] == "Low-pass share of mode 2: pool4"
    assert [None in line for line in chart["lines"][0]["trials"]] == [False, True, False]


def test_trials_that_are_not_so_far_yet_are_left_out(run):
    """And a layer is shown as far as it has got where another network is further."""
    folder = run(models=("base", "tpl1"), trials=3, epochs=5)
    for trial, epochs in ((0, 2), (1, 3), (2, 3)):
        with np.load(UnitFiles.of(folder, trial, "tpl1").observed) as found:
            short = {n: found[n][:epochs] for n in found if n.startswith(("ep", "by", "en", "or"))}
        change(folder, trial, "tpl1", **{n.replace("/", "__"): a for n, a in short.items()})
    curves, [layer] = layers_of(folder)
    assert layer.epochs == 3
    assert {mode: len(Us) for mode, Us in layer.modes.items()} == {2: 2, 3: 2}
    assert "median of 2 trials" in figure(curves, [layer]).get_suptitle()


def test_trials_of_another_shape_are_left_out(run):
    """A study may choose its shapes by a trial's images."""
    folder = run(models=("tpl1",), trials=3, epochs=2)
    other = {"start__pool4__2": np.zeros((12, 4)), "by_epoch__pool4__2": np.ones((2, 12, 4))}
    change(folder, 2, "tpl1", **other)
    _, [layer] = layers_of(folder)
    assert layer.modes[2].shape == (2, 3, 12, 6)
    assert layer.modes[3].shape == (3, 3, 12, 6)


@pytest.mark.parametrize(
    "odd", [np.array("text"), np.array(1.0), np.ones((1, 12, 6)), np.full((5, 12, 6), np.nan)]
)
def test_odd_arrays_are_as_good_as_none(run, odd):
    folder = run(models=("tpl1",), trials=1, epochs=5)
    change(folder, 0, "tpl1", by_epoch__pool4__2=odd, by_epoch__pool4__x=np.ones((5, 2, 2)))
    _, [layer] = layers_of(folder)
    assert set(layer.modes) == {3}
    assert observed_charts(read_runs([folder])[0])


def test_a_layer_without_the_first_mode_has_empty_panels(run):
    folder = run(models=("tpl1", "tpl2"), trials=1, epochs=5)
    change(folder, 0, "tpl2", by_epoch__pool4__2=None)
    panels = figure(*layers_of(folder)).axes
    shown = [len(panel.images) for panel in panels]
    assert shown == [1, 1, 1, 1, 1, 1, 0, 0, 0, 0, 0, 1]


def test_layers_of_one_network_are_told_apart(run):
    folder = run(models=("tpl1",), trials=1, epochs=2)
    with np.load(UnitFiles.of(folder, 0, "tpl1").observed) as found:
        up = {n.replace("pool4", "up4").replace("/", "__"): found[n] for n in found if "pool4" in n}
    change(folder, 0, "tpl1", **up)
    curves, layers = layers_of(folder)
    title = curves.model_title("tpl1")
    assert [layer.title for layer in layers] == [f"{title}: pool4", f"{title}: up4"]


def test_panels_show_U_and_what_it_lets_through(run):
    curves, layers = layers_of(run(models=("base", "tpl1", "tpl2"), trials=2, epochs=5))
    panels = figure(curves, layers).axes
    assert len(panels) == 2 * (4 + 2)  # at the start and at epochs 1, 2 and 5; height and width
    [image] = panels[1].images
    np.testing.assert_array_equal(image.get_array(), layers[0].modes[2][0, 1].T)
    [image] = panels[-1].images
    first, second = ([passed(U) for U in trial] for trial in layers[1].modes[3])
    np.testing.assert_allclose(image.get_array(), (np.array(first) + second) / 2)
    assert "median of 2 trials" in panels[0].figure.get_suptitle()


def test_the_report_has_it_where_something_was_learned(run, tmp_path):
    [found] = read_runs([run(models=("base", "tpl1"), trials=2)])
    files = write(found.curves, tmp_path / "out", found.observed)
    assert {f.name for f in files if f.stem == "projections"} == {
        "projections.png",
        "projections.svg",
    }
    assert all(file.stat().st_size > 1000 for file in files if file.stem == "projections")
    files = write(found.curves.only(["base"]), tmp_path / "out", found.observed)
    assert not any(file.stem == "projections" for file in files)
    assert not (tmp_path / "out" / "figures" / "projections.png").exists()  # it is of another time


def test_the_page_as_of_an_epoch_has_the_U_of_that_epoch(run, tmp_path):
    """Where it was kept by epoch; of a larger one there is only the run's last."""
    folder = run(models=("base", "tpl1"), trials=1, epochs=5)
    text = page.write([folder], tmp_path, epoch=3).read_text("utf-8")
    with np.load(UnitFiles.of(folder, 0, "tpl1").observed) as found:
        at_three, start = found["by_epoch/pool4/2"][2], found["start/pool4/2"]
    at_three, start = at_three.astype(np.float64), start.astype(np.float64)
    share = 100 * low_pass(at_three)
    assert f"→ {share:.0f} % (50 % by chance)" in text
    top = float(max(np.abs(start).max(), np.abs(at_three).max()))
    assert heat_map(at_three.T, top) in text
    left = 100 * np.square(np.linalg.svd(start.T @ at_three)[1]).sum() / 6
    assert f"{left:.1f} % of the first subspace left" in text
    assert {int(n) for n in re.findall(r"<small>after epoch (\d+)", text)} == {3, 5}
