"""tpl watch: a running run."""

import pytest
from rich.console import Console
from synthetic_runs import synthetic_run

from tensorprojection.cli.run import event_files
from tensorprojection.cli.watch import look, shown
from tensorprojection.studies.errors import StudyError
from tensorprojection.studies.training.job import Epoch, Job


def test_a_run_under_way_is_seen_by_its_files(tmp_path):
    folder = synthetic_run(tmp_path / "run", observed=False, batch=16, learning_rate=1e-3)
    assert look(folder)[1]
    for trial in ("006", "007"):
        file = folder / "trials" / trial / "tpl2.jsonl"
        file.write_text("".join(file.read_text().splitlines(keepends=True)[:2]))
    lines, finished = look(folder)
    assert not finished
    done = [(line["trials"], line["epochs"]) for line in lines]
    assert done == [("7/7", "35/35"), ("7/7", "35/35"), ("5/7", "29/35")]
    console = Console(width=140)
    with console.capture() as capture:
        console.print(shown(folder, lines))
    assert "29/35" in capture.get()
    for foreign, text in (
        (tmp_path / "none", "no such folder"),
        (tmp_path, r"has no config\.toml"),
    ):
        with pytest.raises(StudyError, match=text):
            look(foreign)


def test_event_files_have_every_number_of_every_epoch(tmp_path):
    reader = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    rows = [{"epoch": k, "loss": 1 / k, "seconds": 2.0, "code": "1"} for k in (1, 2)]
    write = event_files(tmp_path)
    for row in rows:
        write(Epoch(Job(0, "tpl1"), row))
    found = reader.EventAccumulator(str(tmp_path / "tensorboard/tpl1/001"))
    found.Reload()
    assert [(e.step, e.value) for e in found.Scalars("loss")] == [(1, 1.0), (2, 0.5)]
