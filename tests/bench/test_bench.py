"""`tpl bench`: measures, prints and stores; no test depends on how long anything took."""

import json
import sys
from dataclasses import replace
from shutil import which

import pytest
import torch

from tensorprojection.bench import report, run
from tensorprojection.bench.cases import CASES, INFER, SUITES
from tensorprojection.bench.limit import least_bytes, least_flops
from tensorprojection.bench.measure import ratio
from tensorprojection.bench.peers import Textbook
from tensorprojection.cli.main import command_line, main


# What torch warns of in its own code when it compiles.
@pytest.mark.filterwarnings("ignore:.*should not be instantiated:DeprecationWarning")
@pytest.mark.filterwarnings(r"ignore:`torch\.jit\.script:DeprecationWarning")
def test_a_run_leaves_a_record_and_a_figure(tmp_path, capsys):
    command_line([])(
        ["bench", "--rounds", "2", "--only", "OCT-1", "--out", str(tmp_path)],
        result_action="return_value",
    )
    rows = json.loads((tmp_path / "bench.json").read_text())["cases"]
    assert {(row["case"], row["memory_format"], row["task"]) for row in rows} == {
        (f"OCT-1{size}", memory_format, task)
        for size in ("", ", batch 1", ", batch 8")
        for memory_format in ("NCHW", "NHWC")
        for task in ("training", "inference")
    }
    found = {"textbook", "TCL", "geotorch", "U", "replaced", "limit"}
    if any(map(which, ("c++", "g++", "clang++"))):
        found.add("compiled")
    assert set(rows[0]["by_this"]) == found
    assert set(rows[-1]["by_this"]) == {"frozen", "folded", "replaced", "limit"}
    assert all(ratio["median"] > 0 for row in rows for ratio in row["by_this"].values())
    text = (tmp_path / "bench.md").read_text()
    assert "| OCT-1 | 300 | 32×12×12 → 32×6×6 | NCHW | " in text
    assert text.index("## Training") < text.index("## Inference")
    assert (tmp_path / "bench.png").stat().st_size > 10_000
    assert "MaxPool2d" in capsys.readouterr().out


# That it is read, and not a list of arguments, is what is meant here.
reads_the_command_line = pytest.mark.filterwarnings(
    "ignore:Cyclopts application invoked without tokens"
)


@pytest.fixture
def tpl_bench(monkeypatch, capsys, tmp_path):
    """``tpl_bench("--rounds", "1")``: exit code and stderr of a call that measures nothing."""
    monkeypatch.setattr(report, "run_cases", lambda *_: pytest.fail("it measures"))
    monkeypatch.chdir(tmp_path)

    def call(*arguments):
        monkeypatch.setattr(sys, "argv", ["tpl", "bench", *arguments])
        with pytest.raises(SystemExit) as ended:
            main()
        out, err = capsys.readouterr()
        assert out == ""
        return ended.value.code, err

    return call


@reads_the_command_line
@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["--only", "nosuch"], "tpl: Expected --only to be part of a case's name (OCT-1, OCT-2, "),
        (["--rounds", "1"], "tpl: Expected at least 2 --rounds, for quartiles, got 1.\n"),
        (["--rounds", "-3", "--only", "OCT-1"], "tpl: Expected at least 2 --rounds, "),
        (["--suite", "all"], 'tpl: Invalid value "all" for --suite. Choose from: "train", '),
        (["--suite", "large", "--only", "OCT-1"], "tpl: Expected --only to be part of a case's "),
        (["--out", "file"], "tpl: Expected --out to be a folder that can be written to, got file"),
    ],
    ids=str,
)
def test_a_mistake_gives_one_line(arguments, says, tpl_bench, tmp_path):
    (tmp_path / "file").touch()
    code, err = tpl_bench(*arguments)
    assert code == 2
    assert err.startswith(says)
    assert err.count("\n") == 1
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


@reads_the_command_line
def test_peers_that_are_not_installed_are_named(tpl_bench, monkeypatch):
    monkeypatch.setattr(run, "find_spec", lambda name: None if name == "tltorch" else object())
    code, err = tpl_bench()
    assert (code, err.count("\n")) == (2, 1)
    assert "need tltorch: pip install 'tensorprojection[peers]', or" in err
    assert "geotorch" not in err


def test_ratio_is_the_median_over_rounds():
    result = ratio({"a": [1.0, 4.0, 9.0], "b": [1.0, 2.0, 3.0]}, "a", "b")
    assert (result.median, result.low, result.high) == (2.0, 1.5, 2.5)


def test_limit_of_a_case_by_hand():
    chest = next(case for case in CASES if case.name == "chest")
    assert least_flops(chest) == 3 * 2 * 64 * 1024 * 25 * 64
    assert least_flops(chest, INFER) == 2 * 64 * 1024 * 25 * 64
    assert least_bytes(chest) == 4 * 64 * 25 * (3 * 1024 + 2 * 64)
    assert least_bytes(chest, INFER) == 4 * 64 * 25 * (1024 + 64)


EVERY = {case.name: case for suite in SUITES.values() for _, cases in suite for case in cases}


@pytest.mark.parametrize("name", EVERY)
def test_what_it_replaces_has_the_same_output(name):
    case = replace(EVERY[name], batch=1)
    for memory_format in case.formats:
        x = case.input(memory_format)
        with case.context():
            z, other = case.layer()(x), case.other(memory_format)
            assert z.shape[1:] == case.target
            if other is not None:
                found = other(x)
                assert (found.shape, found.dtype) == (z.shape, z.dtype)


def test_other_types_are_compared_with_what_they_replace_in_the_same_type(tmp_path):
    command_line([])(
        ["bench", "--suite=types", "--rounds=2", "--only=OCT-1", "--no-peers", f"--out={tmp_path}"],
        result_action="return_value",
    )
    text = (tmp_path / "bench.md").read_text()
    for precision in ("bfloat16 autocast", "float64"):
        assert f"| OCT-1, {precision} | 300 | 32×12×12 → 32×6×6 | NHWC | " in text


def test_only_the_textbook_gradient_is_nan_at_an_orthonormal_init():
    case = next(case for case in CASES if case.name == "OCT-1")
    textbook, ours = Textbook(case), case.layer()
    start = torch.eye(12, 6)
    for W in (*textbook.parameters(), *ours.parameters()):
        if W.numel() > 0:
            W.data.copy_(start)
    x = torch.randn(2, 32, 12, 12)
    for layer, finite in ((textbook, False), (ours, True)):
        layer(x).square().sum().backward()
        gradients = [W.grad for W in layer.parameters() if W.numel() > 0]
        assert all(torch.isfinite(g).all() for g in gradients) == finite
