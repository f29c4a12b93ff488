"""Export, predict and evaluate by the commands, for the studies that are more than a network on
pixels: chest, whose networks see a frozen network's features, and kvasir, whose output is masks.

The networks are new ones, which have something to say as well as trained ones; what they should say
comes from the data that training sees, features out of the cache for one.
"""

import numpy as np
import pytest
import torch
from cyclopts import App
from PIL import Image
from small_runs import smoke

import tensorprojection.studies
from tensorprojection.cli.trained import evaluate, export, predict
from tensorprojection.studies import trained
from tensorprojection.studies.data.cache import open_stored
from tensorprojection.studies.registry import STUDIES
from tensorprojection.studies.report.run import read_run
from tensorprojection.studies.results import JobFiles
from tensorprojection.studies.training.job import Job
from tensorprojection.studies.training.train import Training, network_file

MODELS = ("base", "tpl")


def tpl(command, *arguments):
    app = App()
    app.command(command)
    app([command.__name__, *map(str, arguments)], exit_on_error=False, result_action="return_value")


class Kept:
    """A run's folder with kept networks of two trials, its data, and images of its validation."""

    def __init__(self, study, where):
        known = STUDIES[study]
        self.config = smoke(study, models=MODELS, trials=2)
        self.folder = where / "run"
        inputs = known.prepare(self.config, 1, lambda *told: None)
        data = known.open(self.config, inputs)
        _, validation, _ = data.split(0)
        self.rows = validation[:5]
        self.x, self.y = data.batch(self.rows)  # as training sees them
        self.images = np.asarray(open_stored(inputs.folders["images"]).images[self.rows])
        for trial in range(2):
            for model in MODELS:
                torch.manual_seed(trial)
                network = known.network(self.config, model, self.x)
                file = JobFiles.of(self.folder, trial, model).network
                file.parent.mkdir(parents=True, exist_ok=True)
                row = {"epoch": 1, "train_loss": 1.0, "loss": 1.0 - trial / 2, "code": "1"}
                job, names = Job(trial, model), known.images.class_names
                parts = (job, None, self.config, None, None, network, None)
                now = Training(*parts, class_names=names)
                file.write_bytes(network_file(now, row, "best"))
        (self.folder / "config.toml").write_bytes(self.config.as_toml())
        self.pictures = where / "pictures"
        self.pictures.mkdir()
        for k, image in enumerate(self.images):
            Image.fromarray(image).save(self.pictures / f"{k}.png")

    def says(self, model, trial="best"):
        with torch.no_grad():
            return tensorprojection.studies.load(self.folder, model, trial)(self.x)


@pytest.fixture(scope="module")
def kept(tmp_path_factory):
    """``kept(study)``, made once; features of images are made once, too."""
    made = {}
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TENSORPROJECTION_CACHE", str(tmp_path_factory.mktemp("cache")))

        def of(study):
            if study not in made:
                made[study] = Kept(study, tmp_path_factory.mktemp(study))
            return made[study]

        yield of


def probabilities(path):
    return np.array([line.split(",")[2:] for line in path.read_text().splitlines()[1:]], float)


def test_a_chest_network_takes_its_frozen_network_along(kept, tmp_path, capsys):
    chest, file = kept("chest"), tmp_path / "chest.onnx"
    tpl(export, chest.folder, "--model", "tpl", "--to", file)
    network, known = trained.read_onnx(file)
    assert (known.study, known.mode, known.size, known.trial) == ("chest", "L", 64, 2)
    assert known.settings == {"backbone": "efficientnet-lite0", "dropout": 0.5}
    assert known.class_names == ("Normal", "Lung Opacity", "COVID", "Viral Pneumonia")
    assert "(N, 1, 64, 64): gray" in known.input
    expected = chest.says("tpl")
    gray = torch.from_numpy(chest.images).float()[:, None] / 255  # pixels, and no features
    assert torch.allclose(network(gray), expected, atol=1e-4)
    shares = torch.softmax(expected, dim=1).numpy()
    for k, source in enumerate(((file,), (chest.folder, "--model", "tpl"))):
        csv = tmp_path / f"{k}.csv"
        tpl(predict, source[0], chest.pictures, *source[1:], "--csv", csv)
        assert probabilities(csv) == pytest.approx(shares, abs=1e-4)


def test_kvasir_masks_are_those_of_the_network_and_of_its_export(kept, tmp_path, capsys):
    kvasir, file = kept("kvasir"), tmp_path / "kvasir.onnx"
    tpl(export, kvasir.folder, "--model", "tpl", "--trial", "1", "--to", file)
    known = trained.read_onnx(file)[1]
    assert (known.mode, known.masks, known.trial) == ("RGB", True, 1)
    assert known.output == "logits of the mask, (N, 1, H, W)"
    expected = (kvasir.says("tpl", 1)[:, 0] > 0).numpy()
    assert expected.any() and not expected.all()  # noqa: PT018
    for name, source in (
        ("a", (file,)),
        ("b", (kvasir.folder, "--model", "tpl", "--trial", "1")),
    ):
        tpl(predict, source[0], kvasir.pictures, *source[1:], "--out", tmp_path / name)
        for k, mask in enumerate(expected):
            with Image.open(tmp_path / name / f"{k}_mask.png") as found:
                assert np.array_equal(np.asarray(found) > 127, mask)


def held_out_file(study, path):
    """Images that no trial has seen, and the file of them."""
    made = STUDIES[study].images.phantoms(12, seed=77, size=smoke(study).size)
    if study == "kvasir":
        np.savez(path, images=made.images, masks=made.masks)
    else:
        names = np.array(made.class_names)
        np.savez(path, images=made.images, labels=made.labels, class_names=names)
    return made


def test_chest_networks_are_measured_on_held_out_images(kept, tmp_path, capsys):
    chest, out = kept("chest"), tmp_path / "out"
    made = held_out_file("chest", tmp_path / "new.npz")
    tpl(evaluate, chest.folder, "--data", tmp_path / "new.npz", "--out", out)
    curves = read_run(out)
    front = STUDIES["chest"].preprocess(chest.config).eval()
    with torch.no_grad():
        x = front(torch.from_numpy(made.images).float()[:, None] / 255)
        for model in MODELS:
            for trial in (1, 2):
                network = tensorprojection.studies.load(chest.folder, model, trial)
                right = (network(x).argmax(dim=1).numpy() == made.labels).mean()
                found = curves.values["accuracy", model][trial - 1, 0]
                assert found == pytest.approx(right)


def test_kvasir_networks_are_measured_on_held_out_images(kept, tmp_path, capsys):
    kvasir, out = kept("kvasir"), tmp_path / "out"
    made = held_out_file("kvasir", tmp_path / "new.npz")
    tpl(evaluate, kvasir.folder, "--data", tmp_path / "new.npz", "--out", out)
    curves = read_run(out)
    x = torch.from_numpy(made.images).permute(0, 3, 1, 2).float() / 255
    for model in MODELS:
        for trial in (1, 2):
            network = tensorprojection.studies.load(kvasir.folder, model, trial)
            with torch.no_grad():
                found = (network(x)[:, 0] > 0).numpy()
            there = np.asarray(made.masks) > 0
            iou = (found & there).sum() / (found | there).sum()
            assert curves.values["iou", model][trial - 1, 0] == pytest.approx(iou)
    page = (out / "report.html").read_text(encoding="utf-8")
    assert page.count("best: Dice") == page.count("worst: Dice") == len(MODELS)
    assert "held-out IoU" in capsys.readouterr().out
