"""Random sequences of stops, corrupted files and extensions of a run.

An epoch's result depends on nothing but the model and the trial. So a start that succeeds leaves
exactly the epochs of an undisturbed run, and a start that fails leaves the first of them.
"""

import itertools
import random
import shutil
import tempfile
from contextlib import suppress
from functools import cache
from pathlib import Path

import hypothesis
import polars as pl
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule
from rich.console import Console
from small_runs import train_here

from tensorprojection.cli.progress import Watch
from tensorprojection.studies.config import resolve
from tensorprojection.studies.executors.base import JobTrainer
from tensorprojection.studies.registry import import_study
from tensorprojection.studies.results import JobFiles
from tensorprojection.studies.run import run

STUDY = import_study(str(Path(__file__).with_name("tiny_study.py")))
MODELS = tuple(STUDY.models)
MOST_TRIALS, MOST_EPOCHS = 3, 4


class Killed(BaseException):
    """Stands in for a signal: nothing of the run's own code catches it."""


def executor(order, steps):
    """Trains in this process, in that order of units, and dies after so many events."""

    def run_jobs(jobs, count, task):
        left = itertools.count(steps, -1)

        def say(event):
            if next(left) <= 0:
                raise Killed

        trainer = JobTrainer(task)
        for job in random.Random(order).sample(jobs, len(jobs)):
            yield train_here(trainer, job, say)

    return run_jobs


def start(folder, trials, models, epochs, jobs=1, order=0, steps=10**9):
    config = resolve(STUDY, None, None, {"trials": trials, "models": models, "epochs": epochs})
    with Watch(Console(quiet=True)) as watch:
        return run(STUDY, config, folder, jobs, watch, execute=executor(order, steps))


def epochs_of(folder, trial, model):
    rows = JobFiles.of(folder, trial, model).rows()
    return [{k: v for k, v in row.items() if k != "seconds"} for row in rows]


@cache
def undisturbed():
    """All epochs of a run in which nothing has happened."""
    folder = Path(tempfile.mkdtemp())
    try:
        start(folder, MOST_TRIALS, MODELS, MOST_EPOCHS)
        units = itertools.product(range(MOST_TRIALS), MODELS)
        return {unit: epochs_of(folder, *unit) for unit in units}
    finally:
        shutil.rmtree(folder)


class StopAndGo(RuleBasedStateMachine):
    @initialize()
    def begin(self):
        self.expected = undisturbed()
        self.folder = Path(tempfile.mkdtemp())
        self.trials, self.models, self.epochs = 1, ("base",), 1

    def teardown(self):
        shutil.rmtree(self.folder, ignore_errors=True)

    @rule(
        trials=st.integers(1, MOST_TRIALS),
        more=st.sets(st.sampled_from(MODELS)),
        epochs=st.integers(1, MOST_EPOCHS),
    )
    def ask_for_more(self, trials, more, epochs):
        self.trials, self.epochs = max(self.trials, trials), max(self.epochs, epochs)
        self.models = tuple(model for model in MODELS if model in {*self.models, *more})

    @rule(steps=st.integers(0, 25), jobs=st.integers(1, 3), order=st.integers(0, 3))
    def start_and_kill(self, steps, jobs, order):
        with suppress(Killed):
            start(self.folder, self.trials, self.models, self.epochs, jobs, order, steps)

    @rule(jobs=st.integers(1, 3), order=st.integers(0, 3))
    def start_to_the_end(self, jobs, order):
        outcome = start(self.folder, self.trials, self.models, self.epochs, jobs, order)
        assert not outcome.failures
        units = list(itertools.product(range(self.trials), self.models))
        for unit in units:
            found = epochs_of(self.folder, *unit)
            assert found == self.expected[unit][: len(found)]
            assert len(found) >= self.epochs
        table = pl.read_parquet(self.folder / "results.parquet")
        assert table.height == sum(len(epochs_of(self.folder, *unit)) for unit in units)
        assert start(self.folder, self.trials, self.models, self.epochs).was_finished

    @rule(data=st.data(), how=st.sampled_from(["flip", "cut", "empty", "remove"]))
    def damage(self, data, how):
        """Of anything but the settings, without which a run is refused."""
        wanted = ("*.jsonl", "*.pt", "*.safetensors", "*.npz", "results.parquet")
        files = sorted(path for name in wanted for path in self.folder.rglob(name))
        if not files:
            return
        path = data.draw(st.sampled_from(files))
        content = bytearray(path.read_bytes())
        if how == "remove":
            path.unlink()
        elif how == "empty" or not content:
            path.write_bytes(b"")
        else:
            at = data.draw(st.integers(0, len(content) - 1))
            content[at] ^= 1
            path.write_bytes(content[:at] if how == "cut" else content)

    @invariant()
    def what_is_there_is_a_beginning_of_what_must_be(self):
        """Also of damaged files, whose lines are taken up to the damage."""
        if not hasattr(self, "folder"):
            return
        for unit, expected in self.expected.items():
            found = epochs_of(self.folder, *unit)
            assert found == expected[: len(found)]


def test_a_run_that_is_stopped_corrupted_and_extended(tmp_path, monkeypatch):
    monkeypatch.setenv("TENSORPROJECTION_CACHE", str(tmp_path))
    settings = hypothesis.settings(
        max_examples=12, stateful_step_count=8, deadline=None, derandomize=True, database=None
    )
    hypothesis.stateful.run_state_machine_as_test(StopAndGo, settings=settings)
