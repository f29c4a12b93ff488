"""A run's files: writing them, and reading them back."""

import json
import subprocess
import sys
from pathlib import Path

import polars as pl
import pytest
import torch

from tensorprojection.studies import results as module
from tensorprojection.studies.results import (
    RESULTS,
    JobFiles,
    Saved,
    gather,
    write_results,
)
from tensorprojection.studies.training import checkpoint
from tensorprojection.studies.training.checkpoint import CorruptError

SCHEMA = {
    "study": pl.String,
    "model": pl.String,
    "trial": pl.Int64,
    "epoch": pl.Int64,
    "train_loss": pl.Float64,
    "loss": pl.Float64,
    "accuracy": pl.Float64,
    "f1": pl.Float64,
    "seconds": pl.Float64,
    "code": pl.String,
}


def epochs(count, start=0.0):
    return [
        {
            "epoch": k,
            "train_loss": start + 1 / k,
            "loss": 1 / 3 / k,
            "accuracy": 1.0,  # whole numbers stay floats
            "f1": 0.1 * k,
            "seconds": 2.5,
            "code": "0.1.0 abc, torch 2",
        }
        for k in range(1, count + 1)
    ]


def taken(epoch=1):
    network = torch.nn.Linear(2, 2)
    return checkpoint.take(network, torch.optim.Adam(network.parameters()), epoch, "cpu")


def begin(run, trial, model, rows):
    files = JobFiles.of(run, trial, model)
    for row in rows:
        files.save(row, Saved(taken(row["epoch"]), b"network", b"observed"))
    return files


@pytest.fixture
def run(tmp_path):
    """Of two trials and two models: two at their last epoch, one begun, one without anything."""
    begin(tmp_path, 0, "base", epochs(3))
    begin(tmp_path, 0, "tpl", epochs(2, start=7.0))
    begin(tmp_path, 1, "base", epochs(3, start=9.0))
    return tmp_path


JOBS = [(0, "base"), (0, "tpl"), (1, "base"), (1, "tpl")]


def test_all_epochs_in_the_order_of_the_jobs(run):
    found = gather(run, "oct", JOBS)
    assert dict(found.schema) == SCHEMA
    assert found["study"].unique().to_list() == ["oct"]
    assert found.select("model", "trial", "epoch").rows() == [
        *[("base", 1, k) for k in (1, 2, 3)],
        *[("tpl", 1, k) for k in (1, 2)],
        *[("base", 2, k) for k in (1, 2, 3)],
    ]
    again = [row for model in ("base", "tpl") for row in epochs(3 if model == "base" else 2)]
    assert found.filter(trial=1)["loss"].to_list() == [row["loss"] for row in again]
    assert found.filter(model="tpl")["train_loss"].to_list() == [8.0, 7.5]


def test_only_the_jobs_that_are_asked_for(run):
    assert gather(run, "oct", [(1, "base")]).height == 3
    assert gather(run, "oct", [(1, "tpl")]) is None
    assert gather(run, "oct", []) is None


def test_numbers_come_back_to_the_bit(tmp_path):
    values = [0.1 + 0.2, 1 / 3, 1e-300, 5e-324, 123456789.123456789]
    rows = [{"epoch": k, "loss": value} for k, value in enumerate(values, start=1)]
    begin(tmp_path, 0, "base", rows)
    found = gather(tmp_path, "oct", [(0, "base")])
    write_results(tmp_path, found)
    assert pl.read_parquet(tmp_path / RESULTS)["loss"].to_list() == values


def test_more_epochs_than_a_guess_at_their_type_looks_at(tmp_path):
    rows = epochs(300)
    begin(tmp_path, 0, "base", rows)
    found = gather(tmp_path, "oct", [(0, "base")])
    assert found.height == 300
    assert dict(found.schema) == SCHEMA


# Files of a job


def test_where_a_job_keeps_what_it_has(tmp_path):
    files = JobFiles.of(tmp_path, 0, "tpl-aggressive")
    folder = tmp_path / "trials" / "001"
    assert files.lines == folder / "tpl-aggressive.jsonl"
    assert files.checkpoint == folder / "tpl-aggressive.pt"
    assert JobFiles.of(tmp_path, 1233, "base").lines.parent.name == "1234"


def test_a_line_is_the_epochs_numbers_and_a_hash(tmp_path):
    files = begin(tmp_path, 0, "base", epochs(2))
    lines = [json.loads(line) for line in files.lines.read_text().splitlines()]
    assert [{k: v for k, v in line.items() if k != "sha256"} for line in lines] == epochs(2)
    assert files.read() == (epochs(2), None)


def test_a_job_without_anything_has_no_rows(tmp_path):
    assert JobFiles.of(tmp_path, 0, "base").read() == ([], None)


def test_every_corruption_of_a_file_of_lines_is_found(tmp_path):
    """Each bit and each length: what comes back is the truth or less, and that is said."""
    files = begin(tmp_path, 0, "base", epochs(3))
    whole = files.lines.read_bytes()
    for place in range(len(whole)):
        flipped = bytearray(whole)
        flipped[place] ^= 1 << place % 7
        files.lines.write_bytes(flipped)
        rows, problem = files.read()
        assert rows == epochs(3)[: len(rows)]
        # The end of the last line may be one that is being written.
        assert problem is not None or len(rows) >= 2, place
        assert problem is None or str(files.lines) in problem
    for length in range(len(whole)):
        files.lines.write_bytes(whole[:length])
        assert files.read() == (epochs(3)[: whole[:length].count(b"\n")], None)


def test_a_line_that_is_missing_or_twice_is_found(tmp_path):
    files = begin(tmp_path, 0, "base", epochs(3))
    lines = files.lines.read_bytes().splitlines(keepends=True)
    for wrong, right in [([0, 2], 1), ([0, 1, 1, 2], 2), ([1], 0)]:
        files.lines.write_bytes(b"".join(lines[k] for k in wrong))
        rows, problem = files.read()
        assert rows == epochs(3)[:right]
        assert "is corrupted in line" in problem


WITHOUT_TORCH = """
import sys, types
sys.modules["torch"] = None
package = types.ModuleType("tensorprojection")
package.__path__ = [sys.argv[2]]
sys.modules["tensorprojection"] = package  # whose own names need torch
from pathlib import Path
from tensorprojection.studies.results import gather
print(gather(Path(sys.argv[1]), "oct", [(0, "base"), (0, "tpl")]).height)
"""


def test_results_are_read_without_torch(run):
    package = str(Path(module.__file__).parents[1])
    command = [sys.executable, "-c", WITHOUT_TORCH, str(run), package]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert done.stdout == "5\n"


# Checkpoints


def test_a_checkpoint_comes_back_to_the_bit(tmp_path):
    network = torch.nn.Sequential(torch.nn.Linear(3, 2), torch.nn.BatchNorm1d(2))
    optimizer = torch.optim.Adam(network.parameters(), lr=0.1)
    network(torch.randn(8, 3)).square().sum().backward()
    optimizer.step()
    content = checkpoint.take(network, optimizer, 1, "cpu")
    drawn = torch.rand(4)

    torch.manual_seed(5)
    other = torch.nn.Sequential(torch.nn.Linear(3, 2), torch.nn.BatchNorm1d(2))
    fresh = torch.optim.Adam(other.parameters(), lr=0.7)
    checkpoint.restore(content, tmp_path / "a.pt", other, fresh, "cpu")
    assert torch.equal(torch.rand(4), drawn)
    for name, value in network.state_dict().items():
        assert torch.equal(other.state_dict()[name], value)
    before, after = optimizer.state_dict(), fresh.state_dict()
    assert after["param_groups"] == before["param_groups"]
    for key, moments in before["state"].items():
        assert all(torch.equal(after["state"][key][name], moments[name]) for name in moments)


def test_a_checkpoint_with_anything_but_tensors_and_plain_values_is_refused(tmp_path):
    class Odd:
        def __init__(self, state):
            self.state_dict = lambda: state

    content = checkpoint.take(Odd({"a": print}), Odd({}), 1, "cpu")
    with pytest.raises(Exception, match="Weights only load failed"):
        checkpoint.load(content, tmp_path)


def test_a_flip_anywhere_in_a_checkpoint_is_found(tmp_path):
    path, whole = tmp_path / "base.pt", taken()
    for place in range(0, len(whole), 7):
        flipped = bytearray(whole)
        flipped[place] ^= 4
        with pytest.raises(CorruptError, match=r"base\.pt is corrupted"):
            checkpoint.load(bytes(flipped), path)
    for length in (0, 1, 50, len(whole) // 2, len(whole) - 1):
        with pytest.raises(CorruptError):
            checkpoint.load(whole[:length], path)
    assert checkpoint.load(whole, path).epoch == 1


def test_torch_reads_a_checkpoint_by_itself(tmp_path):
    files = begin(tmp_path, 0, "base", epochs(2))
    read = torch.load(files.checkpoint, weights_only=True)
    assert read["epoch"] == 2
    assert read["network"].keys() == {"weight", "bias"}


# The table


def test_the_table_is_written_whole(run, monkeypatch):
    write_results(run, gather(run, "oct", JOBS))
    before = (run / RESULTS).read_bytes()

    def full(_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.fsync", full)
    with pytest.raises(OSError, match="No space"):
        write_results(run, gather(run, "oct", JOBS[:1]))
    assert (run / RESULTS).read_bytes() == before
    assert not list(run.glob("*.part"))


READ = """
import sys
sys.modules["tensorprojection"] = None
import polars
frame = polars.read_parquet(sys.argv[1])
print(frame.columns, frame.height, frame["loss"].sum())
"""


def test_the_table_is_read_without_this_package(run):
    found = gather(run, "oct", JOBS)
    write_results(run, found)
    command = [sys.executable, "-c", READ, str(run / RESULTS)]
    done = subprocess.run(command, capture_output=True, text=True, check=True, cwd=run)
    assert done.stdout.strip() == f"{list(SCHEMA)} 8 {found['loss'].sum()}"
