import io

import numpy as np
import pytest
from matplotlib import image
from rich.console import Console

from tensorprojection.studies import demo
from tensorprojection.studies.data.phantoms import oct as phantoms

TINY = demo.Options(epochs=2, images=32)


def trained(model, options=TINY):
    events = []
    demo.train(model, phantoms.make(options.images, size=48), options, events.append)
    return events


def test_training_reports_every_image_and_epoch():
    events = trained("tpl1")
    assert sum(e.images for e in events if isinstance(e, demo.Step)) == 24 * 2
    epochs = [e for e in events if isinstance(e, demo.Epoch)]
    assert [e.epoch for e in epochs] == [1, 2]
    assert all(np.isfinite(e.loss) and 0 <= e.accuracy <= 1 and e.seconds > 0 for e in epochs)


def test_training_is_repeatable():
    def results():
        return [(e.loss, e.accuracy) for e in trained("base") if isinstance(e, demo.Epoch)]

    assert results() == results()


def test_every_network_sees_the_same_batches(monkeypatch):
    orders = []
    batches = demo.batches

    def spy(images, order):
        orders.append(order.tolist())
        return batches(images, order)

    monkeypatch.setattr(demo, "batches", spy)
    trained("base")
    trained("tpl2")
    half = len(orders) // 2
    assert orders[:half] == orders[half:]
    assert orders[0] != orders[2]  # and epochs differ


def test_training_and_validation_share_no_image():
    training, validation = demo.split(phantoms.make(64, size=32))
    assert len(training) == 48
    assert len(validation) == 16
    both = np.concatenate([training.images, validation.images]).reshape(64, -1)
    assert len(np.unique(both, axis=0)) == 64


def test_from_the_command_to_the_figure(tmp_path, capsys):
    out = tmp_path / "a" / "b"
    assert demo.main(["--epochs", "1", "--images", "16", "--out", str(out)]) == 0
    text = capsys.readouterr().out
    for label, model in zip(demo.LABELS.values(), demo.LABELS, strict=True):
        assert label in text
        assert f"{model}  epoch 1/1  validation loss" in text
    for count in ("324,836", "324,980", "215,028"):  # the paper's totals
        assert count in text
    assert str(out / "demo.png") in text
    assert image.imread(out / "demo.png").std() > 0.05


def test_bars_in_a_terminal():
    console = Console(file=io.StringIO(), force_terminal=True, width=100)
    epochs = demo.watch(trained("base") + trained("tpl1"), TINY, console)
    assert len(epochs) == 4
    assert "epoch 2/2  accuracy" in console.file.getvalue()


def test_a_training_that_fails_ends_the_demo(monkeypatch, capfd):
    monkeypatch.setattr(demo, "LABELS", {"no such head": "?"})
    with pytest.raises(SystemExit, match="Training no such head ended early, exit code 1"):
        list(demo.train_all(TINY))
    assert "ValueError: Expected a head of" in capfd.readouterr().err


@pytest.mark.parametrize(
    ("wrong", "rule"),
    [
        (["--epochs", "0"], "--epochs must be at least 1, got 0"),
        (["--images", "15"], "--images must be at least 16, got 15"),
        (["--seed", "-1"], "--seed must not be negative, got -1"),
    ],
)
def test_wrong_options(wrong, rule, capsys):
    with pytest.raises(SystemExit) as stop:
        demo.main(wrong)
    assert stop.value.code == 2
    assert rule in capsys.readouterr().err
