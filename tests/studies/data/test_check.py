import io
import json
import shutil

import numpy as np
import pytest
from PIL import Image
from rich.console import Console

from tensorprojection.studies import cli_data
from tensorprojection.studies.data.check import check, render
from tensorprojection.studies.errors import StudyError


def text(report):
    console = Console(width=200, file=io.StringIO())
    console.print(render(report))
    return console.file.getvalue()


@pytest.fixture
def clean_oct(tmp_path, picture):
    """Like oct_folder, but no patient is on both sides."""
    root = tmp_path / "clean"
    for k, part in enumerate(("train", "test")):
        for c, name in enumerate(("CNV", "DME", "DRUSEN", "NORMAL")):
            for i in range(3 - k):
                file = root / part / name / f"{name}-{100 * k + i}-1.jpeg"
                picture(file, seed=100 * k + 10 * c + i, shape=(40 + 8 * k, 30))
    return root


def test_a_clean_folder(clean_oct):
    report = check(clean_oct)
    assert report.ok
    assert (report.study, report.images, report.patients) == ("oct", 20, 5)
    assert report.classes["CNV"] == {"train": 3, "test": 2}
    assert report.sizes == {"40 × 30": 12, "48 × 30": 8}
    shown = text(report)
    assert "oct, 20 images, 5 patients" in shown
    assert "sizes: 40 × 30 (12), 48 × 30 (8)" in shown
    assert "No problem found." in shown


def test_patients_on_both_sides(clean_oct, picture):
    picture(clean_oct / "test/CNV/CNV-2-7.jpeg", seed=77)
    report = check(clean_oct)
    assert report.patients_on_both_sides == (2,)
    assert not report.ok
    assert "Problem: 1 patients both in train and outside of it: 2" in text(report)


def test_patients_in_both_validation_and_test_are_on_one_side(clean_oct, picture):
    picture(clean_oct / "val/CNV/CNV-100-7.jpeg", seed=77)
    assert check(clean_oct).ok


def test_duplicates(clean_oct):
    source = clean_oct / "train/CNV/CNV-0-1.jpeg"
    shutil.copy(source, clean_oct / "train/CNV/CNV-0-9.jpeg")
    report = check(clean_oct)
    assert [d.names for d in report.duplicates] == [
        ("train/CNV/CNV-0-1.jpeg", "train/CNV/CNV-0-9.jpeg")
    ]
    assert report.ok  # on one side, with one label: worth a note only
    assert "1 images stored more than once: train/CNV/CNV-0-1.jpeg = train" in text(report)

    shutil.copy(source, clean_oct / "test/CNV/CNV-101-9.jpeg")
    report = check(clean_oct)
    assert report.duplicates[0].parts == ("train", "test")
    assert [p.partition(":")[0] for p in report.problems] == ["1 images in more than one part"]

    (clean_oct / "test/CNV/CNV-101-9.jpeg").unlink()
    shutil.copy(source, clean_oct / "train/DME/DME-0-9.jpeg")
    report = check(clean_oct)
    assert report.duplicates[0].classes == ("CNV", "DME")
    assert [p.partition(":")[0] for p in report.problems] == ["1 images under more than one label"]


def test_unreadable_and_missing(clean_oct):
    (clean_oct / "train/CNV/CNV-0-1.jpeg").write_bytes(b"")
    (clean_oct / "train/CNV/CNV-1-1.jpeg").write_bytes(b"")  # empty files are no duplicates
    for path in clean_oct.glob("*/DME"):
        shutil.rmtree(path)
    report = check(clean_oct)
    assert report.unreadable == (
        "train/CNV/CNV-0-1.jpeg is empty",
        "train/CNV/CNV-1-1.jpeg is empty",
    )
    assert report.duplicates == ()
    assert report.missing_classes == ("DME",)
    assert report.classes["DME"] == {}
    assert not report.ok


def test_kvasir(kvasir_folder, picture):
    assert check(kvasir_folder).ok
    masks = kvasir_folder / "Kvasir-SEG/masks"
    (masks / "c0.jpg").rename(masks / "other.jpg")
    picture(masks / "c1.jpg", shape=(10, 10))
    Image.fromarray(np.zeros((30, 40), np.uint8)).save(masks / "c2.jpg")
    (masks / "c3.jpg").write_bytes(b"nonsense")
    report = check(kvasir_folder)
    assert report.masks_missing == ("Kvasir-SEG/images/c0.jpg",)
    assert report.masks_of_other_size == ("Kvasir-SEG/images/c1.jpg",)
    assert report.masks_empty == ("Kvasir-SEG/images/c2.jpg",)
    assert report.unreadable == ("Kvasir-SEG/masks/c3.jpg is not an image",)
    assert report.masks_without_image == ("Kvasir-SEG/masks/other.jpg",)
    assert len(report.problems) == 3
    assert len(report.notes) == 2


def test_a_zip(chest_folder, tmp_path):
    archive = shutil.make_archive(str(tmp_path / "archive"), "zip", chest_folder)
    report = check(archive, cache=tmp_path / "cache")
    assert (report.study, report.path) == ("chest", archive)
    assert report.classes["Lung Opacity"] == {"all": 4}


def test_npz(tmp_path):
    images = np.random.default_rng(0).integers(0, 256, (8, 10, 12), dtype=np.uint8)
    images[7] = images[0]
    np.savez(
        tmp_path / "a.npz",
        images=images,
        labels=np.arange(8) % 4,
        class_names=np.array(["NORMAL", "CNV", "DME", "DRUSEN"]),
        patient_ids=np.array([1, 1, 2, 2, 3, 3, 1, 4]),
        parts=np.array(["train"] * 4 + ["test"] * 4),
    )
    report = check(tmp_path / "a.npz")
    assert report.sizes == {"12 × 10": 8}
    assert report.duplicates[0].names == ("row 0", "row 7")
    assert report.patients_on_both_sides == (1,)
    assert len(report.problems) == 3  # across the split, under two labels, and the patient


def test_json(clean_oct, capsys):
    report = check(clean_oct, "oct")
    assert json.loads(json.dumps(report.as_dict()))["classes"]["CNV"] == {"train": 3, "test": 2}
    cli_data.app(["check", str(clean_oct), "--json"], result_action="return_value")
    printed = json.loads(capsys.readouterr().out)
    assert printed["ok"] is True
    assert printed["study"] == "oct"


def test_exit_status(clean_oct, capsys):
    (clean_oct / "train/CNV/CNV-0-1.jpeg").write_bytes(b"")
    with pytest.raises(SystemExit) as caught:
        cli_data.app(["check", str(clean_oct), "--study", "oct"], result_action="return_value")
    assert caught.value.code == 1
    assert "CNV-0-1.jpeg is" in capsys.readouterr().out


def test_wrong_paths(tmp_path):
    with pytest.raises(StudyError, match="nowhere: not there"):
        check(tmp_path / "nowhere")
    with pytest.raises(StudyError, match=r"Expected a folder, an \.npz"):
        check(__file__)
    with pytest.raises(StudyError, match="one of the layouts"):
        check(tmp_path)
    with pytest.raises(StudyError, match="a study of"):
        check(tmp_path, "mnist")


@pytest.mark.realdata
@pytest.mark.parametrize(
    ("name", "study", "images"),
    [
        ("oct_96.npz", "oct", 2748),
        ("chest_160.npz", "chest", 1600),
        ("polyp_192.npz", "kvasir", 800),
    ],
)
def test_real_files(real_data, name, study, images):
    report = check(real_data(name))
    assert (report.study, report.images) == (study, images)
    assert report.ok
    assert report.masks_empty == ()
