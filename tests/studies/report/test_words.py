"""A run in words, and one that is under way."""

from dataclasses import replace

import numpy as np
import pytest
from rich.console import Console
from synthetic_runs import synthetic_run

from tensorprojection.cli.tensorboard import Events
from tensorprojection.studies.errors import StudyError
from tensorprojection.studies.report.curves import read
from tensorprojection.studies.report.progress_of import look, shown
from tensorprojection.studies.report.words import lines
from tensorprojection.studies.trial.unit import Epoch, Unit


@pytest.mark.parametrize(
    ("by", "words"),
    [
        (-0.2, "TensorProjection 1 is better than MaxPooling: -"),
        (0.2, "TensorProjection 1 is worse than MaxPooling: +"),
        (0.0, "TensorProjection 1 and MaxPooling cannot be told apart"),
    ],
)
def test_words_follow_the_interval_whoever_wins(tmp_path, by, words):
    curves = read(synthetic_run(tmp_path / "run", observed=False))
    base = curves.values["loss", "base"]
    noise = np.random.default_rng(0).normal(scale=0.001, size=base.shape)
    values = {**curves.values, ("loss", "tpl1"): base + by + noise}
    said = lines(replace(curves, values=values), "loss")
    assert len(said) == 2  # a line for each network beside the base
    assert said[0].startswith(words)
    assert "95 % interval" in said[0]
    better = int((noise[:, -1] + by < 0).sum())
    assert f"better in {better} of 7 trials." in said[0]


def test_a_run_under_way_is_seen_by_its_files(tmp_path):
    folder = synthetic_run(tmp_path / "run", observed=False, batch=16, learning_rate=1e-3)
    assert look(folder).finished
    for trial in ("006", "007"):
        file = folder / "trials" / trial / "tpl2.jsonl"
        file.write_text("".join(file.read_text().splitlines(keepends=True)[:2]))
    state = look(folder)
    assert not state.finished
    assert [(m.finished, m.epochs) for m in state.models] == [(7, 35), (7, 35), (5, 29)]
    console = Console(width=140)
    with console.capture() as capture:
        console.print(shown(state))
    assert f"{100 * 99 / 105:.0f} % of all epochs" in capture.get()
    for foreign, text in (
        (tmp_path / "none", "no such folder"),
        (tmp_path, "has neither config"),
    ):
        with pytest.raises(StudyError, match=text):
            look(foreign)


def test_event_files_have_every_number_of_every_epoch(tmp_path):
    reader = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    rows = [{"epoch": k, "loss": 1 / k, "seconds": 2.0, "code": "1"} for k in (1, 2)]
    with Events(tmp_path) as events:
        for row in rows:
            events.show(Epoch(Unit(0, "tpl1"), row))
    found = reader.EventAccumulator(str(tmp_path / "tensorboard/tpl1/001"))
    found.Reload()
    assert [(e.step, e.value) for e in found.Scalars("loss")] == [(1, 1.0), (2, 0.5)]
