"""One training on several devices: the curve of one, also where a process is killed."""

import multiprocessing
import os
import signal
import subprocess
import sys
import threading

import polars as pl
import pytest
from small_runs import carry_out, carry_out_here, results, smoke

from tensorprojection.studies.config import resolve
from tensorprojection.studies.errors import StudyError
from tensorprojection.studies.execute import parallel
from tensorprojection.studies.execute.parallel import Devices, Meeting, ParallelExecutor
from tensorprojection.studies.execute.protocol import Restarted
from tensorprojection.studies.registry import find_study
from tensorprojection.studies.trial.unit import Epoch

# Those that train.
trains = pytest.mark.skipif(
    parallel.find_spec("lightning_fabric") is None,
    reason="Lightning Fabric is not installed: pip install 'tensorprojection[ddp]'",
)

# Rounding moves a U-Net in float32 as far as another order of a batch's images does: Adam gives
# every weight a step of its own size, also where its gradient is nothing but rounding.
IN_FLOAT64 = """
from dataclasses import dataclass, replace
from tensorprojection.studies.kvasir import KVASIR

@dataclass
class Doubled:
    data: object
    def sides(self, trial):
        return self.data.sides(trial)
    def batch(self, rows):
        x, y = self.data.batch(rows)
        return x.double(), y.double()

DOUBLE = replace(
    KVASIR,
    name="double",
    network=lambda *given: KVASIR.network(*given).double(),
    open=lambda *given: Doubled(KVASIR.open(*given)),
)
"""


def together(config, folder, devices=2, watch=lambda event: None):
    """Train on so many devices."""
    there = ParallelExecutor(Devices(devices), config)

    def run_units(*given):
        for event in there.run_units(*given):
            yield event
            watch(event)

    return carry_out(config, folder, execute=run_units)


def assert_same_curves(folder, expected, tolerance):
    one, two = results(expected), results(folder)
    assert one.columns == two.columns
    assert len(one) == len(two) > 0
    for name, values in one.select(pl.selectors.float()).to_dict().items():
        assert (values - two[name]).abs().max() <= tolerance, name


@trains
def test_two_processes_give_the_curve_of_one_unet(tmp_path):
    """BatchNorm, the Dice loss and the metrics are those of whole batches and of all images."""
    (tmp_path / "double.py").write_text(IN_FLOAT64)
    study = find_study(str(tmp_path / "double.py"))
    flags = {"trials": 1, "models": ("tpl",), "batch": 5, "epochs": 3}  # of 16 images: 5, 5, 5, 1
    config = resolve(study, "smoke", None, flags)
    carry_out_here(config, tmp_path / "one")
    assert together(config, tmp_path / "two").failures == ()
    assert_same_curves(tmp_path / "two", tmp_path / "one", 1e-7)


@trains
@pytest.mark.heavy
@pytest.mark.parametrize(("study", "models"), [("oct", ("tpl2", "hope")), ("chest", ("tpl",))])
def test_two_processes_give_the_curves_of_one(study, models, tmp_path):
    """OCT has a penalty, chest has dropout."""
    config = smoke(study, trials=1, models=models, batch=15, epochs=4)
    carry_out(config, tmp_path / "one")
    assert together(config, tmp_path / "two").failures == ()
    assert_same_curves(tmp_path / "two", tmp_path / "one", 1e-4)


@trains
@pytest.mark.heavy
def test_bfloat16_rounds_more_coarsely_and_trains_all_the_same(tmp_path):
    """Two processes in bf16-mixed are near two in float32, and are not the same."""
    for precision in ("32-true", "bf16-mixed"):
        config = smoke("oct", trials=1, models=("tpl2",), epochs=2, precision=precision)
        assert together(config, tmp_path / precision).failures == ()
    coarse, fine = (results(tmp_path / name)["loss"] for name in ("bf16-mixed", "32-true"))
    assert (coarse - fine).abs().max() <= 1e-2
    assert (coarse != fine).all()


@trains
@pytest.mark.heavy
def test_checkpoints_go_on_with_another_number_of_devices(tmp_path):
    for epochs, devices in ((2, 2), (4, 1), (6, 3)):
        config = smoke("chest", trials=1, models=("tpl",), epochs=epochs)
        assert together(config, tmp_path / "changing", devices).failures == ()
    carry_out(config, tmp_path / "one")
    assert_same_curves(tmp_path / "changing", tmp_path / "one", 1e-4)


@trains
@pytest.mark.heavy
def test_a_killed_rank_ends_the_others_and_all_go_on(tmp_path):
    config = smoke("oct", trials=1, models=("tpl2",), epochs=8)
    killed, seen = [], []

    def watch(event):
        seen.append(event)
        if isinstance(event, Epoch) and event.row["epoch"] == 3 and not killed:
            ranks = children()
            assert len(ranks) == 2
            os.kill(ranks[1], signal.SIGKILL)
            killed.extend(ranks)

    assert together(config, tmp_path / "killed", watch=watch).failures == ()
    assert [event for event in seen if isinstance(event, Restarted)]
    assert not set(killed) & set(children())
    carry_out(config, tmp_path / "one")
    assert_same_curves(tmp_path / "killed", tmp_path / "one", 1e-4)


def children():
    """The processes that train for this one."""
    return sorted(process.pid for process in multiprocessing.active_children())


@trains
@pytest.mark.heavy
def test_two_machines(tmp_path):
    """Both are this one, each with a process and a cache of its own."""
    flags = ["--preset", "smoke", "--trials", "1", "--models", "tpl2", "--nodes", "2"]
    with parallel.socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        port = str(found.getsockname()[1])
    processes = []
    for node in (0, 1):
        where = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port, "NODE_RANK": str(node)}
        where["TENSORPROJECTION_CACHE"] = str(tmp_path / f"cache{node}")
        command = [sys.executable, "-m", "tensorprojection", "run", "oct", *flags]
        command += ["--out", str(tmp_path / f"run{node}")]
        processes.append(subprocess.Popen(command, env=os.environ | where))
    assert [process.wait(timeout=240) for process in processes] == [0, 0]
    assert not (tmp_path / "run1").exists()
    carry_out(smoke("oct", trials=1, models=("tpl2",)), tmp_path / "one")
    assert_same_curves(tmp_path / "run0", tmp_path / "one", 1e-4)


def test_processes_that_have_all_ended_are_not_waited_for():
    """A process may be gone a moment before its exit code is there."""
    made = multiprocessing.get_context("spawn").Process(target=int)
    made.start()
    made.join()
    team = object.__new__(parallel._Team)
    team.processes = [made]
    found = []
    waiting = threading.Thread(target=lambda: found.extend(team.ends()), daemon=True)
    waiting.start()
    waiting.join(timeout=60)
    assert found == [0]


# Bad input


@pytest.mark.parametrize(
    ("devices", "settings", "match"),
    [
        (Devices(2), {"batch": 1}, "Expected a batch of at least 2 images.* got 1"),
        (Devices(2, 3), {"batch": 5}, "Expected a batch of at least 6 images"),
        (Devices(0), {}, "Expected 1 to 1024 `devices`, got 0"),
        (Devices(1, -1), {}, "Expected 1 to 1024 `nodes`, got -1"),
        (Devices(2), {"device": "cuda:1"}, "Expected `device` cpu or cuda"),
    ],
)
def test_what_cannot_be_trained_together(devices, settings, match, monkeypatch):
    monkeypatch.setattr(parallel, "find_spec", lambda name: True)
    config = smoke("oct").model_copy(update=settings)
    with pytest.raises(StudyError, match=rf"^[^\n]*{match}[^\n]*$"):
        devices.check(config)


def test_without_fabric(monkeypatch):
    monkeypatch.setattr(parallel, "find_spec", lambda name: None)
    with pytest.raises(StudyError, match=r"pip install 'tensorprojection\[ddp\]'$"):
        Devices(2).check(smoke("oct"))


@pytest.mark.parametrize(
    "environment",
    [
        {},
        {"MASTER_ADDR": "here", "MASTER_PORT": "x", "NODE_RANK": "0"},
        {"MASTER_ADDR": "here", "MASTER_PORT": "1", "NODE_RANK": "2"},
    ],
)
def test_machines_that_cannot_meet(environment):
    with pytest.raises(StudyError, match="2 `nodes` need MASTER_ADDR and MASTER_PORT"):
        Meeting.of(2, environment)
    assert Meeting.of(2, {"MASTER_ADDR": "a", "MASTER_PORT": "1", "SLURM_NODEID": "1"}).node == 1
