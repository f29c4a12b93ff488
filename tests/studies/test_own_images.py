"""``tpl run images``: any folder of images, without a line of Python."""

import shutil
from pathlib import Path

import numpy as np
import polars as pl
import pytest
from PIL import Image
from small_runs import in_this_process

from tensorprojection.studies.config import resolve
from tensorprojection.studies.data.images import ImageKind
from tensorprojection.studies.errors import StudyError
from tensorprojection.studies.executors import local
from tensorprojection.studies.images import from_reference, images_study, kind_of
from tensorprojection.studies.registry import find_study, read_config

pytestmark = pytest.mark.filterwarnings("ignore:Cyclopts application invoked without tokens")


@pytest.fixture
def pets(tmp_path, picture):
    """Three classes in colour, ten images of each; one class has an odd name."""
    for c, name in enumerate(("cat", "dog & co.py", "Eel")):
        for i in range(10):
            picture(tmp_path / "pets" / name / f"P{i % 5}_{i}.png", mode="RGB", seed=10 * c + i)
    return tmp_path / "pets"


@pytest.fixture
def outlines(tmp_path, picture):
    for i in range(10):
        picture(tmp_path / "scenes" / f"s{i}.png", seed=i)
        mask = np.zeros((30, 40), np.uint8)
        mask[5 : 10 + i, 5:20] = 255
        (tmp_path / "drawn").mkdir(exist_ok=True)
        Image.fromarray(mask).save(tmp_path / "drawn" / f"s{i}.png")
    return tmp_path / "scenes", tmp_path / "drawn"


@pytest.fixture
def tpl(tpl, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(local, "run_jobs", in_this_process)  # no process that imports torch anew
    return tpl


SMALL = ("--preset", "smoke", "--trials", "1", "--epochs", "1", "--jobs", "1")


def test_classes_of_a_folder_from_the_run_to_a_prediction(tpl, pets):
    run = ("run", "images", "--data", "pets", *SMALL, "--out", "out")
    code, _, err = tpl(*run)
    assert (code, err) == (0, "")
    rows = pl.read_parquet("out/results.parquet")
    assert sorted(rows["model"]) == ["avg", "base", "tpl", "tpl-small"]
    study = find_study(read_config(Path("out/config.toml")).study)
    assert study.images.class_names == ("Eel", "cat", "dog & co.py")
    assert study.images.mode == "RGB"
    code, out, _ = tpl(*run)
    assert code == 0
    assert "nothing is left to train" in out
    code, out, _ = tpl("predict", "out", pets / "cat" / "P0_0.png", "--model", "tpl")
    assert code == 0
    assert any(name in out for name in study.images.class_names)
    code, out, _ = tpl("run", "images", "--config", "out/config.toml", "--out", "out")
    assert code == 0
    assert "nothing is left to train" in out
    shutil.copytree(pets / "cat", pets / "fox")
    code, _, err = tpl(*run)
    assert (code, err.count("\n")) == (2, 1)
    assert "out was started with study = " in err


def test_a_check_takes_the_classes_from_the_folders(tpl, pets):
    flags = ("--study", "images", "--patient-pattern", r"P(\d)_")
    code, out, _ = tpl("data", "check", "pets", *flags)
    assert code == 0
    assert "30 images, 5 patients" in " ".join(out.split())
    (pets / "cat" / "P0_0.png").write_bytes(b"")
    assert tpl("data", "check", "pets", *flags)[0] == 1


def test_classes_by_a_frozen_networks_features(tpl, pets):
    lite = ("--backbone", "efficientnet-lite0", "--size", "64", "--models", "tpl-small")
    code, _, err = tpl("run", "images", "--data", "pets", *SMALL, *lite, "--out", "out")
    assert (code, err) == (0, "")
    assert pl.read_parquet("out/results.parquet")["model"].to_list() == ["tpl-small"]
    code, out, _ = tpl("predict", "out", pets / "cat" / "P0_0.png", "--model", "tpl-small")
    assert code == 0
    assert "By tpl-small of trial 1" in out


def test_masks_of_a_folder(tpl, outlines):
    run = ("run", "images", "--data", "scenes", "--masks", "drawn", *SMALL, "--models", "base,tpl")
    code, _, err = tpl(*run, "--out", "out")
    assert (code, err) == (0, "")
    rows = pl.read_parquet("out/results.parquet")
    assert sorted(rows["model"]) == ["base", "tpl"]
    assert {"dice", "iou"} <= set(rows.columns)
    code, _, err = tpl(*run, "--models", "avg")
    assert code == 2
    assert err.count("\n") == 1


def test_images_and_masks_beside_each_other_are_no_classes(outlines, tmp_path):
    for folder, name in zip(outlines, ("images", "masks"), strict=True):
        shutil.move(folder, tmp_path / "both" / name)
    assert kind_of(tmp_path / "both").masks


@pytest.mark.parametrize("parts", [("train", "test"), ("Training", "val", "test")])
def test_parts_above_the_classes(tmp_path, picture, parts):
    for part in parts:
        for name in ("a", "b"):
            for i in range(3):
                picture(tmp_path / "up" / "data" / part / name / f"{i}.png", seed=i)
    kind = kind_of(tmp_path / "up")
    assert (kind.class_names, kind.mode) == (("a", "b"), "L")
    study = images_study(kind)
    flags = {"data": str(tmp_path / "up"), "split": "as-shipped"}
    config = resolve(study, "smoke", None, flags)
    rows = study.open(config, study.prepare(config, 1, lambda *_: None)).split(0)
    training, validation = rows.train, rows.validation
    assert (len(training), len(validation)) == (6, 6 * (len(parts) - 1))


def test_folders_that_would_be_one_class_are_refused(tmp_path, picture):
    for name in ("1", "-1", "2"):
        picture(tmp_path / "x" / name / "a.png")
    with pytest.raises(StudyError, match="got -1 and 1"):
        kind_of(tmp_path / "x")
    for part, name in (("train", "cat"), ("val", "Cat"), ("train", "dog"), ("val", "dog")):
        picture(tmp_path / "y" / part / name / "a.png")
    assert len(kind_of(tmp_path / "y").class_names) == 2


def test_gray_in_files_of_colour_is_gray(tmp_path, picture):
    for name in ("a", "b"):
        picture(tmp_path / "in" / name / "x.png")
        with Image.open(tmp_path / "in" / name / "x.png") as image:
            image.convert("RGB").save(tmp_path / "in" / name / "x.png")
    assert kind_of(tmp_path / "in").mode == "L"


def test_an_npz(tmp_path):
    names = np.array(["x", "y"])
    for shape, mode in (((8, 32, 32), "L"), ((8, 32, 32, 3), "RGB")):
        images = np.zeros(shape, np.uint8)
        np.savez(tmp_path / "a.npz", images=images, labels=np.arange(8) % 2, class_names=names)
        kind = kind_of(tmp_path / "a.npz")
        assert (kind.class_names, kind.mode, kind.masks) == (("x", "y"), mode, False)


@pytest.mark.parametrize("names", [("a", "b"), ("x.py", "os:system"), ("&class=", "100 %", "ä/ö?")])
def test_a_reference_makes_the_same_study_again(names):
    for mode in ("L", "RGB"):
        study = images_study(ImageKind("images", names, mode))
        again = find_study(study.reference)
        assert study.reference == again.reference
        assert (again.images, again.models) == (study.images, study.models)
    assert from_reference("oct") is None


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ((), "Expected a folder of images or an .npz file as --data, got none"),
        (("--data", "nowhere"), "nowhere: No such file"),
        (("--data", "pets/cat"), "a folder for each of two or more classes"),
        (("--data", "pets", "--size", "40"), "divisible by 16, got 40"),
        (("--data", "pets", "--masks", "gone"), "gone: No such file"),
        (("--data", "pets", "--channels", "4"), "channels"),
        (("--data", "pets", "--backbone", "resnet"), "a backbone of densenet121, efficientnet"),
        (("--data", "unnamed.npz"), "an array class_names of two or more classes, or masks"),
        (("--data", "unnamed.npz", "--masks", "pets"), "an array masks"),
    ],
)
def test_mistakes_end_in_one_line(tpl, pets, arguments, says):
    np.savez("unnamed.npz", images=np.zeros((4, 32, 32), np.uint8), labels=np.arange(4) % 2)
    code, _, err = tpl("run", "images", *arguments)
    assert (code, err.count("\n")) == (2, 1)
    assert says in err
