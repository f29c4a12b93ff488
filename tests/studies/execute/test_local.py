"""A process that trains: what it says, and what is made of its end."""

from collections import Counter, deque
from multiprocessing import Pipe
from types import SimpleNamespace

import pytest
import torch
from filelock import FileLock
from small_runs import smoke

from tensorprojection.studies.code_version import code_version
from tensorprojection.studies.execute import local, protocol
from tensorprojection.studies.execute.protocol import Done, Restarted, Task
from tensorprojection.studies.inputs import RunInputs
from tensorprojection.studies.registry import STUDIES
from tensorprojection.studies.results import UnitFiles
from tensorprojection.studies.trial.unit import Unit


class Link:
    """A worker's end of the pipe; it is told to go home after its first unit."""

    def __init__(self):
        self.sent = []

    def send(self, event):
        self.sent.append(event)

    def recv(self):
        return None


def test_a_worker_that_is_killed_between_two_units_is_replaced():
    """It has said that the first is done, and does not hear of the second."""
    ours, theirs = Pipe()
    theirs.close()
    process = SimpleNamespace(join=lambda: None, exitcode=-9)
    worker = local._Worker(process, ours, Unit(0, "base"))
    waiting = deque([Unit(1, "base")])
    assert local._assign_next(worker, waiting)
    assert local._receive(worker) is None
    restarted = local._on_exit(worker, Counter(), waiting)
    assert restarted == Restarted(Unit(1, "base"), "signal 9")
    assert list(waiting) == [Unit(1, "base")]
    assert not local._assign_next(worker, deque())


def test_a_worker_says_what_went_wrong(tmp_path, monkeypatch):
    """In this process: a unit that is held by another, one that diverges, one that is done."""
    config, study = smoke("oct", learning_rate=1e30), STUDIES["oct"]
    inputs = study.prepare(config, 1, lambda *_: None)
    assert isinstance(inputs, RunInputs)
    unit = Unit(0, "base")

    def told(config, code=code_version()):  # noqa: B008
        link = Link()
        local.work(link, Task(config, inputs, tmp_path, code), unit)
        return link.sent[-1]

    diverged = told(config)
    assert diverged.unit == unit
    assert "diverged" in diverged.why
    assert not diverged.stop
    lock = UnitFiles.of(tmp_path, 0, "base").lock
    monkeypatch.setattr(protocol, "STRAGGLER_SECONDS", 0)
    with FileLock(lock):
        held = told(smoke("oct"))
    assert held.why.startswith("another process still trains it")
    assert not held.stop
    changed = told(smoke("oct"), "0.1.0 other, torch 2")
    assert changed.why.startswith("the code was changed while the run went on: it was 0.1.0 other")
    assert changed.stop
    assert told(smoke("oct")) == Done(unit)
    assert not lock.exists()


@pytest.mark.parametrize(
    "error",
    [
        MemoryError(),
        torch.OutOfMemoryError("CUDA out of memory."),
        RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried to allocate 9 bytes"),
    ],
    ids=lambda error: type(error).__name__,
)
def test_too_little_memory_is_told_in_one_line(error, tmp_path, monkeypatch):
    config = smoke("oct")
    inputs = STUDIES["oct"].prepare(config, 1, lambda *_: None)

    def fail(*_):
        raise error

    monkeypatch.setattr(protocol, "train", fail)
    link = Link()
    task = Task(config, inputs, tmp_path, code_version())
    local.work(link, task, Unit(0, "base"))
    assert link.sent[-1].why.startswith("it needs more memory than there is.")
    assert "\n" not in link.sent[-1].why
