"""Whole runs: what they leave on disk, and that nothing but the settings decides it."""

import json
import multiprocessing
import os
import signal
import threading
import time

import numpy as np
import polars as pl
import pytest
from filelock import FileLock
from small_runs import carry_out, results, smoke

import tensorprojection.studies.run
from tensorprojection.studies.config import RunConfig, read_toml
from tensorprojection.studies.data.phantoms import oct as phantoms
from tensorprojection.studies.errors import StudyError
from tensorprojection.studies.training import Epoch
from tensorprojection.studies.workers import run_units


@pytest.fixture(scope="module", autouse=True)
def cache(tmp_path_factory):
    """One cache for this file: the images are the same in all its runs."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TENSORPROJECTION_CACHE", str(tmp_path_factory.mktemp("cache")))
        yield


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """A run that nothing disturbed."""
    folder = tmp_path_factory.mktemp("finished")
    outcome = carry_out(smoke("oct"), folder)
    assert not outcome.was_finished
    assert not outcome.failures
    return folder


METRICS = {"oct": ["loss", "accuracy", "f1"], "kvasir": ["loss", "dice", "iou"]}


@pytest.mark.parametrize("study", ["oct", "chest", "kvasir"])
def test_what_a_run_leaves(study, tmp_path):
    config = smoke(study)
    carry_out(config, tmp_path)
    found = pl.read_parquet(tmp_path / "results.parquet")
    metrics = METRICS.get(study, METRICS["oct"])
    columns = ["study", "model", "trial", "epoch", "train_loss", *metrics, "seconds"]
    assert found.columns == columns
    keys = found.select("study", "model", "trial", "epoch").rows()
    assert keys == [
        (study, model, trial, epoch)
        for trial in (1, 2)
        for model in config.models
        for epoch in (1, 2)
    ]
    assert found.drop_nulls().height == found.height
    assert RunConfig(**read_toml(tmp_path / "config.toml")) == config
    (start,) = json.loads((tmp_path / "record.json").read_text())
    assert start["seed"] == config.seed
    assert start["versions"]["torch"]
    assert {path.suffix for path in (tmp_path / "trials").rglob("*.*")} == {".json"}


def test_jobs_do_not_matter(finished, tmp_path):
    carry_out(smoke("oct"), tmp_path, jobs=1)
    assert results(tmp_path).equals(results(finished))


def test_seed_and_trial_matter(finished, tmp_path):
    carry_out(smoke("oct", seed=1, trials=1, models=("base",)), tmp_path)
    one = results(finished).filter(model="base", trial=1)
    assert results(tmp_path)["loss"].to_list() != one["loss"].to_list()
    other = results(finished).filter(model="base", trial=2)
    assert other["loss"].to_list() != one["loss"].to_list()


def test_a_finished_run_is_left_alone(finished):
    before = {path: path.stat().st_mtime_ns for path in finished.rglob("*") if path.is_file()}
    assert carry_out(smoke("oct"), finished).was_finished
    for path, changed in before.items():
        assert path.name == ".lock" or path.stat().st_mtime_ns == changed


def test_more_trials_and_models_are_added(finished, tmp_path):
    carry_out(smoke("oct", trials=1, models=("base", "tpl1")), tmp_path)
    kept = (tmp_path / "trials" / "001" / "base.json").stat().st_mtime_ns
    carry_out(smoke("oct", trials=1, models=("tpl2",)), tmp_path)
    carry_out(smoke("oct"), tmp_path)
    assert results(tmp_path).equals(results(finished))
    assert (tmp_path / "trials" / "001" / "base.json").stat().st_mtime_ns == kept
    assert len(json.loads((tmp_path / "record.json").read_text())) == 3


def test_other_settings_need_another_folder(finished):
    with pytest.raises(StudyError, match="was begun with epochs = 2, not 3"):
        carry_out(smoke("oct", epochs=3), finished)
    with pytest.raises(StudyError, match="was begun with study = 'oct', not 'kvasir'"):
        carry_out(smoke("kvasir"), finished)


def test_a_second_run_into_one_folder_stops(tmp_path):
    (tmp_path / ".owner").write_text("process 7 on elsewhere")
    with FileLock(tmp_path / ".lock"), pytest.raises(StudyError, match="in use by process 7 on"):
        carry_out(smoke("oct"), tmp_path)


def test_a_folder_that_cannot_be_made(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(StudyError, match="Could not read or write"):
        carry_out(smoke("oct"), tmp_path / "file" / "run")


# Workers that die


def test_a_killed_worker_is_replaced(finished, tmp_path, monkeypatch):
    """The first epochs that are kept cost a worker its life."""
    killed = []

    def deadly(units, jobs, task):
        for event in run_units(units, jobs, task):
            yield event
            if isinstance(event, Epoch) and event.row["epoch"] == 1 and len(killed) < 2:
                victim = multiprocessing.active_children()[0]
                killed.append(victim.pid)
                os.kill(victim.pid, signal.SIGKILL)

    monkeypatch.setattr(tensorprojection.studies.run, "run_units", deadly)
    outcome = carry_out(smoke("oct"), tmp_path)
    assert len(killed) == 2
    assert not outcome.failures
    assert results(tmp_path).equals(results(finished))


def test_a_unit_that_always_kills_its_worker_is_given_up(tmp_path, monkeypatch):
    monkeypatch.setattr("tensorprojection.studies.workers.work", _die)
    outcome = carry_out(smoke("oct", trials=1, models=("base",)), tmp_path, jobs=1)
    (failure,) = outcome.failures
    assert "ended 3 times with exit code 3" in failure.why


def _die(*_):
    os._exit(3)


def test_a_unit_that_diverges_does_not_stop_the_others(tmp_path):
    outcome = carry_out(smoke("oct", learning_rate=1e30, trials=1), tmp_path)
    assert len(outcome.failures) == 3
    assert all("diverged" in failure.why for failure in outcome.failures)


def test_workers_end_when_nobody_listens(tmp_path):
    """A generator that is closed early, as by Ctrl-C, leaves no process behind."""
    started = threading.Event()

    def interrupting(units, jobs, task):
        for event in run_units(units, jobs, task):
            started.set()
            yield event
            raise KeyboardInterrupt

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tensorprojection.studies.run, "run_units", interrupting)
        with pytest.raises(KeyboardInterrupt):
            carry_out(smoke("oct"), tmp_path)
    assert started.is_set()
    deadline = time.monotonic() + 20
    while multiprocessing.active_children() and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not multiprocessing.active_children()


# Images that change under a run


def test_a_run_does_not_go_on_with_other_images(tmp_path):
    """The split would be another, and validation would see images that were trained on."""
    images = phantoms.make(64, size=32)
    file = tmp_path / "mine.npz"

    def write(images):
        names = np.array(images.class_names)
        np.savez(file, images=images.images, labels=images.labels, class_names=names)

    write(images)
    config = smoke("oct", data=str(file), images=None, trials=1, models=("base",))
    carry_out(config, tmp_path / "run", jobs=1)
    more = config.model_copy(update={"trials": 2})
    write(phantoms.make(72, size=32))
    with pytest.raises(StudyError, match="was begun with other images"):
        carry_out(more, tmp_path / "run", jobs=1)
    write(images)  # the same content, in a file that is newer
    carry_out(more, tmp_path / "run", jobs=1)
    assert results(tmp_path / "run")["trial"].max() == 2
