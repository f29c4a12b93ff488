"""Training in processes: the events of a job, and what happens when a process ends."""

import pytest
import torch
from small_runs import smoke, train_here

from tensorprojection.studies.config import code_version
from tensorprojection.studies.executors import base
from tensorprojection.studies.executors.base import ATTEMPTS, JobTrainer, Lost, Task, run_pool
from tensorprojection.studies.inputs import RunInputs
from tensorprojection.studies.registry import STUDIES
from tensorprojection.studies.training.job import Done, Epoch, Failed, Job, Restarted

JOB, OTHER = Job(0, "base"), Job(1, "base")


@pytest.fixture
def task(tmp_path):
    study = STUDIES["oct"]
    return Task(study, smoke("oct"), RunInputs({}, "none"), tmp_path, code_version())


class Pool:
    """A pool whose events are given by job, one list for each time it is submitted."""

    def __init__(self, **events):
        self.events, self.submitted, self.ready, self.closed = events, [], [], False

    def submit(self, job, state):
        self.submitted.append(job)
        self.ready.append(self.events[f"job{job.trial}"].pop(0))

    def receive(self):
        return self.ready.pop(0)

    def close(self):
        self.closed = True


def test_a_job_whose_process_is_killed_is_given_to_another(task):
    pool = Pool(job0=[[Lost(JOB, "signal 9")], [Done(JOB)]], job1=[[Done(OTHER)]])
    events = list(run_pool(pool, [JOB, OTHER], 1, task))
    assert events == [Restarted(JOB, "signal 9"), Done(JOB), Done(OTHER)]
    assert pool.submitted == [JOB, JOB, OTHER]
    assert pool.closed


def test_a_job_that_always_kills_its_process_is_given_up_and_the_others_go_on(task):
    pool = Pool(job0=[[Lost(JOB, "signal 9")]] * ATTEMPTS, job1=[[Done(OTHER)]])
    *before, failed, done = run_pool(pool, [JOB, OTHER], 1, task)
    assert before == [Restarted(JOB, "signal 9")] * (ATTEMPTS - 1)
    assert isinstance(failed, Failed)
    assert failed.why.startswith("its process ended 3 times with signal 9.")
    assert (failed.stop, done) == (False, Done(OTHER))


def test_an_epoch_in_between_counts(task):
    lost = [[Epoch(JOB, {"epoch": k}), Lost(JOB, "signal 9")] for k in range(2 * ATTEMPTS)]
    events = list(run_pool(Pool(job0=[*lost, [Done(JOB)]]), [JOB], 1, task))
    assert events[-1] == Done(JOB)
    assert sum(isinstance(event, Restarted) for event in events) == 2 * ATTEMPTS


def test_what_ends_all_processes_stops_the_run(task):
    (failed,) = run_pool(Pool(job0=[[Lost(JOB, "the end of Ray", fatal=True)]]), [JOB], 1, task)
    assert failed == Failed(JOB, "the end of Ray. The same command continues from here.", stop=True)


def trainer(tmp_path, code=None, **flags):
    config, study = smoke("oct", **flags), STUDIES["oct"]
    inputs = study.prepare(config, 1, lambda *_: None)
    return JobTrainer(Task(study, config, inputs, tmp_path, code or code_version()))


def test_a_job_that_diverges_one_with_other_code_and_one_that_is_done(tmp_path):
    diverged = train_here(trainer(tmp_path, learning_rate=1e30), JOB)
    assert "diverged" in diverged.why
    assert not diverged.stop
    changed = train_here(trainer(tmp_path, "0.1.0 other, torch 2"), JOB)
    assert changed.why.startswith("its process has other code than the run: ")
    assert changed.stop
    assert train_here(trainer(tmp_path), JOB) == Done(JOB)


@pytest.mark.parametrize(
    ("error", "says"),
    [
        (MemoryError(), "it needs more memory than there is."),
        (torch.OutOfMemoryError("CUDA out of memory."), "it needs more memory than there is."),
        (
            RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried to allocate 9 b"),
            "it needs more memory than there is.",
        ),
        (SystemExit(0), "the study's code has called sys.exit(0)."),
        (OSError(28, "No space left on device", "/x"), "could not read /x: No space"),
    ],
    ids=lambda value: type(value).__name__,
)
def test_an_error_in_one_line(error, says, tmp_path, monkeypatch):
    def fail(*_):
        raise error

    monkeypatch.setattr(base, "train", fail)
    failed = train_here(trainer(tmp_path), JOB)
    assert failed.why.startswith(says)
    assert "\n" not in failed.why
