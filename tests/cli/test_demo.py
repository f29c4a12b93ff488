"""``tpl demo``, with small layers: what it prints is what it measured, wrote and read."""

import re

import numpy as np
import polars
import pytest

from tensorprojection.cli import demo

# Cyclopts wonders why a test calls it as a shell does.
pytestmark = pytest.mark.filterwarnings("ignore:Cyclopts application invoked without tokens")


@pytest.fixture(autouse=True)
def small(monkeypatch):
    monkeypatch.setattr(demo, "RACES", ("Kvasir-16 up", "OCT-1"))
    monkeypatch.setattr(demo, "ROUNDS", 2)
    monkeypatch.setattr(demo, "FOUND", ("oct-sizes",))
    monkeypatch.setenv("COLUMNS", "100")


def hide(monkeypatch, *names):
    """Let the demo find none of these packages."""
    find = demo.find_spec
    monkeypatch.setattr(demo, "find_spec", lambda name: None if name in names else find(name))


def test_it_times_swaps_exports_steps_and_shows_the_recorded_rows(tmp_path, tpl):
    for package in ("geotorch", "onnx", "onnxruntime", "onnxscript"):
        pytest.importorskip(package)
    code, out, err = tpl("demo", "--out", tmp_path)
    assert (code, err) == (0, "")
    lines = out.splitlines()
    # Time: each contender's milliseconds, and the ratio of the two is the one that is summed up
    rows = re.findall(r"^ (\S+) .* ([\d.]+) ms +(?:([\d.]+) ×)?", out, re.M)
    order = "TensorProjection ConvTranspose2d geotorch TensorProjection MaxPool2d geotorch"
    assert " ".join(name for name, _, _ in rows) == order
    for ours, *others in (rows[:3], rows[3:]):
        for _, milliseconds, ratio in others:
            expected = float(milliseconds) / float(ours[1])
            assert float(ratio) == pytest.approx(expected, rel=0.1, abs=0.1)
    summary = next(line for line in lines if "relative to this layer's" in line)
    assert f"ConvTranspose2d {rows[1][2]}, geotorch " in summary
    # Swap: the file agrees with what the network returned, here as in the demo's own process
    assert "5         MaxPool2d  (32, 24, 24) -> (32, 12, 12)  0 -> 576" in lines
    import onnxruntime

    session = onnxruntime.InferenceSession(tmp_path / "network.onnx")
    (found,) = session.run(None, {session.get_inputs()[0].name: np.load(tmp_path / "input.npy")})
    assert np.abs(found - np.load(tmp_path / "output.npy")).max() < 1e-5
    (difference,) = re.findall(r"differs from the trained network's by at most (\S+)", out)
    assert float(difference) < 1e-5
    # Gradients
    assert re.findall(r"(\d+) of 144 weights are NaN", out) == ["144", "0"]
    # Real images: the count, from the rows themselves
    rows = polars.read_parquet(demo.RESULTS / "oct-sizes" / "results.parquet")
    best = rows.sort("loss").group_by("model", "trial").first()
    pairs = best.pivot("model", index="trial", values="test_loss")
    ahead = int((pairs["tpl-16x3x3"] < pairs["base"]).sum())
    assert "TensorProjection to 16 × 3 × 3 has the lowest test loss" in out
    assert f"better in {ahead} of {len(pairs)} trials" in out
    page = tmp_path / "oct-sizes" / "report.html"
    assert f"Open in a browser: {page}" in lines
    assert "Retinal OCT" in page.read_text(encoding="utf-8")


def test_with_the_studies_extra_alone_and_outside_of_a_clone(tmp_path, tpl, monkeypatch):
    hide(monkeypatch, "geotorch", "onnx", "onnxruntime", "onnxscript")
    monkeypatch.setattr(demo, "RACES", ("OCT-1",))
    monkeypatch.setattr(demo, "train", lambda *_, **__: None)
    monkeypatch.setattr(demo, "RESULTS", tmp_path / "absent")
    code, out, err = tpl("demo", "--out", tmp_path)
    assert (code, err) == (0, "")
    assert "SVD and autograd" in out
    assert "To export it to ONNX: pip install 'tensorprojection[onnx]'" in out
    assert "differs from the trained network's" not in out
    assert f"Open in a browser: {demo.ONLINE}" in out


def test_a_folder_that_cannot_be_made_is_an_error_of_one_line(tmp_path, tpl):
    (tmp_path / "file").write_text("")
    code, out, err = tpl("demo", "--out", tmp_path / "file" / "demo")
    assert (code, out) == (2, "")
    assert err.startswith("tpl: Could not write ")
