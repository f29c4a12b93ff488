"""`tpl bench`: measures, prints and stores; no test depends on how long anything took."""

import json
import sys
from shutil import which

import pytest
import torch

from tensorprojection.bench import report, run
from tensorprojection.bench.cases import CASES
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
    record = json.loads((tmp_path / "bench.json").read_text())
    assert [(row["case"], row["memory_format"]) for row in record["cases"]] == [
        ("OCT-1", "NCHW"),
        ("OCT-1", "NHWC"),
    ]
    row = record["cases"][0]
    assert set(row["peers"]) == {"textbook", "TCL", "geotorch"}
    assert row["U_share"]["median"] > 0
    assert row["to_limit"]["median"] > 0
    if any(map(which, ("c++", "g++", "clang++"))):
        assert row["compiled"]["median"] > 0
    lines = (tmp_path / "bench.md").read_text().splitlines()
    assert lines[2].startswith("| OCT-1 | NCHW | ")
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
    assert least_bytes(chest) == 4 * 64 * 25 * (3 * 1024 + 2 * 64)


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_what_it_replaces_has_the_same_output(case):
    x = case.input("NCHW")[:1]
    assert case.layer()(x).shape[1:] == case.target
    if case.replaces is not None:
        assert case.replaces()(x).shape[1:] == case.target


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
