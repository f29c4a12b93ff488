"""benchmarks/gpu.py reports what it could not run."""

import runpy
from pathlib import Path

import pytest
import torch

FILE = Path(__file__).parent.parent / "benchmarks" / "gpu.py"


@pytest.fixture
def gpu():
    if not FILE.is_file():
        pytest.skip("the benchmarks come with a clone of the project, not with the package")
    return runpy.run_path(str(FILE))


def test_without_a_gpu_there_is_one_line(gpu, capsys, monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert gpu["main"]([]) == 0
    out = capsys.readouterr().out
    assert out == "No CUDA GPU here: nothing was run, and nothing is claimed.\n"


def test_a_part_that_cannot_run_is_named_and_the_others_go_on(gpu, capsys):
    def broken(setting):
        raise RuntimeError("called a synchronizing CUDA operation\nand more lines")

    def wrong(setting):
        raise gpu["Failed"]("gradients differ by 1e+00")

    def fine(setting):
        return f"{setting.case.name} is fine"

    setting = gpu["Setting"](gpu["CASES"][0], "NCHW", 1)
    assert gpu["run"]({"waits": broken, "graph": wrong, "memory": fine}, [setting]) == 1
    lines = capsys.readouterr().out.splitlines()
    assert lines == [
        "OCT-1, NCHW",
        "  waits    could not run: RuntimeError: called a synchronizing CUDA operation",
        "  graph    FAILED: gradients differ by 1e+00",
        "  memory   OCT-1 is fine",
        "Did not run, or did not hold (2): OCT-1, NCHW: waits; OCT-1, NCHW: graph",
    ]
    assert gpu["run"]({"memory": fine}, [setting]) == 0


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU, so all parts run")
def test_every_part_needs_a_gpu(gpu):
    """None of them reports a success that it has not had."""
    setting = gpu["Setting"](gpu["CASES"][2], "NCHW", 1)
    for part in gpu["PARTS"].values():
        held, text = gpu["attempt"](part, setting)
        assert not held
        assert text.startswith("could not run: ")


def test_gradients_that_differ_are_a_failure(gpu):
    a = torch.ones(3)
    assert gpu["_difference"]([a], [a]) == 0
    for other in (2 * a, a * float("nan")):
        with pytest.raises(gpu["Failed"], match="differ"):
            gpu["_difference"]([other], [a])
