"""Whole runs: what they leave on disk, and that nothing but the settings decides it."""

import json
import multiprocessing
import os
import shutil
import signal
import threading
import time

import numpy as np
import polars as pl
import pytest
from filelock import FileLock
from rich.console import Console
from small_runs import carry_out, carry_out_here, in_this_process, results, smoke

from tensorprojection.cli.progress import Watch
from tensorprojection.studies import limits
from tensorprojection.studies.code_version import code_version, digest
from tensorprojection.studies.config import read_toml
from tensorprojection.studies.data.phantoms import oct as phantoms
from tensorprojection.studies.errors import StudyError
from tensorprojection.studies.execute import local
from tensorprojection.studies.execute.local import run_units
from tensorprojection.studies.processes import start_process
from tensorprojection.studies.registry import STUDIES, read_config
from tensorprojection.studies.report.curves import read
from tensorprojection.studies.report.figures import caption
from tensorprojection.studies.report.table import as_markdown
from tensorprojection.studies.results import UnitFiles
from tensorprojection.studies.run import run
from tensorprojection.studies.trial.unit import Epoch


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """A run that nothing disturbed."""
    folder = tmp_path_factory.mktemp("finished")
    outcome = carry_out_here(smoke("oct"), folder)
    assert not outcome.was_finished
    assert not outcome.failures
    return folder


@pytest.fixture(scope="module")
def by_a_process(tmp_path_factory):
    """The same by a process of its own: what earlier tests leave in this one can move last bits."""
    folder = tmp_path_factory.mktemp("by_a_process")
    assert not carry_out(smoke("oct"), folder, jobs=1).failures
    return folder


METRICS = {"oct": ["loss", "accuracy", "f1"], "kvasir": ["loss", "dice", "iou"]}


@pytest.mark.parametrize("study", ["oct", "chest", "kvasir"])
def test_what_a_run_leaves(study, finished, tmp_path):
    config = smoke(study)
    folder = finished if study == "oct" else tmp_path
    carry_out_here(config, folder)
    found = pl.read_parquet(folder / "results.parquet")
    metrics = METRICS.get(study, METRICS["oct"])
    columns = ["study", "model", "trial", "epoch", "train_loss", *metrics, "seconds", "code"]
    assert found.columns == columns
    keys = found.select("study", "model", "trial", "epoch").rows()
    assert keys == [
        (study, model, trial, epoch)
        for trial in (1, 2)
        for model in config.models
        for epoch in (1, 2)
    ]
    assert found.drop_nulls().height == found.height
    assert read_config(folder / "config.toml") == config
    (start,) = json.loads((folder / "record.json").read_text())
    assert start["seed"] == config.seed
    assert start["versions"]["torch"]
    for unit in {path.parent for path in (folder / "trials").rglob("*.jsonl")}:
        left = {path.suffix for path in unit.iterdir()}
        # The rows, the checkpoint, the kept network, and what the page draws.
        assert left == {".jsonl", ".pt", ".safetensors", ".npz"}


def test_processes_do_not_matter(by_a_process, tmp_path):
    carry_out(smoke("oct"), tmp_path, jobs=2)
    assert results(tmp_path).equals(results(by_a_process))


def test_seed_and_trial_matter(finished, tmp_path):
    carry_out_here(smoke("oct", seed=1, trials=1, models=("base",)), tmp_path)
    one = results(finished).filter(model="base", trial=1)
    assert results(tmp_path)["loss"].to_list() != one["loss"].to_list()
    other = results(finished).filter(model="base", trial=2)
    assert other["loss"].to_list() != one["loss"].to_list()


def test_a_finished_run_is_left_alone(finished):
    before = {path: path.stat().st_mtime_ns for path in finished.rglob("*") if path.is_file()}
    assert carry_out_here(smoke("oct"), finished).was_finished
    for path, changed in before.items():
        assert path.name == ".lock" or path.stat().st_mtime_ns == changed


def test_more_trials_and_models_are_added(finished, tmp_path):
    carry_out_here(smoke("oct", trials=1, models=("base", "tpl1")), tmp_path)
    kept = (tmp_path / "trials" / "001" / "base.jsonl").stat().st_mtime_ns
    carry_out_here(smoke("oct", trials=1, models=("tpl2",)), tmp_path)
    carry_out_here(smoke("oct"), tmp_path)
    assert results(tmp_path).equals(results(finished))
    assert (tmp_path / "trials" / "001" / "base.jsonl").stat().st_mtime_ns == kept
    assert len(json.loads((tmp_path / "record.json").read_text())) == 3


def test_other_settings_need_another_folder(finished):
    with pytest.raises(StudyError, match="was started with batch = 16, not 3"):
        carry_out_here(smoke("oct", batch=3), finished)
    with pytest.raises(StudyError, match="was started with study = 'oct', not 'kvasir'"):
        carry_out_here(smoke("kvasir"), finished)


def test_a_second_run_into_one_folder_stops(tmp_path):
    (tmp_path / ".owner").write_text("process 7 on elsewhere")
    with FileLock(tmp_path / ".lock"), pytest.raises(StudyError, match="in use by process 7 on"):
        carry_out_here(smoke("oct"), tmp_path)


def test_a_folder_that_cannot_be_made(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(StudyError, match="Could not read or write"):
        carry_out_here(smoke("oct"), tmp_path / "file" / "run")


def test_more_epochs_extend_a_run(tmp_path):
    """Also for a network that had none yet, and one whose checkpoint was removed to save space."""
    few = smoke("oct", trials=1, models=("base", "tpl1"), epochs=1)
    carry_out_here(few, tmp_path / "more")
    (tmp_path / "more" / "trials" / "001" / "tpl1.pt").unlink()
    many = smoke("oct", trials=1, models=("base", "tpl1", "tpl2"), epochs=3)
    carry_out_here(many, tmp_path / "more")
    carry_out_here(many, tmp_path / "whole")
    assert results(tmp_path / "more").equals(results(tmp_path / "whole"))
    assert carry_out_here(few, tmp_path / "more").was_finished  # fewer are not taken away
    assert results(tmp_path / "more")["epoch"].max() == 3


# What is damaged or gone


@pytest.fixture
def small(tmp_path_factory):
    """``small(**changes)``: a run of one network in a folder of its own."""
    folder = tmp_path_factory.mktemp("small") / "run"

    def go(jobs=1, **changes):
        watch = Lines()
        config = smoke("oct", **{"trials": 1, "models": ("base",), **changes})
        return run(config, folder, jobs, watch, execute=in_this_process), watch.said

    go.folder = folder
    return go


class Lines(Watch):
    """A watch that keeps what it says."""

    def __init__(self):
        super().__init__(Console(quiet=True))
        self.said = []

    def _line(self, text):
        self.said.append(text)


def test_a_configuration_that_is_gone_does_not_let_other_settings_in(small):
    small()
    whole = (small.folder / "config.toml").read_bytes()
    (small.folder / "config.toml").unlink()
    with pytest.raises(StudyError, match=r"was started with learning_rate = 0\.001, not 0\.1\."):
        small(learning_rate=0.1, trials=2)
    assert small()[0].was_finished
    assert (small.folder / "config.toml").read_bytes() == whole


@pytest.mark.parametrize("content", [b"", b"\xff\xfe", b"study = ", b"learning_rate = 0.1"])
def test_a_damaged_configuration_is_written_again(content, small):
    small()
    path = small.folder / "config.toml"
    whole = path.read_bytes()
    path.write_bytes(content)
    assert small()[0].was_finished
    assert path.read_bytes() == whole


def test_networks_that_nothing_is_known_of(small):
    small()
    for name in ("config.toml", "record.json"):
        (small.folder / name).unlink()
    with pytest.raises(StudyError, match=r"neither config\.toml nor record\.json"):
        small(trials=2)


def test_without_its_record_a_run_goes_on_and_says_what_it_does_not_know(small):
    small()
    (small.folder / "record.json").unlink()
    outcome, said = small(trials=2)
    assert not outcome.failures
    assert "record.json is missing: whether the images are the same is not known." in said


def changed(content, how):
    if how == "flipped":
        middle = len(content) // 2
        return content[:middle] + bytes([content[middle] ^ 1]) + content[middle + 1 :]
    return {"empty": b"", "truncated": content[: len(content) // 2 - 9], "other": b"[]"}[how]


@pytest.mark.parametrize("how", ["flipped", "empty", "truncated", "other"])
def test_a_damaged_record_is_named_with_what_to_do(how, small):
    small()
    path = small.folder / "record.json"
    path.write_bytes(changed(path.read_bytes(), how))
    with pytest.raises(StudyError, match=r"record\.json is damaged.* remove that") as raised:
        small(trials=2)
    assert "\n" not in str(raised.value)
    path.unlink()  # as the line says
    assert not small(trials=2)[0].failures


@pytest.mark.parametrize("how", ["flipped", "empty", "truncated"])
def test_damaged_results_of_a_finished_run_come_back(how, small):
    small()
    before = results(small.folder)
    lines = small.folder / "trials" / "001" / "base.jsonl"
    whole = lines.read_bytes()
    for path in (lines, small.folder / "results.parquet"):
        path.write_bytes(changed(path.read_bytes(), how))
    outcome, said = small()
    assert not outcome.failures
    assert f"{lines} is " in " ".join(said)
    assert lines.read_bytes() == whole
    assert results(small.folder).equals(before)


def test_settings_and_results_alone_are_enough_to_add_to_a_run(small, tmp_path):
    """As an archive keeps them; nothing that is measured is trained again or lost."""
    small(models=("base", "tpl1"))
    before = results(small.folder)
    shutil.rmtree(small.folder / "trials")
    (small.folder / "record.json").unlink()
    assert small(models=("base", "tpl1"))[0].was_finished
    shutil.rmtree(small.folder / "trials")
    outcome, _ = small(models=("base", "tpl1", "tpl2"), trials=2)
    assert not outcome.failures
    carry_out_here(smoke("oct", trials=2, models=("base", "tpl1", "tpl2")), tmp_path / "whole")
    assert results(small.folder).equals(results(tmp_path / "whole"))
    kept = [row for row in results(small.folder).rows() if row in before.rows()]
    assert len(kept) == len(before)
    assert not (small.folder / "trials" / "001" / "base.pt").exists()  # it was not trained


def archived(small, change=lambda table: table):
    """The run as an archive has it, with its table changed; the table's bytes."""
    shutil.rmtree(small.folder / "trials", ignore_errors=True)
    path = small.folder / "results.parquet"
    change(pl.read_parquet(path)).write_parquet(path)
    return path.read_bytes()


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (lambda t: t.drop("study", "epoch"), "Expected the columns study, epoch in"),
        (
            lambda t: t.with_columns(study=pl.lit("chest")),
            "Expected results of the oct study alone",
        ),
        (lambda t: pl.concat([t, t]), "Expected one row for each model, trial and epoch"),
        (lambda t: t.with_columns(trial=pl.lit("1")), "Expected whole numbers in the column trial"),
        (lambda t: t.with_columns(loss=pl.lit("low")), "Expected numbers in the column loss"),
        (lambda t: t.with_columns(code=pl.lit(None)), "Expected names in the column code"),
        (lambda t: t.with_columns(pl.col("trial") + 2), "has trial 3 of base, which config.toml"),
        (lambda t: t.with_columns(model=pl.lit("../../x")), r"has trial 1 of \.\./\.\./x, which"),
    ],
)
def test_a_table_that_is_not_the_runs_is_refused_and_stays(change, says, small):
    small()
    before = archived(small, change)
    for _ in range(2):  # the first try leaves nothing behind that would let the second through
        with pytest.raises(StudyError, match=says) as raised:
            small(trials=2)
        assert "\n" not in str(raised.value)
    assert (small.folder / "results.parquet").read_bytes() == before


def test_a_table_that_cannot_be_read_is_not_replaced(small):
    small()
    archived(small)
    path = small.folder / "results.parquet"
    path.write_bytes(path.read_bytes()[:-9])
    damaged = path.read_bytes()
    with pytest.raises(StudyError, match=r"Expected a whole Parquet file, got .*results\.parquet"):
        small()
    assert path.read_bytes() == damaged


def test_who_is_stopped_while_lines_come_back_begins_again(small, monkeypatch):
    small(trials=3)
    before = results(small.folder)
    archived(small)
    write, calls = UnitFiles.write, []

    def fail_once(files, rows):
        calls.append(files)
        if len(calls) == 2:
            raise OSError(28, "No space left on device", str(files.lines))
        write(files, rows)

    monkeypatch.setattr(UnitFiles, "write", fail_once)
    with pytest.raises(StudyError, match="No space left on device"):
        small(trials=3)
    assert small(trials=3)[0].was_finished
    assert results(small.folder).equals(before)
    assert not (small.folder / ".restoring").exists()


def test_lines_that_are_gone_are_not_taken_from_the_table_beside_a_checkpoint(small):
    """It has them, or else the network is trained anew."""
    small()
    before, kept = results(small.folder), UnitFiles.of(small.folder, 0, "base")
    kept.checkpoint.write_bytes(b"damaged")
    kept.lines.unlink()
    _, said = small()
    assert "trained anew" in " ".join(said)
    assert results(small.folder).equals(before)


def test_an_evaluation_is_no_run_to_go_on_with(small):
    small()
    archived(small)
    (small.folder / "held_out.txt").write_text("others.npz")
    with pytest.raises(StudyError, match="is an evaluation, not a run"):
        small()


# Versions of the code


@pytest.fixture
def other_code(monkeypatch):
    """The code is another from now on."""

    def change():
        for name in ("run", "trial.train", "execute.protocol", "record"):
            module = f"tensorprojection.studies.{name}.code_version"
            monkeypatch.setattr(module, lambda *study: "0.2.0 def, torch 3")

    return change


def test_a_run_does_not_go_on_with_other_code(small, other_code):
    small()
    other_code()
    with pytest.raises(StudyError, match=r"other code \(.*torch.*`mix_versions`") as raised:
        small(trials=2)
    assert code_version() in str(raised.value)
    assert "0.2.0 def, torch 3" in str(raised.value)
    assert small()[0].was_finished  # nothing is trained, so nothing is mixed


def test_versions_are_mixed_only_where_asked_for_and_the_table_says_so(small, other_code):
    small()
    assert "version" not in as_markdown(read(small.folder))
    other_code()
    config = smoke("oct", trials=2, models=("base",))
    run(config, small.folder, 1, Lines(), mix_versions=True, execute=in_this_process)
    assert results(small.folder)["code"].unique(maintain_order=True).to_list() == [
        code_version(),
        "0.2.0 def, torch 3",
    ]
    text = as_markdown(read(small.folder))
    assert "Trained by more than one version of the code" in text
    assert f"{code_version()}: MaxPooling in 1 trial" in text
    assert "0.2.0 def, torch 3: MaxPooling in 1 trial" in text
    assert "trained by 2 versions of the code" in caption(read(small.folder), ["loss"])


def test_the_digest_is_of_every_source_file(tmp_path):
    (tmp_path / "inner").mkdir()
    (tmp_path / "a.py").write_text("x = 1\n")
    (tmp_path / "inner" / "b.c").write_text("int x;\n")
    first = digest(tmp_path)
    (tmp_path / "a.so").write_bytes(b"compiled")
    (tmp_path / "a.pyc").write_bytes(b"compiled")
    assert digest(tmp_path) == first
    (tmp_path / "inner" / "b.c").write_text("int y;\n")
    second = digest(tmp_path)
    (tmp_path / "a.py").rename(tmp_path / "c.py")
    assert len({first, second, digest(tmp_path)}) == 3


# What the machine cannot hold


@pytest.mark.parametrize(
    ("study", "changes", "says"),
    [
        ("oct", {"size": 4096, "images": 10_000_000}, "10,000,000 images of 4096 × 4096 take"),
        ("oct", {"size": 4096, "images": 8, "batch": 10**6}, None),
        ("oct", {"size": 4096, "images": 400, "batch": 10**6}, "A batch of 400 images of 4096"),
        ("kvasir", {"images": 10**7, "size": 4096}, "Choose a smaller `size` or fewer `images`"),
    ],
)
def test_more_than_the_machine_has_is_told_beforehand(study, changes, says, monkeypatch):
    monkeypatch.setattr(limits, "_memory", lambda: 16 * 10**9)
    config = smoke(study, **changes)
    if says is None:
        limits.check_fits(STUDIES[config.study], config)
        return
    with pytest.raises(StudyError, match=says):
        limits.check_fits(STUDIES[config.study], config)


def test_copies_that_the_disk_cannot_hold(monkeypatch):
    monkeypatch.setattr(limits, "_disk", lambda folder: 10**9)
    limits.check_fits(STUDIES["kvasir"], smoke("kvasir"))
    with pytest.raises(StudyError, match=r"1,000 copies of each take .* the disk of .* 1\.0 GB"):
        limits.check_fits(STUDIES["kvasir"], smoke("kvasir", copies=1000, images=1000, size=64))


# Workers that die


def test_a_killed_worker_is_replaced(by_a_process, tmp_path):
    """The first epochs that are kept cost a worker its life; there is one, and three in all."""
    killed = []

    def deadly(units, jobs, task):
        for event in run_units(units, jobs, task):
            yield event
            if isinstance(event, Epoch) and event.row["epoch"] == 1 and len(killed) < 2:
                victim = multiprocessing.active_children()[0]
                killed.append(victim.pid)
                os.kill(victim.pid, signal.SIGKILL)

    outcome = carry_out(smoke("oct"), tmp_path, jobs=1, execute=deadly)
    assert len(killed) == 2
    assert not outcome.failures
    assert results(tmp_path).equals(results(by_a_process))


def test_a_unit_that_always_kills_its_worker_is_given_up(tmp_path, monkeypatch):
    """It dies before it has imported anything, which keeps the test short."""
    monkeypatch.setattr(local, "start_process", lambda *_: start_process(os._exit, 3))
    config = smoke("oct", trials=1, models=("base",))
    outcome = carry_out(config, tmp_path, jobs=1)
    (failure,) = outcome.failures
    assert "ended 3 times with exit code 3" in failure.why


def test_a_unit_that_diverges_does_not_stop_the_others(tmp_path):
    outcome = carry_out_here(smoke("oct", learning_rate=1e30, trials=1), tmp_path)
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

    with pytest.raises(KeyboardInterrupt):
        carry_out(smoke("oct"), tmp_path, execute=interrupting)
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
    carry_out_here(config, tmp_path / "run", jobs=1)
    more = config.model_copy(update={"trials": 2})
    write(phantoms.make(72, size=32))
    with pytest.raises(StudyError, match="was started with other images"):
        carry_out_here(more, tmp_path / "run", jobs=1)
    write(images)  # the same content, in a file that is newer
    carry_out_here(more, tmp_path / "run", jobs=1)
    assert results(tmp_path / "run")["trial"].max() == 2


def test_a_file_that_was_moved_is_known_by_its_content(tmp_path):

    def write(name, images):
        names = np.array(images.class_names)
        path = tmp_path / name
        np.savez(path, images=images.images, labels=images.labels, class_names=names)
        return smoke("oct", data=str(path), images=None, trials=1, models=("base",))

    here = write("here.npz", phantoms.make(64, size=32))
    carry_out_here(here, tmp_path / "run", jobs=1)
    (tmp_path / "here.npz").rename(tmp_path / "there.npz")
    there = here.model_copy(update={"data": str(tmp_path / "there.npz")})
    carry_out_here(there.model_copy(update={"trials": 2}), tmp_path / "run", jobs=1)
    assert results(tmp_path / "run")["trial"].max() == 2
    assert read_toml(tmp_path / "run" / "config.toml")["data"] == str(tmp_path / "there.npz")
    others = write("others.npz", phantoms.make(64, size=32, seed=5))
    for trials in (2, 3):  # also where nothing is left to train
        with pytest.raises(StudyError, match=r"other images .*there\.npz', not .*others\.npz"):
            carry_out_here(others.model_copy(update={"trials": trials}), tmp_path / "run", jobs=1)
