"""Whole runs: their files, and that results depend on the settings only."""

import multiprocessing
import os
import shutil
import signal
import subprocess
import sys
import threading
import time

import numpy as np
import polars as pl
import pytest
import torch
from rich.console import Console
from small_runs import carry_out, carry_out_here, in_this_process, results, smoke

import tensorprojection
from tensorprojection.cli.progress import Watch
from tensorprojection.cli.watch import look
from tensorprojection.studies.config import code_version, read_toml
from tensorprojection.studies.data.phantoms import oct_phantoms
from tensorprojection.studies.errors import StudyError
from tensorprojection.studies.executors import local
from tensorprojection.studies.executors.local import run_jobs, start_process
from tensorprojection.studies.registry import STUDIES, read_config
from tensorprojection.studies.report.run import read_run
from tensorprojection.studies.report.tables import as_markdown, number
from tensorprojection.studies.results import (
    NOT_METRICS,
    JobFiles,
    read_starts,
    read_table,
    write_results,
)
from tensorprojection.studies.run import run
from tensorprojection.studies.training.job import Done, Epoch


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


METRICS = {
    "oct": ["loss", "accuracy", "f1", "sensitivity", "specificity", "auc"],
    "kvasir": ["loss", "dice", "iou", "mdice", "miou", "sensitivity", "specificity"],
}


@pytest.mark.parametrize("study", ["oct", "chest", "kvasir"])
def test_what_a_run_leaves(study, finished, tmp_path):
    config = smoke(study)
    folder = finished if study == "oct" else tmp_path
    carry_out_here(config, folder)
    found = pl.read_parquet(folder / "results.parquet")
    metrics = METRICS.get(study, METRICS["oct"])
    by_class = [
        f"{name}: {of}"
        for name in ("sensitivity", "specificity", "auc")
        for of in (() if study == "kvasir" else STUDIES[study].images.class_names)
    ]
    columns = ["study", "model", "trial", "epoch", "train_loss", *metrics, *by_class, *NOT_METRICS]
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
    (start,) = read_starts(folder)
    assert start["settings"] == config.as_settings()
    for unit in {path.parent for path in (folder / "trials").rglob("*.jsonl")}:
        left = {path.suffix for path in unit.iterdir()}
        # The rows, the checkpoint, the kept network, and what the page draws.
        assert left == {".jsonl", ".pt", ".safetensors", ".npz"}


def test_metrics_by_class_are_shown(finished):
    """As medians over the trials, at the epoch with the lowest loss."""
    rows = pl.read_parquet(finished / "results.parquet").filter(model="tpl1")
    rows = rows.filter(pl.col("loss") == pl.col("loss").min().over("trial"))
    names = ("sensitivity: CNV", "specificity: CNV", "auc: CNV")
    shown = " | ".join(number(float(np.median(rows[name]))) for name in names)
    assert f"| TensorProjection 1 | CNV | {shown} |" in as_markdown(read_run(finished))


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
        assert path.parent.name == ".locks" or path.stat().st_mtime_ns == changed


def test_more_trials_and_models_are_added(finished, tmp_path):
    carry_out_here(smoke("oct", trials=1, models=("base", "tpl1")), tmp_path)
    kept = (tmp_path / "trials" / "001" / "base.jsonl").stat().st_mtime_ns
    carry_out_here(smoke("oct", trials=1, models=("tpl2",)), tmp_path)
    carry_out_here(smoke("oct"), tmp_path)
    assert results(tmp_path).equals(results(finished))
    assert (tmp_path / "trials" / "001" / "base.jsonl").stat().st_mtime_ns == kept
    assert len(read_starts(tmp_path)) == 3


def test_other_settings_need_another_folder(finished):
    with pytest.raises(StudyError, match="was started with batch = 16, not 3"):
        carry_out_here(smoke("oct", batch=3), finished)
    with pytest.raises(StudyError, match="was started with study = 'oct', not 'kvasir'"):
        carry_out_here(smoke("kvasir"), finished)


def test_a_second_run_of_the_same_trials_is_refused(tmp_path):
    refused = []

    def second(jobs, count, task):
        for options in ({}, {"trial": 2}):
            with pytest.raises(StudyError, match="is in use by another process") as e:
                carry_out_here(smoke("oct"), tmp_path, **options)
            refused.append(str(e.value))
        yield from in_this_process(jobs, count, task)

    config = smoke("oct", models=("base",))
    assert not carry_out(config, tmp_path, execute=second).failures
    assert [text[:11] for text in refused] == ["The trial 1", "The trial 2"]


def test_trials_one_by_one_are_the_run(finished, tmp_path):
    for trial in (2, 1):
        carry_out_here(smoke("oct"), tmp_path, trial=trial)
    assert results(tmp_path).equals(results(finished))
    with pytest.raises(StudyError, match="Expected --trial from 1 to 2, got 3"):
        carry_out_here(smoke("oct"), tmp_path, trial=3)


def test_the_table_has_every_job_that_is_done_while_others_are_trained(tmp_path):
    """Made from that job's lines alone: those of the others are not read again."""
    seen = []

    def watched(jobs, count, task):
        for event in in_this_process(jobs, count, task):
            yield event
            if isinstance(event, Done):
                seen.append(results(tmp_path).select("trial", "model").unique().height)
                for other in (tmp_path / "trials").glob("*/*.jsonl"):
                    other.rename(other.with_suffix(".hidden"))

    carry_out(smoke("oct", models=("base", "tpl1")), tmp_path, execute=watched)
    assert seen == [1, 2, 3, 4]


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
        study = STUDIES["oct"]
        return run(study, config, folder, jobs, watch, execute=in_this_process), watch.said

    go.folder = folder
    return go


class Lines(Watch):
    """A watch that keeps what it says."""

    def __init__(self):
        super().__init__(Console(quiet=True))
        self.said = []

    def notice(self, text):
        self.said.append(text)


def test_settings_that_are_gone_stop_the_run(small):
    small()
    (small.folder / "config.toml").unlink()
    with pytest.raises(StudyError, match=r"has results but no config\.toml"):
        small(trials=2)


EDITS = {
    "trials = 1": "trials = 2",
    "size = 32": "size = 48",
    'split = "image"': 'split = "patient"',
    "learning_rate = 0.001": "learning_rate = 0.002",
    'keep = "best"': 'keep = "none"',
    'code = "': 'code = "1',
}


@pytest.mark.parametrize("before", EDITS)
def test_settings_that_were_edited_are_noticed_by_all_who_read_them(before, small):
    small()
    path = small.folder / "config.toml"
    text = path.read_text()
    assert text.count(before) == 1
    path.write_text(text.replace(before, EDITS[before]))
    says = "is not as the run wrote it: its checksum does not fit"
    for read_it in (small, lambda: read_run(small.folder), lambda: look(small.folder)):
        with pytest.raises(StudyError, match=says) as raised:
            read_it()
        assert "\n" not in str(raised.value)
    path.write_text(text)
    assert small()[0].was_finished


def test_a_path_may_be_edited(small):
    small()
    path = small.folder / "config.toml"
    path.write_text(path.read_text().replace('data = "phantoms"', 'data = "elsewhere.npz"'))
    assert read_run(small.folder).config.data == "elsewhere.npz"


def test_a_cosine_schedule_cannot_be_extended(small):
    small(schedule="cosine")
    with pytest.raises(StudyError, match="was started with epochs = 2, not 3"):
        small(schedule="cosine", epochs=3)


def changed(content, how):
    if how == "flipped":
        middle = len(content) // 2
        return content[:middle] + bytes([content[middle] ^ 1]) + content[middle + 1 :]
    return {"empty": b"", "truncated": content[: len(content) // 2 - 9]}[how]


@pytest.mark.parametrize("how", ["flipped", "empty", "truncated"])
def test_corrupted_results_of_a_finished_run_are_restored(how, small):
    small()
    before = results(small.folder)
    lines = small.folder / "trials" / "001" / "base.jsonl"
    whole = lines.read_bytes()
    for path in (lines, small.folder / "results.parquet"):
        path.write_bytes(changed(path.read_bytes(), how))
    outcome, said = small()
    assert not outcome.failures
    assert str(lines) in " ".join(said)
    assert len(lines.read_bytes().splitlines()) == len(whole.splitlines())
    assert results(small.folder).equals(before)


def test_settings_and_results_alone_are_enough_to_add_to_a_run(small, tmp_path):
    """As an archive keeps them; nothing that is measured is trained again or lost."""
    small(models=("base", "tpl1"))
    before = results(small.folder)
    shutil.rmtree(small.folder / "trials")
    (small.folder / "record.jsonl").unlink()
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
    write_results(small.folder, change(pl.read_parquet(path)))
    return path.read_bytes()


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (
            lambda t: t.with_columns(study=pl.lit("chest")),
            "Expected results of the oct study alone",
        ),
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
    with pytest.raises(StudyError, match=r"results\.parquet is corrupted"):
        small()
    assert path.read_bytes() == damaged


def test_who_is_stopped_while_lines_come_back_begins_again(small, monkeypatch):
    small(trials=3)
    before = results(small.folder)
    archived(small)
    write, calls = JobFiles.write, []

    def fail_once(files, rows):
        calls.append(files)
        if len(calls) == 2:
            raise OSError(28, "No space left on device", str(files.lines))
        write(files, rows)

    monkeypatch.setattr(JobFiles, "write", fail_once)
    with pytest.raises(StudyError, match="No space left on device"):
        small(trials=3)
    assert small(trials=3)[0].was_finished
    assert results(small.folder).equals(before)
    assert not (small.folder / "trials.part").exists()


def test_a_flip_of_any_bit_of_a_table_is_found(small, capfd):
    small()
    before = archived(small)
    path = small.folder / "results.parquet"
    for place in range(0, len(before), 37):
        flipped = bytearray(before)
        flipped[place] ^= 1 << place % 8
        path.write_bytes(flipped)
        with pytest.raises(StudyError, match=r"results\.parquet is corrupted"):
            read_table(path)
    path.write_bytes(before)
    assert read_table(path).equals(pl.read_parquet(path))
    assert capfd.readouterr().err == ""


def test_an_evaluation_is_no_run_to_go_on_with(small):
    small()
    archived(small)
    (small.folder / "held_out.txt").write_text("others.npz")
    with pytest.raises(StudyError, match="is an evaluation, not a run"):
        small()


# Versions of the code


OTHER = "0.2.0, kernels off, torch 3, numpy 3"


@pytest.fixture
def other_code(monkeypatch):
    """``other_code()``: the code is another from now on."""

    def change():
        for name in ("run", "training.train", "executors.base"):
            module = f"tensorprojection.studies.{name}.code_version"
            monkeypatch.setattr(module, lambda *study: OTHER)

    return change


def test_a_run_does_not_go_on_with_other_code(small, other_code):
    small()
    other_code()
    with pytest.raises(StudyError, match=r"was begun with .*--mix-versions") as raised:
        small(trials=2)
    assert code_version() in str(raised.value)
    assert OTHER in str(raised.value)
    assert small()[0].was_finished  # nothing is trained, so nothing is mixed


def test_versions_are_mixed_only_where_asked_for_and_the_table_says_so(small, other_code):
    small()
    assert "version" not in as_markdown(read_run(small.folder))
    other_code()
    config = smoke("oct", trials=2, models=("base",))
    carry_out_here(config, small.folder, mix_versions=True)
    codes = results(small.folder)["code"].unique(maintain_order=True).to_list()
    assert codes == [code_version(), OTHER]
    text = as_markdown(read_run(small.folder))
    assert "Trained by more than one version of the code" in text
    assert code_version() in text
    assert OTHER in text


def test_the_version_names_all_that_decides_the_bits():
    code = code_version()
    for part in (tensorprojection.__version__, torch.__version__, np.__version__):
        assert part in code
    assert torch.backends.cpu.get_cpu_capability() in code


def test_other_kernels_are_another_version():
    script = "from tensorprojection.studies.config import code_version; print(code_version())"
    environment = {**os.environ, "TENSORPROJECTION_COMPILED": "0"}
    done = subprocess.run(
        [sys.executable, "-c", script], env=environment, capture_output=True, text=True, check=True
    )
    assert "kernels off" in done.stdout
    if tensorprojection.kernels():
        assert done.stdout.strip() != code_version()


# Workers that die


def test_a_killed_worker_is_replaced(by_a_process, tmp_path):
    """The first epoch that is kept costs a worker its life; there is one at a time."""
    killed = []

    def deadly(jobs, count, task):
        for event in run_jobs(jobs, count, task):
            yield event
            if isinstance(event, Epoch) and event.row["epoch"] == 1 and not killed:
                victim = multiprocessing.active_children()[0]
                killed.append(victim.pid)
                os.kill(victim.pid, signal.SIGKILL)

    outcome = carry_out(smoke("oct"), tmp_path, jobs=1, execute=deadly)
    assert len(killed) == 1
    assert not outcome.failures
    assert results(tmp_path).equals(results(by_a_process))


def test_a_job_that_always_kills_its_worker_is_given_up(tmp_path, monkeypatch):
    """It dies before it has imported anything, which keeps the test short."""
    monkeypatch.setattr(local, "start_process", lambda *_: start_process(os._exit, 3))
    config = smoke("oct", trials=1, models=("base",))
    outcome = carry_out(config, tmp_path, jobs=1)
    (failure,) = outcome.failures
    assert "ended 3 times with exit code 3" in failure.why


def test_a_job_that_diverges_does_not_stop_the_others(tmp_path):
    outcome = carry_out_here(smoke("oct", learning_rate=1e30, trials=1), tmp_path)
    assert len(outcome.failures) == 3
    assert all("diverged" in failure.why for failure in outcome.failures)


def test_workers_end_when_the_generator_is_closed(tmp_path):
    """A generator that is closed early, as by Ctrl-C, leaves no process behind."""
    started = threading.Event()

    def interrupting(jobs, count, task):
        for event in run_jobs(jobs, count, task):
            started.set()
            yield event
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        carry_out(smoke("oct"), tmp_path, jobs=1, execute=interrupting)
    assert started.is_set()
    deadline = time.monotonic() + 20
    while multiprocessing.active_children() and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not multiprocessing.active_children()


# Images that change under a run


def test_a_run_does_not_go_on_with_other_images(tmp_path):
    """The split would be another, and validation would see images that were trained on."""
    images = oct_phantoms(64, size=32)
    file = tmp_path / "mine.npz"

    def write(images):
        names = np.array(images.class_names)
        np.savez(file, images=images.images, labels=images.labels, class_names=names)

    write(images)
    config = smoke("oct", data=str(file), images=None, trials=1, models=("base",))
    carry_out_here(config, tmp_path / "run", jobs=1)
    more = config.model_copy(update={"trials": 2})
    write(oct_phantoms(72, size=32))
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

    here = write("here.npz", oct_phantoms(64, size=32))
    carry_out_here(here, tmp_path / "run", jobs=1)
    (tmp_path / "here.npz").rename(tmp_path / "there.npz")
    there = here.model_copy(update={"data": str(tmp_path / "there.npz")})
    carry_out_here(there.model_copy(update={"trials": 2}), tmp_path / "run", jobs=1)
    assert results(tmp_path / "run")["trial"].max() == 2
    assert read_toml(tmp_path / "run" / "config.toml")["data"] == str(tmp_path / "there.npz")
    others = write("others.npz", oct_phantoms(64, size=32, seed=5))
    with pytest.raises(StudyError, match="was started with other images"):
        carry_out_here(others.model_copy(update={"trials": 3}), tmp_path / "run", jobs=1)
