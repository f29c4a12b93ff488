"""What a run leaves on disk, and reading it back."""

import json
import subprocess
import sys

import polars as pl
import pytest
import torch

from tensorprojection.studies import checkpoint
from tensorprojection.studies import results as module
from tensorprojection.studies.checkpoint import Checkpoint
from tensorprojection.studies.results import RESULTS, UnitFiles, gather, write_results

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
        }
        for k in range(1, count + 1)
    ]


def kept(rows):
    network = torch.nn.Linear(2, 2)
    return checkpoint.take(network, torch.optim.Adam(network.parameters()), rows, "cpu")


def finish(run, trial, model, rows):
    files = UnitFiles.of(run, trial, model)
    files.finished.parent.mkdir(parents=True, exist_ok=True)
    files.finish(rows)
    return files


def begin(run, trial, model, rows):
    files = UnitFiles.of(run, trial, model)
    files.checkpoint.parent.mkdir(parents=True, exist_ok=True)
    checkpoint.save(kept(rows), files.checkpoint)
    return files


@pytest.fixture
def run(tmp_path):
    """Of two trials and two models: one finished, one begun, one of which nothing is there."""
    finish(tmp_path, 0, "base", epochs(3))
    begin(tmp_path, 0, "tpl", epochs(2, start=7.0))
    finish(tmp_path, 1, "base", epochs(3, start=9.0))
    return tmp_path


UNITS = [(0, "base"), (0, "tpl"), (1, "base"), (1, "tpl")]


def test_all_epochs_in_the_order_of_the_units(run):
    found = gather(run, "oct", UNITS)
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


def test_only_the_units_that_are_asked_for(run):
    assert gather(run, "oct", [(1, "base")]).height == 3
    assert gather(run, "oct", [(1, "tpl")]) is None
    assert gather(run, "oct", []) is None


def test_numbers_come_back_to_the_bit(tmp_path):
    values = [0.1 + 0.2, 1 / 3, 1e-300, 5e-324, 123456789.123456789]
    rows = [{"epoch": k, "loss": value} for k, value in enumerate(values, start=1)]
    finish(tmp_path, 0, "base", rows)
    found = gather(tmp_path, "oct", [(0, "base")])
    write_results(tmp_path, found)
    assert pl.read_parquet(tmp_path / RESULTS)["loss"].to_list() == values


def test_more_epochs_than_a_guess_at_their_type_looks_at(tmp_path):
    rows = epochs(300)
    finish(tmp_path, 0, "base", rows)
    found = gather(tmp_path, "oct", [(0, "base")])
    assert found.height == 300
    assert dict(found.schema) == SCHEMA


# Files of a unit


def test_where_a_unit_keeps_what_it_has(tmp_path):
    files = UnitFiles.of(tmp_path, 0, "tpl-aggressive")
    folder = tmp_path / "trials" / "001"
    assert files.finished == folder / "tpl-aggressive.json"
    assert files.checkpoint == folder / "tpl-aggressive.pt"
    assert UnitFiles.of(tmp_path, 1233, "base").finished.parent.name == "1234"


def test_finishing_lets_go_of_the_checkpoint(tmp_path):
    files = begin(tmp_path, 0, "base", epochs(2))
    assert files.rows() == epochs(2)
    files.finish(epochs(3))
    assert not files.checkpoint.exists()
    assert files.rows() == epochs(3)
    assert json.loads(files.finished.read_text()) == {"epochs": epochs(3)}


def test_a_unit_without_anything_has_no_rows(tmp_path):
    assert UnitFiles.of(tmp_path, 0, "base").rows() == []


def test_a_unit_that_finishes_while_it_is_read(tmp_path, monkeypatch):
    """Its checkpoint goes away between the look for the one file and the reading of the other."""
    files = begin(tmp_path, 0, "base", epochs(2))
    load = module.load

    def late(path):
        files.finish(epochs(3))
        return load(path)

    monkeypatch.setattr(module, "load", late)
    assert files.rows() == epochs(3)


def test_a_checkpoint_that_goes_away_is_none(tmp_path, monkeypatch):
    files = begin(tmp_path, 0, "base", epochs(2))
    load = torch.load

    def late(path, **options):
        files.checkpoint.unlink()
        return load(path, **options)

    monkeypatch.setattr(torch, "load", late)
    assert checkpoint.load(files.checkpoint) is None


# Checkpoints


def test_a_checkpoint_comes_back_to_the_bit(tmp_path):
    network = torch.nn.Sequential(torch.nn.Linear(3, 2), torch.nn.BatchNorm1d(2))
    optimizer = torch.optim.Adam(network.parameters(), lr=0.1)
    network(torch.randn(8, 3)).square().sum().backward()
    optimizer.step()
    taken = checkpoint.take(network, optimizer, epochs(1), "cpu")
    checkpoint.save(taken, tmp_path / "a.pt")
    drawn = torch.rand(4)

    torch.manual_seed(5)
    other = torch.nn.Sequential(torch.nn.Linear(3, 2), torch.nn.BatchNorm1d(2))
    fresh = torch.optim.Adam(other.parameters(), lr=0.7)
    loaded = checkpoint.load(tmp_path / "a.pt")
    assert checkpoint.restore(loaded, other, fresh, "cpu") == epochs(1)
    assert torch.equal(torch.rand(4), drawn)
    for name, value in network.state_dict().items():
        assert torch.equal(other.state_dict()[name], value)
    before, after = optimizer.state_dict(), fresh.state_dict()
    assert after["param_groups"] == before["param_groups"]
    for key, moments in before["state"].items():
        assert all(torch.equal(after["state"][key][name], moments[name]) for name in moments)


def test_a_checkpoint_with_anything_but_tensors_and_plain_values_is_refused(tmp_path):
    odd = Checkpoint({"a": print}, {}, {}, [])
    checkpoint.save(odd, tmp_path / "odd.pt")
    with pytest.raises(Exception, match="Weights only load failed"):
        checkpoint.load(tmp_path / "odd.pt")


# The table


def test_the_table_is_written_whole(run, monkeypatch):
    write_results(run, gather(run, "oct", UNITS))
    before = (run / RESULTS).read_bytes()

    def full(_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.fsync", full)
    with pytest.raises(OSError, match="No space"):
        write_results(run, gather(run, "oct", UNITS[:1]))
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
    found = gather(run, "oct", UNITS)
    write_results(run, found)
    command = [sys.executable, "-c", READ, str(run / RESULTS)]
    done = subprocess.run(command, capture_output=True, text=True, check=True, cwd=run)
    assert done.stdout.strip() == f"{list(SCHEMA)} 8 {found['loss'].sum()}"
