import os
import shutil

import numpy as np
import polars as pl
import pytest
from by_name import check, open_images
from PIL import Image

from tensorprojection.studies.errors import StudyError


def text(report):
    return "\n".join([report.title, *report.notes, *report.problems])


def count(report, label, column):
    return report.counts.row(by_predicate=pl.col("class") == label, named=True)[column]


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
    assert report.problems == ()
    assert report.title.endswith(": oct, 20 images, 5 patients")
    assert (count(report, "CNV", "train"), count(report, "CNV", "test")) == (3, 2)
    assert "2 sizes: 40 × 30 (12), 48 × 30 (8)" in report.notes


def test_patients_in_train_and_test(clean_oct, picture):
    picture(clean_oct / "test/CNV/CNV-2-7.jpeg", seed=77)
    report = check(clean_oct)
    assert report.problems == ("1 patients both in train and outside of it: 2",)


def test_patients_in_both_validation_and_test_are_no_leak(clean_oct, picture):
    picture(clean_oct / "val/CNV/CNV-100-7.jpeg", seed=77)
    assert check(clean_oct).problems == ()


def test_duplicates(clean_oct):
    source = clean_oct / "train/CNV/CNV-0-1.jpeg"
    shutil.copy(source, clean_oct / "train/CNV/CNV-0-9.jpeg")
    report = check(clean_oct)
    assert not report.problems  # in one part, with one label: worth a note only
    assert "1 images stored more than once: train/CNV/CNV-0-1.jpeg = train" in text(report)

    shutil.copy(source, clean_oct / "test/CNV/CNV-101-9.jpeg")
    report = check(clean_oct)
    assert "1 images in more than one part: test" in text(report)

    (clean_oct / "test/CNV/CNV-101-9.jpeg").unlink()
    shutil.copy(source, clean_oct / "train/DME/DME-0-9.jpeg")
    report = check(clean_oct)
    assert "1 images under more than one label: train" in text(report)


def test_unreadable_and_missing(clean_oct):
    (clean_oct / "train/CNV/CNV-0-1.jpeg").write_bytes(b"")
    (clean_oct / "train/CNV/CNV-1-1.jpeg").write_bytes(b"")  # empty files are no duplicates
    for path in clean_oct.glob("*/DME"):
        shutil.rmtree(path)
    report = check(clean_oct)
    assert report.problems[0] == "1 classes without an image: DME"
    assert report.problems[1].startswith("2 images that a run refuses: ")
    assert report.problems[1].count(".jpeg is empty") == 2
    assert not any("stored more than once" in line for line in report.notes)
    assert count(report, "DME", "images") == 0


def test_kvasir(kvasir_folder, picture):
    assert check(kvasir_folder).problems == ()
    masks = kvasir_folder / "Kvasir-SEG/masks"
    (masks / "c0.jpg").rename(masks / "other.jpg")
    Image.fromarray(np.full((10, 10), 255, np.uint8)).save(masks / "c1.jpg")
    Image.fromarray(np.zeros((30, 40), np.uint8)).save(masks / "c2.jpg")
    (masks / "c3.jpg").write_bytes(b"nonsense")
    report = check(kvasir_folder)
    (problem,) = report.problems
    assert problem.startswith("3 images that a run refuses: ")
    for line in ("c0.jpg has no mask", "c1.jpg is 10 × 10, its image", "c3.jpg is not an image"):
        assert line in problem
    assert "1 empty masks: Kvasir-SEG/images/c2.jpg" in report.notes
    assert "1 files ignored (1 .jpg)" in report.notes


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
    assert "1 sizes: 12 × 10 (8)" in report.notes
    assert report.problems == (
        "1 images in more than one part: row 0 = row 7",
        "1 images under more than one label: row 0 = row 7",
        "1 patients both in train and outside of it: 1",
    )


def test_what_is_printed(clean_oct, tpl):
    code, out, _ = tpl("data", "check", clean_oct)
    out = " ".join(out.split())
    assert code == 0
    assert "oct, 20 images, 5 patients" in out
    assert "class train test training validation images %" in out
    assert "NORMAL 3 2 3 2 5 25.0 CNV 3 2 3 2 5 25.0" in out
    assert "total 12 8 12 8 20 100.0" in out
    assert "No problem found." in out


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
    for name, sets in PAPERS["oct"].items():
        assert (count(report, name, "training"), count(report, name, "validation")) == sets
    assert "version: the paper's data set, version 3 of Mendeley Data rscbjbr9sj" in text(report)


def test_table_3(tmp_path, tpl):
    code, out, _ = tpl("data", "check", like_the_papers(tmp_path / "a.npz", "chest"))
    assert code == 1  # its images are all the same
    out = " ".join(out.split())
    assert "Normal 7,134 3,058 10,192 48.15" in out
    for line in ("6,012 28.41", "3,616 17.08", "1,345 6.35", "21,165 100.0"):
        assert line in out


def test_kaggles_oct_is_told_by_its_count(tmp_path):
    few = np.array([26_565, 37_455, 11_598, 8_866])  # by its own page
    labels = np.repeat(np.arange(4), few)
    pixels = np.broadcast_to(np.uint8(0), (len(labels), 1, 1))
    names = np.array(["NORMAL", "CNV", "DME", "DRUSEN"])
    np.savez(tmp_path / "a.npz", images=pixels, labels=labels, class_names=names)
    assert "version: Kaggle's kermany2018" in text(check(tmp_path / "a.npz"))


def test_version_3_as_mendeley_ships_it(clean_oct, picture, tmp_path):
    """The chest X-rays beside the OCT images have a class of the same name."""
    root = tmp_path / "ZhangLabData"
    (root / "CellData").mkdir(parents=True)
    for part in ("train", "test"):
        picture(root / "CellData" / "chest_xray" / part / "NORMAL" / "NORMAL-1-1.jpeg", seed=5)
    clean_oct.rename(root / "CellData" / "OCT")
    report = check(root)
    assert (report.title.split(": ")[1], report.problems) == ("oct, 20 images, 5 patients", ())


def test_the_split_that_is_asked_for(clean_oct):
    shipped = check(clean_oct, how="as-shipped")
    assert (count(shipped, "CNV", "training"), count(shipped, "CNV", "validation")) == (3, 2)
    (problem,) = check(clean_oct / "train", how="as-shipped").problems
    assert "as-shipped splits that a run would refuse: Expected images that come" in problem


def test_exit_status(clean_oct, tpl):
    (clean_oct / "train/CNV/CNV-0-1.jpeg").write_bytes(b"")
    code, out, _ = tpl("data", "check", clean_oct, "--study", "oct")
    assert code == 1
    assert "CNV-0-1.jpeg is" in " ".join(out.split())


def test_names_that_a_terminal_would_run(clean_oct, tpl):
    (clean_oct / "train/CNV/CNV-0-1\x1b[31m.jpeg").write_bytes(b"")
    _, out, _ = tpl("data", "check", clean_oct, "--study", "oct")
    assert "CNV-0-1\\x1b[31m.jpeg is empty" in out
    assert "\x1b" not in out


def test_wrong_paths(tmp_path):
    with pytest.raises(StudyError, match="nowhere: No such file"):
        check(tmp_path / "nowhere")
    with pytest.raises(StudyError, match=r"Expected a folder or an \.npz"):
        check(__file__)
    with pytest.raises(StudyError, match="the kvasir layout"):
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


def in_a_run(study, data):
    try:
        return open_images(study, data, size=32)
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
    assert in_a_run(study, data) is None
    for named in (study, None):
        report = in_a_check(named, data)
        assert report is None or report.problems


@pytest.mark.parametrize("what", TAKEN)
def test_what_a_run_takes_a_check_calls_neither_wrong_nor_empty(
    what, clean_oct, kvasir_folder, tmp_path
):
    study, make = TAKEN[what]
    data = make(clean_oct, kvasir_folder, tmp_path)
    opened = in_a_run(study, data)
    for named in (study, None):
        report = in_a_check(named, data)
        assert not report.problems
        assert not any("empty masks" in line for line in report.notes)
        assert f" {len(opened.images)} images" in report.title
    if study == "kvasir":
        assert opened.images.masks.any(axis=(1, 2)).all()


def test_texts_as_patients_are_shown_as_such(tmp_path):
    ids = np.array(["eve", "bob", "bob", "ann", "ann", "zoe", "eve", "ann"])
    parts = np.array(["training"] * 4 + ["test"] * 4)
    report = check(oct_npz(tmp_path / "a.npz", patient_ids=ids, parts=parts))
    assert report.title.endswith("4 patients")
    assert "2 patients both in train and outside of it: eve, ann" in report.problems
    assert (count(report, "CNV", "train"), count(report, "CNV", "test")) == (1, 1)


def test_what_is_ignored_is_counted(clean_oct):
    (clean_oct / "train/CNV/CNV-0-8.webp").write_bytes(b"x")
    (clean_oct / "train/AMD").mkdir()
    (clean_oct / "train/AMD/AMD-1-1.jpeg").write_bytes(b"x")
    report = check(clean_oct)
    assert not report.problems
    assert "2 files ignored (1 .jpeg, 1 .webp)" in report.notes


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
    assert f": {study}, {images} images" in report.title
    assert report.problems == ()
    assert len(report.notes) == 1  # the size
