import json
import os
import shutil

import numpy as np
import pytest
from by_name import check, open_images
from PIL import Image

from tensorprojection.cli import data as cli_data
from tensorprojection.studies.errors import StudyError


def text(report):
    return "\n".join(report.lines())


@pytest.fixture
def clean_oct(tmp_path, picture):
    """Like oct_folder, but no patient is both in train and outside of it."""
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
    assert "sizes: 40 × 30 (12), 48 × 30 (8)" in shown
    assert "No problem found." in shown


def test_patients_in_train_and_test(clean_oct, picture):
    picture(clean_oct / "test/CNV/CNV-2-7.jpeg", seed=77)
    report = check(clean_oct)
    assert not report.ok
    assert "Problem: 1 patients both in train and outside of it: 2" in text(report)


def test_patients_in_both_validation_and_test_are_no_leak(clean_oct, picture):
    picture(clean_oct / "val/CNV/CNV-100-7.jpeg", seed=77)
    assert check(clean_oct).ok


def test_duplicates(clean_oct):
    source = clean_oct / "train/CNV/CNV-0-1.jpeg"
    shutil.copy(source, clean_oct / "train/CNV/CNV-0-9.jpeg")
    report = check(clean_oct)
    assert report.ok  # in one part, with one label: worth a note only
    assert "1 images stored more than once: train/CNV/CNV-0-1.jpeg = train" in text(report)

    shutil.copy(source, clean_oct / "test/CNV/CNV-101-9.jpeg")
    report = check(clean_oct)
    assert list(report.problems) == ["images in more than one part"]

    (clean_oct / "test/CNV/CNV-101-9.jpeg").unlink()
    shutil.copy(source, clean_oct / "train/DME/DME-0-9.jpeg")
    report = check(clean_oct)
    assert list(report.problems) == ["images under more than one label"]


def test_unreadable_and_missing(clean_oct):
    (clean_oct / "train/CNV/CNV-0-1.jpeg").write_bytes(b"")
    (clean_oct / "train/CNV/CNV-1-1.jpeg").write_bytes(b"")  # empty files are no duplicates
    for path in clean_oct.glob("*/DME"):
        shutil.rmtree(path)
    report = check(clean_oct)
    assert report.problems == {
        "classes without an image": ["DME"],
        "unreadable files": ["train/CNV/CNV-0-1.jpeg is empty", "train/CNV/CNV-1-1.jpeg is empty"],
    }
    assert report.notes == {}
    assert report.classes["DME"] == {}


def test_kvasir(kvasir_folder, picture):
    assert check(kvasir_folder).ok
    masks = kvasir_folder / "Kvasir-SEG/masks"
    (masks / "c0.jpg").rename(masks / "other.jpg")
    Image.fromarray(np.full((10, 10), 255, np.uint8)).save(masks / "c1.jpg")
    Image.fromarray(np.zeros((30, 40), np.uint8)).save(masks / "c2.jpg")
    (masks / "c3.jpg").write_bytes(b"nonsense")
    report = check(kvasir_folder)
    assert report.problems == {
        "unreadable files": ["Kvasir-SEG/masks/c3.jpg is not an image"],
        "images without a mask": ["Kvasir-SEG/images/c0.jpg"],
        "masks of another size than their image": ["Kvasir-SEG/images/c1.jpg"],
    }
    assert report.notes == {
        "empty masks": ["Kvasir-SEG/images/c2.jpg"],
        "other things beside the images": ["1 files ignored (1 Kvasir-SEG/masks/*.jpg)"],
    }


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
    assert report.problems == {
        "images in more than one part": ["row 0 = row 7"],
        "images under more than one label": ["row 0 = row 7"],
        "patients both in train and outside of it": ["1"],
    }


def test_json(clean_oct, capsys):
    report = check(clean_oct, "oct")
    assert json.loads(json.dumps(report.as_dict()))["classes"]["CNV"] == {"train": 3, "test": 2}
    cli_data.app(["check", str(clean_oct), "--json"], result_action="return_value")
    printed = json.loads(capsys.readouterr().out)
    assert printed["ok"] is True
    cli_data.app(["check", str(clean_oct)], result_action="return_value")
    out = " ".join(capsys.readouterr().out.split())
    assert "oct, 20 images, 5 patients" in out
    assert "class train test training validation images %" in out
    assert "NORMAL 3 2 3 2 5 25.00 CNV 3 2 3 2 5 25.00" in out
    assert "total 12 8 12 8 20 100.00" in out
    assert printed["study"] == "oct"


# Tables 1 and 3 of the paper: training and validation images by class, as printed.
PAPERS = {
    "oct": {
        "NORMAL": (35_973, 15_417),
        "CNV": (26_218, 11_237),
        "DME": (8_118, 3_480),
        "DRUSEN": (6_206, 2_660),
    },
    "chest": {"Normal": 10_192, "Lung Opacity": 6_012, "COVID": 3_616, "Viral Pneumonia": 1_345},
}


def like_the_papers(path, study):
    """A file with as many images of each class as the paper's data set; each of one pixel."""
    names = [*PAPERS[study]]
    counts = [np.sum(PAPERS[study][name]) for name in names]
    labels = np.repeat(np.arange(4), counts)
    pixels = np.broadcast_to(np.uint8(0), (len(labels), 1, 1))
    np.savez(path, images=pixels, labels=labels, class_names=np.array(names))
    return path


def test_table_1(tmp_path):
    report = check(like_the_papers(tmp_path / "a.npz", "oct"), how="fixed", seed=[3, 1])
    assert {n: tuple(found.values()) for n, found in ordered(report).items()} == PAPERS["oct"]
    assert "version: the paper's data set, version 3 of Mendeley Data rscbjbr9sj" in text(report)


def ordered(report):
    return {
        name: {one: found[one] for one in ("training", "validation")}
        for name, found in report.sets.items()
    }


def test_table_3(tmp_path, capsys):
    path = like_the_papers(tmp_path / "a.npz", "chest")
    with pytest.raises(SystemExit):  # its images are all the same
        cli_data.app(["check", str(path)], result_action="return_value")
    out = " ".join(capsys.readouterr().out.split())
    assert "Normal 7,134 3,058 10,192 48.15" in out
    for line in ("6,012 28.41", "3,616 17.08", "1,345 6.35", "21,165 100.00"):
        assert line in out


def test_kaggles_oct_is_told_by_its_count(tmp_path):
    few = np.array([26_565, 37_455, 11_598, 8_866])  # by its own page
    labels = np.repeat(np.arange(4), few)
    pixels = np.broadcast_to(np.uint8(0), (len(labels), 1, 1))
    names = np.array(["NORMAL", "CNV", "DME", "DRUSEN"])
    np.savez(tmp_path / "a.npz", images=pixels, labels=labels, class_names=names)
    assert "version: Kaggle's kermany2018" in text(check(tmp_path / "a.npz"))


def test_another_number_of_images_tells_no_version(clean_oct, chest_folder):
    shown = text(check(clean_oct))
    assert "version: not known from 20 images: 109,309 images are the paper's data set" in shown
    assert "84,484 images are Kaggle's" in shown
    assert "version" not in text(check(chest_folder))


def test_version_3_as_mendeley_ships_it(clean_oct, picture, tmp_path):
    """The chest X-rays beside the OCT images have a class of the same name."""
    root = tmp_path / "ZhangLabData"
    (root / "CellData").mkdir(parents=True)
    for part in ("train", "test"):
        picture(root / "CellData" / "chest_xray" / part / "NORMAL" / "NORMAL-1-1.jpeg", seed=5)
    clean_oct.rename(root / "CellData" / "OCT")
    report = check(root)
    assert (report.study, report.images, report.ok) == ("oct", 20, True)


def test_the_split_that_is_asked_for(clean_oct):
    shipped = check(clean_oct, how="as-shipped")
    assert ordered(shipped)["CNV"] == {"training": 3, "validation": 2}
    with pytest.raises(StudyError, match="Expected images that come divided"):
        check(clean_oct / "train", how="as-shipped")


def test_exit_status(clean_oct, capsys):
    (clean_oct / "train/CNV/CNV-0-1.jpeg").write_bytes(b"")
    with pytest.raises(SystemExit) as caught:
        cli_data.app(["check", str(clean_oct), "--study", "oct"], result_action="return_value")
    assert caught.value.code == 1
    assert "CNV-0-1.jpeg is" in capsys.readouterr().out


def test_wrong_paths(tmp_path):
    with pytest.raises(StudyError, match="nowhere: No such file"):
        check(tmp_path / "nowhere")
    with pytest.raises(StudyError, match=r"Expected a folder or an \.npz"):
        check(__file__)
    with pytest.raises(StudyError, match="fits none of the studies"):
        check(tmp_path)
    with pytest.raises(StudyError, match="a study of"):
        check(tmp_path, "mnist")


# A check and a run agree


NAMES = np.array(["NORMAL", "CNV", "DME", "DRUSEN"])


def oct_npz(path, **change):
    arrays = {
        "images": np.random.default_rng(0).integers(0, 256, (8, 32, 32), dtype=np.uint8),
        "labels": np.arange(8) % 4,
        "class_names": NAMES,
        **change,
    }
    np.savez(path, **{name: array for name, array in arrays.items() if array is not None})
    return path


def kvasir_npz(path, masks):
    images = np.random.default_rng(0).integers(0, 256, (4, 32, 32, 3), dtype=np.uint8)
    np.savez(path, images=images, masks=masks)
    return path


def with_masks(folder, write):
    """The folder with one mask more of values, as PNG, and the others as they were."""
    mask = np.zeros((30, 40), np.uint8)
    mask[5:20, 5:30] = 1
    place = folder / "Kvasir-SEG/masks"
    (place / "c2.jpg").unlink()
    Image.fromarray(write(mask)).save(place / "c2.png")
    return folder


def pipe(folder):
    path = next(folder.rglob("*.jpeg"))
    path.unlink()
    os.mkfifo(path)
    return folder


def twelve_bits(folder):
    path = next(folder.rglob("*.jpeg"))
    path.unlink()
    wide = np.linspace(0, 4095, 1200).astype(np.uint16).reshape(30, 40)
    Image.fromarray(wide).save(path.with_suffix(".png"))
    return folder


def renamed_mask(folder):
    place = folder / "Kvasir-SEG/masks"
    (place / "c1.jpg").rename(place / "other.jpg")
    return folder


def remove(folder, pattern):
    for path in folder.glob(pattern):
        shutil.rmtree(path)
    return folder


MASKS = np.zeros((4, 32, 32), np.uint8)
MASKS[:, 5:20, 5:20] = 1
# Each makes data from the fixtures and an empty folder.
REFUSED = {
    "no class names": ("oct", lambda o, k, t: oct_npz(t / "a.npz", class_names=None)),
    "bytes": ("oct", lambda o, k, t: oct_npz(t / "a.npz", class_names=NAMES.astype("S"))),
    "integers": ("oct", lambda o, k, t: oct_npz(t / "a.npz", class_names=np.arange(4))),
    "0-d": ("oct", lambda o, k, t: oct_npz(t / "a.npz", class_names=np.array("NORMAL"))),
    "nine": ("oct", lambda o, k, t: oct_npz(t / "a.npz", class_names=np.array(list("abcdefghi")))),
    "a class lacks": ("oct", lambda o, k, t: oct_npz(t / "a.npz", labels=np.arange(8) % 3)),
    "part": ("oct", lambda o, k, t: oct_npz(t / "a.npz", parts=np.array(["train"] * 7 + ["x"]))),
    "npz masks of 2": ("kvasir", lambda o, k, t: kvasir_npz(t / "a.npz", MASKS * np.uint8(2))),
    "masks of 2": ("kvasir", lambda o, k, t: with_masks(k, lambda mask: mask * 2)),
    "masks of 16": ("kvasir", lambda o, k, t: with_masks(k, lambda mask: mask * 16)),
    "masks of 100": ("kvasir", lambda o, k, t: with_masks(k, lambda mask: mask * 100)),
    "size": ("kvasir", lambda o, k, t: with_masks(k, lambda mask: mask[:20])),
    "no mask": ("kvasir", lambda o, k, t: renamed_mask(k)),
    "pipe": ("oct", lambda o, k, t: pipe(o)),
    "12 bits": ("oct", lambda o, k, t: twelve_bits(o)),
    "no folder of a class": ("oct", lambda o, k, t: remove(o, "*/DME")),
}
TAKEN = {
    "npz": ("oct", lambda o, k, t: oct_npz(t / "a.npz")),
    "npz masks of 1": ("kvasir", lambda o, k, t: kvasir_npz(t / "a.npz", MASKS)),
    "npz masks of 255": ("kvasir", lambda o, k, t: kvasir_npz(t / "a.npz", MASKS * np.uint8(255))),
    "masks of 1": ("kvasir", lambda o, k, t: with_masks(k, lambda mask: mask)),
    "masks of 255": ("kvasir", lambda o, k, t: with_masks(k, lambda mask: mask * 255)),
    "masks of 65535": (
        "kvasir",
        lambda o, k, t: with_masks(k, lambda mask: mask.astype(np.uint16) * 65535),
    ),
    "folder": ("oct", lambda o, k, t: o),
    "training": ("oct", lambda o, k, t: oct_npz(t / "a.npz", parts=np.array(["training"] * 8))),
}


def in_a_run(study, data, cache):
    try:
        return open_images(study, data, size=32, cache=cache)
    except StudyError:
        return None


def in_a_check(study, data):
    try:
        return check(data, study)
    except StudyError:
        return None


@pytest.mark.parametrize("what", REFUSED)
def test_what_a_run_refuses_a_check_finds(what, clean_oct, kvasir_folder, tmp_path):
    study, make = REFUSED[what]
    data = make(clean_oct, kvasir_folder, tmp_path)
    assert in_a_run(study, data, tmp_path / "cache") is None
    for named in (study, None):
        report = in_a_check(named, data)
        assert report is None or not report.ok


@pytest.mark.parametrize("what", TAKEN)
def test_what_a_run_takes_a_check_calls_neither_wrong_nor_empty(
    what, clean_oct, kvasir_folder, tmp_path
):
    study, make = TAKEN[what]
    data = make(clean_oct, kvasir_folder, tmp_path)
    opened = in_a_run(study, data, tmp_path / "cache")
    for named in (study, None):
        report = in_a_check(named, data)
        assert report.ok
        assert "empty masks" not in report.notes
        assert report.images == len(opened.images)
    if study == "kvasir":
        assert opened.images.masks.any(axis=(1, 2)).all()


def test_texts_as_patients_are_shown_as_such(tmp_path):
    ids = np.array(["eve", "bob", "bob", "ann", "ann", "zoe", "eve", "ann"])
    parts = np.array(["training"] * 4 + ["test"] * 4)
    report = check(oct_npz(tmp_path / "a.npz", patient_ids=ids, parts=parts))
    assert report.patients == 4
    assert report.problems["patients both in train and outside of it"] == ["ann", "eve"]
    assert report.classes["CNV"] == {"train": 1, "test": 1}


def test_what_is_ignored_is_counted(clean_oct):
    (clean_oct / "train/CNV/CNV-0-8.webp").write_bytes(b"x")
    (clean_oct / "train/AMD").mkdir()
    (clean_oct / "train/AMD/AMD-1-1.jpeg").write_bytes(b"x")
    report = check(clean_oct)
    assert report.ok
    assert "2 files ignored (1 train/AMD/*.jpeg, 1 train/CNV/*.webp)" in text(report)


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
    assert report.notes == {}
