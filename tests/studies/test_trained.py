"""Saved networks: which are saved, and how they are used."""

import json
import os
import pickle
import re
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import numpy as np
import pytest
import torch
from cyclopts import App
from PIL import Image
from safetensors import safe_open
from safetensors.torch import save_file
from sklearn.metrics import confusion_matrix
from small_runs import carry_out_here, smoke

import tensorprojection.studies
from tensorprojection import FrozenProjection
from tensorprojection.cli.trained import evaluate, export, predict
from tensorprojection.studies import trained
from tensorprojection.studies.config import resolve
from tensorprojection.studies.data.phantoms import oct_phantoms
from tensorprojection.studies.errors import StudyError
from tensorprojection.studies.network_file import encode_network, read_network
from tensorprojection.studies.registry import STUDIES, import_study
from tensorprojection.studies.report.run import read_run
from tensorprojection.studies.results import JobFiles
from tensorprojection.studies.training.job import Job
from tensorprojection.studies.training.observer import read_observed
from tensorprojection.studies.training.seeds import trial_split
from tensorprojection.studies.training.train import Training, network_file


def row(epoch, loss):
    return {"epoch": epoch, "train_loss": 1.0, "loss": loss, "accuracy": 0.5, "f1": 0.5} | {
        "seconds": 1.0,
        "code": "1",
    }


def keep_network(folder, config, trial, model, network, epoch_row):
    """Save the network, as a training does."""
    job, names = Job(trial, model), STUDIES[config.study].images.class_names
    file = JobFiles.of(folder, trial, model).network
    file.parent.mkdir(parents=True, exist_ok=True)
    now = Training(job, None, config, None, None, network, None, class_names=names)
    file.write_bytes(network_file(now, epoch_row, "best"))


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
                made = new_network(config, model, seed=trial)
                keep_network(folder, config, trial, model, made, row(1, loss))
        (folder / "config.toml").write_bytes(config.as_toml())
        return folder

    return make


def tpl(command, *arguments):
    app = App()
    app.command(command)
    app([command.__name__, *map(str, arguments)], exit_on_error=False, result_action="return_value")


# Keeping


@pytest.mark.parametrize("keep", ["best", "last", "none"])
def test_which_network_is_kept(tmp_path, keep):
    """The saved network gives the metrics of its epoch's row."""
    config = smoke("oct", models=("tpl1",), trials=1, epochs=4)
    carry_out_here(config, tmp_path, keep=keep)
    files = JobFiles.of(tmp_path, 0, "tpl1")
    rows = files.rows()
    if keep == "none":
        assert not files.network.exists()
        return
    kept = trained.load_network(tmp_path, "tpl1")
    expected = min(rows, key=lambda row: row["loss"]) if keep == "best" else rows[-1]
    assert kept.about.epoch == expected["epoch"]
    assert kept.about.metrics["loss"] == expected["loss"]
    study = STUDIES["oct"]
    data = study.open(config, study.prepare(config, 1, lambda *_: None))
    x, y = data.batch(data.split(0)[1])
    with torch.no_grad():
        loss = torch.nn.functional.cross_entropy(kept.network(x), y).item()
    assert loss == pytest.approx(expected["loss"], rel=1e-5)
    assert not kept.network.training


def test_what_is_observed_of_a_projection_is_what_it_does(tmp_path):
    config, study = smoke("oct", models=("tpl1",), trials=1, epochs=1), STUDIES["oct"]
    carry_out_here(config, tmp_path / "run", keep="last")
    data = study.open(config, study.prepare(config, 1, lambda *_: None))
    seen = read_observed(JobFiles.of(tmp_path / "run", 0, "tpl1").observed)
    network = trained.load_network(tmp_path / "run", "tpl1").network
    _, validation, _ = data.split(0)
    x, y = data.batch(validation)
    with torch.no_grad():
        U, predicted = network.projection4.projections()[1], network(x).argmax(dim=1)
    assert seen["U/projection4/2"] == pytest.approx(U.numpy(), abs=1e-3)
    assert seen["start/projection4/2"].shape == U.shape
    np.testing.assert_array_equal(seen["confusion_matrix"], confusion_matrix(y, predicted))
    assert seen["class_names"].tolist() == list(study.images.class_names)


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


def test_what_cannot_be_loaded_is_an_error_of_one_line(run, tmp_path):
    folder = run(losses=(0.5,))
    for arguments, text in (
        ((tmp_path / "none", "tpl1"), "which is not there"),
        ((tmp_path, "tpl1"), "has no trials in it"),
        ((folder, "hope"), "a saved network of hope in .*, got base of trial 1, tpl1 of trial 1"),
        ((folder, "tpl1", 7), "a saved network of tpl1 of trial 7 in .*, got base of trial 1"),
    ):
        with pytest.raises(StudyError, match=text) as error:
            tensorprojection.studies.load(*arguments)
        assert "\n" not in str(error.value)


def test_files_of_another_version_are_named(run):
    folder = run(losses=(0.5,))
    file = JobFiles.of(folder, 0, "tpl1").network
    tensors, header = content_of(file)
    save_file(tensors, file, header | {"about": "{}"})
    with pytest.raises(StudyError, match="is corrupted, or another program has written it"):
        trained.load_network(folder, "tpl1")
    about, values = read_network(JobFiles.of(folder, 0, "base").network)
    file.write_bytes(encode_network(about.model_copy(update={"model": "tpl1"}), values))
    with pytest.raises(StudyError, match="is not of this version's tpl1") as error:
        trained.load_network(folder, "tpl1")
    assert "\n" not in str(error.value)


def test_a_changed_byte_is_noticed_wherever_it_is(run):
    """One byte can turn a class into another."""
    folder = run(models=("base",), losses=(0.5,))
    file = JobFiles.of(folder, 0, "base").network
    whole = file.read_bytes()
    about, values = read_network(file)
    rng = np.random.default_rng(0)
    places = {*range(0, 2000, 40), *rng.integers(0, len(whole), 60).tolist(), len(whole) - 1}
    for place in places:
        changed = bytearray(whole)
        changed[place] ^= 1 << int(rng.integers(8))
        file.write_bytes(changed)
        try:
            found, again = read_network(file)
        except StudyError:
            continue
        assert found == about  # padding of the header
        assert all(torch.equal(value, again[name]) for name, value in values.items())
    file.write_bytes(whole[:-1])
    with pytest.raises(StudyError, match="is corrupted"):
        trained.load_network(folder, "base")


def test_a_corrupted_network_is_trained_again_as_the_error_says(tmp_path, monkeypatch):
    monkeypatch.setenv("TENSORPROJECTION_CACHE", str(tmp_path / "cache"))
    config, folder = smoke("oct", models=("base",), trials=1, epochs=2), tmp_path / "run"
    carry_out_here(config, folder)
    file = JobFiles.of(folder, 0, "base").network
    before = read_network(file)
    file.write_bytes(file.read_bytes()[:-4] + b"\0\0\0\0")
    with pytest.raises(StudyError) as error:
        trained.load_network(folder, "base")
    assert f"{file} is corrupted" in str(error.value)
    assert "Remove it, and run the same command as before" in str(error.value)
    file.unlink()
    # Another epoch never takes its place.
    with pytest.raises(StudyError, match=r"a saved network of base in .*, got none"):
        trained.load_network(folder, "base")
    carry_out_here(config, folder)
    about, values = read_network(file)
    assert about == before[0]
    assert all(torch.equal(value, values[name]) for name, value in before[1].items())


# Own studies


@pytest.fixture
def own_run(tmp_path, monkeypatch):
    """A run of an own study, and its file."""
    monkeypatch.setenv("TENSORPROJECTION_CACHE", str(tmp_path / "cache"))
    file = tmp_path / "mine.py"
    shutil.copy(Path(__file__).with_name("tiny_study.py"), file)
    carry_out_here(resolve(import_study(str(file))), tmp_path / "run")
    return tmp_path / "run", file


def test_an_own_study_is_used_if_it_is_named_and_is_as_it_was(own_run, tmp_path, picture):
    folder, file = own_run
    image = picture(tmp_path / "a.png", mode="L", shape=(16, 16))
    moved = tmp_path / "moved.py"
    shutil.copy(file, moved)
    arguments = [folder, image, "--model", "base", "--csv"]
    tpl(predict, *arguments, tmp_path / "a.csv", "--study", moved)
    expected = tensorprojection.studies.load(folder, "base", study=import_study(str(moved)))
    x = torch.from_numpy(np.array(Image.open(image))).float()[None, None] / 255
    share = probabilities(tmp_path / "a.csv")
    assert share == pytest.approx(torch.softmax(expected(x), dim=1).detach().numpy(), abs=1e-5)
    tpl(export, folder, "--model", "base", "--to", tmp_path / "a.onnx", "--study", moved)
    study, new = import_study(str(moved)), tmp_path / "new.npz"
    made = study.images.phantoms(16, seed=9, size=16)
    names = np.array(made.class_names)
    np.savez(new, images=made.images, labels=made.labels, class_names=names)
    changed = tmp_path / "changed.py"
    changed.write_text(file.read_text().replace('"wide": 3', '"wide": 5'))
    for command in (
        [predict, *arguments, tmp_path / "b.csv"],
        [export, folder, "--model", "base", "--to", tmp_path / "b.onnx"],
        [evaluate, folder, "--data", new],
    ):
        with pytest.raises(StudyError, match=r"was trained with other code than .*changed.py has"):
            tpl(*command, "--study", changed)


def probabilities(path):
    return np.array([line.split(",")[2:] for line in path.read_text().splitlines()[1:]], float)


# Exporting and predicting


@pytest.fixture
def pictures(tmp_path):
    images = oct_phantoms(4, seed=9, size=32).images
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
    x = torch.from_numpy(images).float()[:, None].expand(-1, 3, -1, -1).contiguous() / 255
    expected = tensorprojection.studies.load(folder, model="tpl1")(x)
    gray = x[:, :1]  # pixels as they are; what the network makes of them is in the file
    if suffix == ".pt2":
        network = torch.export.load(file).module()
    else:
        network, known = trained.read_onnx(file)
        assert (known.size, known.mode, known.trial) == (32, "L", 2)
        assert known.class_names == ("NORMAL", "CNV", "DME", "DRUSEN")
    assert torch.allclose(network(gray), expected, atol=1e-5)
    assert torch.allclose(network(gray[:1]), expected[:1], atol=1e-5)  # any number of images
    shares = torch.softmax(expected, dim=1).detach().numpy()
    sources = [[folder, place, "--model", "tpl1"], *([[file, place]] if suffix == ".onnx" else [])]
    for k, arguments in enumerate(sources):
        csv = tmp_path / f"{k}.csv"
        tpl(predict, *arguments, "--csv", csv)
        lines = [line.split(",") for line in csv.read_text().splitlines()]
        assert lines[0] == ["file", "class", "NORMAL", "CNV", "DME", "DRUSEN"]
        assert [line[0] for line in lines[1:]] == [str(place / f"{k}.png") for k in range(4)]
        assert probabilities(csv) == pytest.approx(shares, abs=1e-4)
        assert "By tpl1 of trial 2, epoch 1." in capsys.readouterr().out
    with pytest.raises(StudyError, match="is there already"):
        tpl(export, folder, "--model", "tpl1", "--to", file)
    installed, package = Path(torch.__file__).parents[1], Path(trained.__file__).parents[2]
    assert has_no_paths(file, installed, package, tmp_path)
    if suffix == ".pt2":  # no decomposition, no projection, and the package is not needed
        nodes = [str(node.target) for node in torch.export.load(file).graph.nodes]
        assert not [name for name in nodes if "linalg" in name or "tensorprojection" in name]
        code = f"import sys, torch; torch.export.load({str(file)!r}); print(*sys.modules)"
        command = [sys.executable, "-c", code]
        done = subprocess.run(command, capture_output=True, text=True, check=True)
        assert "tensorprojection" not in done.stdout.split()


def has_no_paths(file, *paths):
    """Nothing in it tells where it was written."""
    content = file.read_bytes()
    if file.suffix == ".pt2":
        with zipfile.ZipFile(file) as members:
            content = b"".join(members.read(name) for name in members.namelist())
    return not any(str(path).encode() in content for path in paths)


class Payload:
    """Something that runs code when it is unpickled."""

    def __init__(self, place):
        self.place = place

    def __reduce__(self):
        return open, (str(self.place), "w")


def test_nothing_in_a_file_that_is_handed_over_is_unpickled(run, pictures, tmp_path):
    folder, ran, hostile = run(models=("base",)), tmp_path / "ran", tmp_path / "hostile"
    program = torch.export.export(torch.nn.Linear(2, 2), (torch.ones(1, 2),))
    torch.export.save(program, tmp_path / "m.pt2")
    with zipfile.ZipFile(tmp_path / "m.pt2") as was, zipfile.ZipFile(f"{hostile}.pt2", "w") as now:
        for name in was.namelist():
            pickled = name.endswith("sample_inputs/model.pt")
            now.writestr(name, pickle.dumps(Payload(ran)) if pickled else was.read(name))
    (tmp_path / "hostile.onnx").write_bytes(pickle.dumps(Payload(ran)))
    for suffix in (".pt2", ".onnx"):
        with pytest.raises(StudyError):
            tpl(predict, f"{hostile}{suffix}", pictures[0])
    file = JobFiles.of(folder, 1, "base").network
    file.write_bytes(pickle.dumps(Payload(ran)))
    with pytest.raises(StudyError, match="is corrupted"):
        tpl(predict, folder, pictures[0], "--model", "base", "--trial", 2)
    assert not ran.exists()
    pickle.loads(pickle.dumps(Payload(ran))).close()
    assert ran.exists()  # so it would have been seen


def test_an_output_that_is_not_a_number_gets_no_class(run, pictures, tmp_path, capsys):
    folder = run(models=("base",), losses=(0.5,))
    file = JobFiles.of(folder, 0, "base").network
    about, values = read_network(file)
    values["dense2.bias"][1] = float("nan")
    file.write_bytes(encode_network(about, values))
    with pytest.raises(SystemExit) as end:
        tpl(predict, folder, pictures[0], "--model", "base")
    assert end.value.code == 1
    printed = capsys.readouterr()
    assert printed.err.count("has no prediction: the network's output is not finite") == 4
    assert not any(name in printed.out for name in about.class_names)
    held = oct_phantoms(24, seed=5, size=32)
    names = np.array(held.class_names)
    np.savez(tmp_path / "h.npz", images=held.images, labels=held.labels, class_names=names)
    with pytest.raises(StudyError, match="The output of base of trial 1 is not finite"):
        tpl(evaluate, folder, "--data", tmp_path / "h.npz")


@pytest.mark.parametrize("model", ["mpca-batch", "hope"])
def test_networks_of_every_kind_are_exported(run, tmp_path, model):
    folder, file = run(models=(model,)), tmp_path / "model.onnx"
    tpl(export, folder, "--model", model, "--to", file)
    x = torch.rand(3, 1, 32, 32)
    expected = tensorprojection.studies.load(folder, model=model)(x.expand(-1, 3, -1, -1))
    assert torch.allclose(trained.read_onnx(file)[0](x), expected, atol=1e-5)


def test_an_export_that_differs_is_not_written(run, tmp_path, monkeypatch):
    folder, file = run(), tmp_path / "model.pt2"
    fold = trained.fold_projections

    def wrong(network, example):
        folded = fold(network, example)
        with torch.no_grad():
            folded.model.dense2.bias.add_(0.001)
        return folded

    monkeypatch.setattr(trained, "fold_projections", wrong)
    with pytest.raises(StudyError, match=r"differs from the original by 1\.0e-03"):
        tpl(export, folder, "--model", "tpl1", "--to", file)
    assert not list(tmp_path.glob("*.pt2"))
    assert not list(tmp_path.glob(".*.pt2"))


def test_files_that_are_no_images_are_named_and_the_others_predicted(run, pictures, capsys):
    folder, (place, _) = run(), pictures
    (place / "bad.png").write_bytes(b"no image")
    os.mkfifo(place / "pipe.png")  # which would wait for ever
    (place / "endless.png").symlink_to("/dev/zero")
    others = [place / f"{name}.png" for name in ("gone", "pipe", "endless")]
    with pytest.raises(SystemExit) as end:
        tpl(predict, folder, place, *others, "--model", "base")
    assert end.value.code == 1
    printed = capsys.readouterr()
    assert "bad.png is not an image." in printed.err
    assert "gone.png cannot be read (No such file or directory)." in printed.err
    assert "pipe.png cannot be read (not a regular file)." in printed.err
    assert "endless.png cannot be read (not a regular file)." in printed.err
    assert printed.err.count("\n") == 4


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
        ("a.pt2", b"PK nothing", "Expected an .onnx file or the folder of a run, got .*a.pt2"),
        ("a.onnx", b"nothing", "Expected a network of tpl export in .*a.onnx: "),
        ("none.onnx", None, "Could not read .*none.onnx: No such file"),
    ],
)
def test_foreign_files_are_reported(tmp_path, pictures, name, content, text):
    if content is not None:
        (tmp_path / name).write_bytes(content)
    with pytest.raises(StudyError, match=text) as error:
        tpl(predict, tmp_path / name, pictures[0])
    assert "\n" not in str(error.value)


# Evaluating


def test_held_out_images_give_the_tables_and_the_page_of_a_run(run, tmp_path, capsys):
    folder = run(losses=(0.7, 0.6))
    held = oct_phantoms(24, seed=5, size=32)
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
    for part in ("The paper's claims", "Curves", "by epoch", "not measured"):
        assert part not in seen
    assert not (where / "figures").exists()
    for model in ("base", "tpl1"):  # confusion matrices: of every image by each trial's network
        title = STUDIES["oct"].models[model]
        assert f"<caption>{title} (2 trials)</caption>" in seen
    curves = read_run(where)
    x = torch.from_numpy(held.images).float()[:, None].expand(-1, 3, -1, -1) / 255
    for model in ("base", "tpl1"):
        for trial in (1, 2):
            network = tensorprojection.studies.load(folder, model, trial)
            right = (network(x).argmax(dim=1).numpy() == held.labels).mean()
            assert curves.values["accuracy", model][trial - 1, 0] == pytest.approx(right)
    with pytest.raises(StudyError, match="is there already"):
        tpl(evaluate, folder, "--data", file)


def test_images_of_the_run_are_counted_and_not_called_held_out(run, tmp_path, capsys):
    folder = run(models=("base",), losses=(0.7, 0.6))
    config = smoke("oct")
    own = oct_phantoms(config.images, seed=config.seed, size=32)
    new = oct_phantoms(8, seed=5, size=32)
    images, labels = (np.concatenate([a[:20], b]) for a, b in _pairs(own, new))
    names = np.array(own.class_names)
    np.savez(tmp_path / "mixed.npz", images=images, labels=labels, class_names=names)
    tpl(evaluate, folder, "--data", tmp_path / "mixed.npz")
    where = folder / "evaluated-mixed"
    page, table = ((where / n).read_text(encoding="utf-8") for n in ("report.html", "table.md"))
    printed = " ".join(capsys.readouterr().out.split())
    assert "20 of 28 images of mixed.npz are among the run's own" in printed
    splits = [trial_split(config, own, trial)[0] for trial in (0, 1)]
    most = max(int((training < 20).sum()) for training in splits)
    assert f"A network was trained on up to {most} of them" in printed
    assert "not held-out results" in printed
    assert "images of mixed.npz, 20 of 28 from the run" in table
    for text in (table, page, printed.replace("not held-out results", "")):
        assert "held-out" not in text.lower()


def _pairs(own, new):
    return (own.images, new.images), (own.labels, new.labels)


def test_networks_that_are_not_there_are_named(run, tmp_path, capsys):
    folder = run(losses=(0.7, 0.6))
    JobFiles.of(folder, 1, "base").network.unlink()
    held = oct_phantoms(24, seed=5, size=32)
    names = np.array(held.class_names)
    np.savez(tmp_path / "h.npz", images=held.images, labels=held.labels, class_names=names)
    tpl(evaluate, folder, "--data", tmp_path / "h.npz")
    said = " ".join(capsys.readouterr().out.split())
    assert "Not evaluated, as no network is saved: base of trial 2." in said


def test_a_whole_run_saves_its_networks(tmp_path, monkeypatch):
    monkeypatch.setenv("TENSORPROJECTION_CACHE", str(tmp_path / "cache"))
    config = smoke("oct", models=("mpca",), trials=1, epochs=1)
    carry_out_here(config, tmp_path / "run")
    network = tensorprojection.studies.load(tmp_path / "run", model="mpca")
    assert isinstance(network.projection4, FrozenProjection)
    about, _ = read_network(tmp_path / "run/trials/001/mpca.safetensors")
    assert about.config == json.loads(json.dumps(config.as_settings()))
