"""Kept networks: what is kept, and using it again."""

import json
import re
import subprocess
import sys

import numpy as np
import pytest
import torch
from cyclopts import App
from PIL import Image
from safetensors import safe_open
from safetensors.torch import save_file
from small_runs import carry_out_here, smoke

import tensorprojection.studies
from tensorprojection import FrozenProjection
from tensorprojection.cli.evaluate import evaluate
from tensorprojection.cli.export import export
from tensorprojection.cli.predict import predict
from tensorprojection.studies.data.phantoms import oct as oct_phantoms
from tensorprojection.studies.errors import StudyError
from tensorprojection.studies.kept import deploy
from tensorprojection.studies.kept.networks import load_network
from tensorprojection.studies.observed import read_observed
from tensorprojection.studies.registry import STUDIES
from tensorprojection.studies.report.curves import read
from tensorprojection.studies.results import UnitFiles
from tensorprojection.studies.trial.keeper import Keeper
from tensorprojection.studies.trial.train import train
from tensorprojection.studies.trial.unit import Unit


def row(epoch, loss):
    return {"epoch": epoch, "train_loss": 1.0, "loss": loss, "accuracy": 0.5, "f1": 0.5} | {
        "seconds": 1.0,
        "code": "1",
    }


def keeper_of(keep, folder, config, trial, model):
    class_names = STUDIES[config.study].images.class_names
    return Keeper(keep, folder, config, Unit(trial, model), class_names)


def content_of(file):
    """The tensors of a safetensors file and its header, which is in no order."""
    with safe_open(file, "pt") as opened:
        return {name: opened.get_tensor(name) for name in opened.keys()}, opened.metadata()  # noqa: SIM118


def new_network(config, model, seed=0):
    torch.manual_seed(seed)
    return STUDIES[config.study].network(config, model, torch.rand(16, 3, config.size, config.size))


@pytest.fixture
def run(tmp_path, monkeypatch):
    """``run(study, models)``: a run's folder with kept networks that nobody has trained."""
    monkeypatch.setenv("TENSORPROJECTION_CACHE", str(tmp_path / "cache"))

    def make(study="oct", models=("base", "tpl1"), losses=(0.7, 0.6)):
        config = smoke(study, models=models, trials=len(losses))
        folder = tmp_path / "run"
        for trial, loss in enumerate(losses):
            for model in models:
                file = UnitFiles.of(folder, trial, model).network
                file.parent.mkdir(parents=True, exist_ok=True)
                keeper = keeper_of("best", folder, config, trial, model)
                keeper.take(new_network(config, model, seed=trial), row(1, loss))
        (folder / "config.toml").write_bytes(config.as_toml())
        return folder

    return make


def tpl(command, *arguments):
    app = App()
    app.command(command)
    app([command.__name__, *map(str, arguments)], exit_on_error=False, result_action="return_value")


# Keeping


@pytest.mark.parametrize(("keep", "epoch"), [("best", 2), ("last", 3), ("none", None)])
def test_which_network_is_kept(tmp_path, keep, epoch):
    config = smoke("oct")
    UnitFiles.of(tmp_path, 0, "tpl1").network.parent.mkdir(parents=True)
    networks = {k: new_network(config, "tpl1", seed=k) for k in (1, 2, 3)}
    for k, loss in ((1, 0.5), (2, 0.3), (3, 0.4)):
        keeper_of(keep, tmp_path, config, 0, "tpl1").take(networks[k], row(k, loss))
    if epoch is None:
        assert not UnitFiles.of(tmp_path, 0, "tpl1").network.exists()
        return
    kept = load_network(tmp_path, "tpl1")
    assert kept.about.epoch == epoch
    assert kept.about.metrics["loss"] == {2: 0.3, 3: 0.4}[epoch]
    expected = networks[epoch].state_dict()
    assert kept.network.state_dict().keys() == expected.keys()
    assert all(torch.equal(v, expected[k]) for k, v in kept.network.state_dict().items())
    assert not kept.network.training


def test_a_training_that_begins_anew_replaces_what_an_earlier_one_kept(tmp_path):
    config = smoke("oct")
    UnitFiles.of(tmp_path, 0, "base").network.parent.mkdir(parents=True)
    keeper = keeper_of("best", tmp_path, config, 0, "base")
    keeper.take(new_network(config, "base", 1), row(5, 0.1))
    keeper.take(new_network(config, "base", 2), row(1, 0.9))
    assert load_network(tmp_path, "base").about.epoch == 1


def test_a_run_keeps_networks_and_observations_whether_it_is_stopped_or_not(tmp_path, monkeypatch):
    """Stopped between what is kept and the checkpoint, it ends with the same files."""
    monkeypatch.setenv("TENSORPROJECTION_CACHE", str(tmp_path / "cache"))
    config, study = smoke("oct", models=("tpl1",), trials=1, epochs=3), STUDIES["oct"]
    inputs = study.prepare(config, 1, lambda *told: None)
    data, unit = study.open(config, inputs), Unit(0, "tpl1")
    for name in ("whole", "stopped"):
        (tmp_path / name / "trials" / "001").mkdir(parents=True)

    def train_in(folder):
        keeper = keeper_of("best", folder, config, 0, "tpl1")
        train(unit, study, config, data, folder, lambda event: None, keeper=keeper)

    train_in(tmp_path / "whole")

    class StopError(Exception):
        pass

    from tensorprojection.studies.trial import checkpoint

    save, saved = checkpoint.save, []

    def stop_once(state, path):
        saved.append(len(state.rows))
        if saved == [1, 2]:
            raise StopError
        save(state, path)

    monkeypatch.setattr(checkpoint, "save", stop_once)
    with pytest.raises(StopError):
        train_in(tmp_path / "stopped")
    train_in(tmp_path / "stopped")
    assert saved == [1, 2, 2, 3]
    files = [UnitFiles.of(tmp_path / name, 0, "tpl1").network for name in ("whole", "stopped")]
    (whole, of_whole), (stopped, of_stopped) = map(content_of, files)
    assert of_whole == of_stopped
    assert all(torch.equal(value, stopped[name]) for name, value in whole.items())
    first, second = (
        read_observed(UnitFiles.of(tmp_path / n, 0, "tpl1").observed) for n in ("whole", "stopped")
    )
    assert first.epochs == [1, 2, 3]
    assert first.arrays.keys() == second.arrays.keys()
    assert all(np.array_equal(v, second.arrays[k]) for k, v in first.arrays.items())
    rows = UnitFiles.of(tmp_path / "whole", 0, "tpl1").rows()
    confusion = first.get("confusion")
    for epoch, counts in zip(rows, confusion, strict=True):
        assert np.trace(counts) / counts.sum() == pytest.approx(epoch["accuracy"])
    about = load_network(tmp_path / "whole", "tpl1").about
    assert about.metrics["loss"] == min(r["loss"] for r in rows)


def test_what_is_observed_of_a_projection_is_what_it_does(tmp_path, monkeypatch):
    monkeypatch.setenv("TENSORPROJECTION_CACHE", str(tmp_path / "cache"))
    config, study = smoke("oct", models=("tpl1",), trials=1, epochs=1), STUDIES["oct"]
    data = study.open(config, study.prepare(config, 1, lambda *told: None))
    (tmp_path / "run/trials/001").mkdir(parents=True)
    keeper = keeper_of("last", tmp_path / "run", config, 0, "tpl1")
    train(Unit(0, "tpl1"), study, config, data, tmp_path / "run", lambda _: None, keeper=keeper)
    seen = read_observed(UnitFiles.of(tmp_path / "run", 0, "tpl1").observed)
    network = load_network(tmp_path / "run", "tpl1").network
    _, validation = data.sides(0)
    with torch.no_grad():
        x = network[: list(dict(network.named_children())).index("projection4")](
            data.batch(validation)[0]
        )
        z = network.projection4(x)
        U = network.projection4.projections()[1]
    share = float(z.double().square().sum() / x.double().square().sum())
    assert seen.get("energy/projection4")[0] == pytest.approx(share, rel=1e-4)
    assert seen.get("U/projection4/2") == pytest.approx(U.numpy(), abs=1e-3)
    assert seen.get("start/projection4/2").shape == U.shape


# Loading


def test_load_gives_the_best_trial_or_the_one_that_is_asked_for(run):
    folder = run(losses=(0.7, 0.6))
    x = torch.rand(2, 3, 32, 32)
    for trial, seed in (("best", 1), (1, 0), (2, 1)):
        found = tensorprojection.studies.load(folder, model="tpl1", trial=trial)
        expected = new_network(smoke("oct"), "tpl1", seed).eval()
        assert torch.equal(found(x), expected(x))


def test_loading_leaves_the_random_numbers_alone(run):
    folder = run(models=("mpca",))
    torch.manual_seed(3)
    expected = torch.rand(1)
    torch.manual_seed(3)
    tensorprojection.studies.load(folder, model="mpca")
    assert torch.equal(torch.rand(1), expected)


def test_what_cannot_be_loaded_is_told_in_one_line(run, tmp_path):
    folder = run(losses=(0.5,))
    for arguments, text in (
        ((tmp_path / "none", "tpl1"), "there is no such folder"),
        ((tmp_path, "tpl1"), "has no trials in it"),
        ((folder, "hope"), "Expected a network of base, tpl1"),
        ((folder, "tpl1", 7), "Expected a trial of 1 for tpl1"),
    ):
        with pytest.raises(StudyError, match=text) as error:
            tensorprojection.studies.load(*arguments)
        assert "\n" not in str(error.value)


def test_kept_networks_of_other_versions_and_damaged_ones_are_told(run):
    folder = run(losses=(0.5,))
    file = UnitFiles.of(folder, 0, "tpl1").network
    tensors, header = content_of(file)
    save_file(tensors, file, header | {"format": "99"})
    with pytest.raises(StudyError, match=r"Expected a network of format 1 in .*, got 99"):
        load_network(folder, "tpl1")
    smaller = {name: value for name, value in tensors.items() if name != "dense2.bias"}
    save_file(smaller, file, header)
    with pytest.raises(StudyError, match="is not of this version's tpl1") as error:
        load_network(folder, "tpl1")
    assert "\n" not in str(error.value)
    file.write_bytes(file.read_bytes()[:1000])
    with pytest.raises(StudyError, match="is damaged"):
        load_network(folder, "tpl1")


# Exporting and predicting


@pytest.fixture
def pictures(tmp_path):
    images = oct_phantoms.make(4, seed=9, size=32).images
    folder = tmp_path / "pictures"
    folder.mkdir()
    for k, image in enumerate(images):
        Image.fromarray(image).save(folder / f"{k}.png")
    return folder, images


@pytest.mark.parametrize("suffix", [".pt2", ".onnx"])
def test_an_exported_network_says_what_the_kept_one_says(run, pictures, tmp_path, capsys, suffix):
    folder, (place, images) = run(), pictures
    file = tmp_path / f"model{suffix}"
    tpl(export, folder, "--model", "tpl1", "--to", file)
    network, known = deploy.read_exported(file)
    assert (known["size"], known["mode"], known["trial"]) == (32, "L", 2)
    assert known["class_names"] == ["NORMAL", "CNV", "DME", "DRUSEN"]
    x = torch.from_numpy(images).float()[:, None].expand(-1, 3, -1, -1).contiguous() / 255
    expected = tensorprojection.studies.load(folder, model="tpl1")(x)
    gray = x[:, :1]  # pixels as they are; what the network makes of them is in the file
    assert torch.allclose(network(gray), expected, atol=1e-5)
    assert torch.allclose(network(gray[:1]), expected[:1], atol=1e-5)  # any number of images
    csv = [tmp_path / f"{name}.csv" for name in "ab"]
    tpl(predict, file, place, "--csv", csv[0])
    tpl(predict, folder, place, "--model", "tpl1", "--csv", csv[1])
    first, second = ([line.split(",") for line in path.read_text().splitlines()] for path in csv)
    assert first[0] == ["file", "class", "NORMAL", "CNV", "DME", "DRUSEN"]
    shares = torch.softmax(expected, dim=1).detach().numpy()
    for lines in (first, second):
        assert [line[0] for line in lines[1:]] == [str(place / f"{k}.png") for k in range(4)]
        assert np.array([line[2:] for line in lines[1:]], float) == pytest.approx(shares, abs=1e-4)
    with pytest.raises(StudyError, match="is there already"):
        tpl(export, folder, "--model", "tpl1", "--to", file)


def test_an_exported_program_has_no_decomposition_and_no_projection_in_it(run, tmp_path):
    folder, file = run(), tmp_path / "model.pt2"
    tpl(export, folder, "--model", "tpl1", "--to", file)
    nodes = [str(node.target) for node in torch.export.load(file).graph.nodes]
    assert not [name for name in nodes if "linalg" in name or "tensorprojection" in name]
    code = f"import sys, torch; torch.export.load({str(file)!r}); print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert "tensorprojection" not in done.stdout.split()


@pytest.mark.parametrize("model", ["base", "mpca", "hope"])
def test_networks_of_every_kind_are_exported(run, tmp_path, model):
    folder, file = run(models=(model,)), tmp_path / "model.pt2"
    tpl(export, folder, "--model", model, "--to", file)
    x = torch.rand(3, 1, 32, 32)
    expected = tensorprojection.studies.load(folder, model=model)(x.expand(-1, 3, -1, -1))
    assert torch.allclose(deploy.read_exported(file)[0](x), expected, atol=1e-5)


def test_an_export_that_differs_is_not_written(run, tmp_path, monkeypatch):
    folder, file = run(), tmp_path / "model.pt2"
    fold = deploy.fold

    def wrong(network, example):
        folded = fold(network, example)
        with torch.no_grad():
            folded.model.dense2.bias.add_(0.001)
        return folded

    monkeypatch.setattr(deploy, "fold", wrong)
    with pytest.raises(StudyError, match=r"differs from the original by 1\.0e-03"):
        tpl(export, folder, "--model", "tpl1", "--to", file)
    assert not list(tmp_path.glob("*.pt2"))
    assert not list(tmp_path.glob(".*.pt2"))


def test_files_that_are_no_images_are_named_and_the_others_predicted(run, pictures, capsys):
    folder, (place, _) = run(), pictures
    (place / "bad.png").write_bytes(b"no image")
    with pytest.raises(SystemExit) as end:
        tpl(predict, folder, place, place / "gone.png", "--model", "base")
    assert end.value.code == 1
    printed = capsys.readouterr()
    assert "bad.png is not an image." in printed.err
    assert "gone.png cannot be read (No such file or directory)." in printed.err
    assert printed.err.count("\n") == 2


def test_masks_have_the_size_of_their_images(run, tmp_path, picture, capsys):
    folder = run("kvasir", ("base", "tpl"))
    image = picture(tmp_path / "polyp.jpg", mode="RGB", shape=(50, 70))
    tpl(predict, folder, image, "--model", "tpl", "--out", tmp_path / "masks")
    with Image.open(tmp_path / "masks/polyp_mask.png") as mask:
        assert mask.size == (50, 70)
        assert set(np.unique(np.asarray(mask))) <= {0, 255}
    with pytest.raises(StudyError, match="it is there already"):
        tpl(predict, folder, image, "--model", "tpl", "--out", tmp_path / "masks")


@pytest.mark.parametrize(
    ("name", "content", "text"),
    [
        ("a.pt2", b"PK nothing", "Could not read .* as an exported network"),
        ("a.onnx", b"nothing", "Could not read .* as an exported network"),
        ("none.pt2", None, "there is no such file"),
    ],
)
def test_foreign_files_are_told(tmp_path, pictures, name, content, text):
    if content is not None:
        (tmp_path / name).write_bytes(content)
    with pytest.raises(StudyError, match=text) as error:
        tpl(predict, tmp_path / name, pictures[0])
    assert "\n" not in str(error.value)


# Evaluating


def test_held_out_images_give_the_tables_and_the_page_of_a_run(run, tmp_path, capsys):
    folder = run(losses=(0.7, 0.6))
    held = oct_phantoms.make(24, seed=5, size=32)
    file = tmp_path / "held.npz"
    names = np.array(held.class_names)
    np.savez(file, images=held.images, labels=held.labels, class_names=names)
    tpl(evaluate, folder, "--data", file)
    where = folder / "evaluated-held"
    assert (where / "report.html").exists()
    page, table = ((where / n).read_text(encoding="utf-8") for n in ("report.html", "table.md"))
    assert "held-out images of held.npz" in table
    assert "## Held-out accuracy" in table
    # Nothing says that these are validation images, or that there are epochs to look at.
    seen = re.sub(r"<(script|style)\b.*?</\1>", " ", page, flags=re.S)
    for text in (capsys.readouterr().out, table, seen):
        assert "held-out" in text
        for word in ("validation loss", "validation accuracy", "last epoch", "best epoch"):
            assert word not in text.lower()
    for part in ("What the paper claims", "Curves", "by epoch", "not recorded"):
        assert part not in seen
    assert not (where / "figures").exists()
    for model in ("base", "tpl1"):  # confusion matrices: of every image by each trial's network
        title = STUDIES["oct"].models[model]
        assert f"<caption>{title} (2 trials)</caption>" in seen
    curves = read(where)
    x = torch.from_numpy(held.images).float()[:, None].expand(-1, 3, -1, -1) / 255
    for model in ("base", "tpl1"):
        for trial in (1, 2):
            network = tensorprojection.studies.load(folder, model, trial)
            right = (network(x).argmax(dim=1).numpy() == held.labels).mean()
            assert curves.values["accuracy", model][trial - 1, 0] == pytest.approx(right)
    with pytest.raises(StudyError, match="is there already"):
        tpl(evaluate, folder, "--data", file)


def test_classes_in_another_order_are_refused(run, tmp_path):
    folder = run(losses=(0.5,))
    held = oct_phantoms.make(24, seed=5, size=32)
    names = np.array(held.class_names[::-1])
    np.savez(tmp_path / "h.npz", images=held.images, labels=held.labels, class_names=names)
    with pytest.raises(StudyError, match="Expected the classes NORMAL, CNV, DME, DRUSEN in this"):
        tpl(evaluate, folder, "--data", tmp_path / "h.npz")


def test_a_whole_run_keeps_its_networks_and_its_page_names_them(tmp_path, monkeypatch):
    monkeypatch.setenv("TENSORPROJECTION_CACHE", str(tmp_path / "cache"))
    config = smoke("oct", models=("mpca",), trials=1, epochs=1)
    carry_out_here(config, tmp_path / "run")
    from tensorprojection.studies.report.page import write

    page = write([tmp_path / "run"], tmp_path).read_text()
    assert "trials/001/mpca.safetensors" in page
    assert "NORMAL <small>(16)</small>" in page
    network = tensorprojection.studies.load(tmp_path / "run", model="mpca")
    assert isinstance(network.projection4, FrozenProjection)
    with safe_open(tmp_path / "run/trials/001/mpca.safetensors", "pt") as opened:
        assert json.loads(opened.metadata()["config"]) == config.as_settings()
