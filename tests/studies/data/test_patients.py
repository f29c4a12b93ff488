"""Patients of any images, from a CSV file or from the names of the files."""

import numpy as np
import pytest

from tensorprojection.studies.config import resolve
from tensorprojection.studies.errors import StudyError
from tensorprojection.studies.registry import STUDIES

pytestmark = pytest.mark.filterwarnings("ignore:Cyclopts application invoked without tokens")
CLASSES = ("NORMAL", "CNV", "DME", "DRUSEN")


@pytest.fixture
def folder(tmp_path, picture):
    """Twelve images per class of six patients, whose names do not follow the data set's rule."""
    for c, name in enumerate(CLASSES):
        for i in range(12):
            picture(tmp_path / "scans" / name / f"P{i % 6}_{name}{i}.png", seed=100 * c + i)
    return tmp_path / "scans"


def patient_of(name):
    return name.rpartition("/")[2].partition("_")[0]


def table(folder, path, short=False, patient=patient_of):
    names = [p.relative_to(folder).as_posix() for p in sorted(folder.rglob("*.png"))]
    lines = [f"{n.rpartition('/')[2] if short else n},{patient(n)}" for n in names]
    path.write_text("file,patient\n" + "\n".join(lines) + "\n")
    return path


def split_of(folder, **flags):
    """Each part's patients, by the settings of a run."""
    study = STUDIES["oct"]
    config = resolve(study, "smoke", None, {"data": str(folder), "split": "patient", **flags})
    data = study.open(config, study.prepare(config, 1, lambda *_: None))
    rows = data.split(0)[: 3 if config.test_share else 2]
    return [{patient_of(name) for name in data.originals.names[part]} for part in rows]


@pytest.mark.parametrize("how", ["pattern", "whole match", "csv", "csv of last parts", "texts"])
def test_a_patient_is_in_one_part_only(how, folder, tmp_path):
    texts = {"patient": lambda name: f"Ms {patient_of(name)}"} if how == "texts" else {}
    flags = {
        "pattern": lambda: {"patient_pattern": r"P(\d+)_"},
        "whole match": lambda: {"patient_pattern": r"^P\d+"},
    }.get(how, lambda: {"patients": str(table(folder, tmp_path / "p.csv", "last" in how, **texts))})
    training, validation = split_of(folder, **flags())
    assert training | validation == {f"P{i}" for i in range(6)}
    assert not training & validation


def test_another_rule_is_not_answered_from_the_cache(folder, tmp_path):
    listed = table(folder, tmp_path / "p.csv")
    assert not set.intersection(*split_of(folder, patients=str(listed)))
    table(folder, listed, patient=lambda name: name[-5])  # by the names' last digits
    assert set.intersection(*split_of(folder, patients=str(listed)))


def test_numbers_are_the_data_sets_own(tmp_path, picture):
    """A pattern that says what the study's own rule says gives the same split."""
    for c, name in enumerate(CLASSES):
        for i in range(12):
            file = tmp_path / "scans" / name / f"{name}-{9 + i % 6}-{i}.jpeg"
            picture(file, seed=100 * c + i)
    study, rows = STUDIES["oct"], []
    for flags in ({}, {"patient_pattern": r"-(\d+)-"}):
        settings = {"data": str(tmp_path / "scans"), "split": "patient", **flags}
        config = resolve(study, "smoke", None, settings)
        data = study.open(config, study.prepare(config, 1, lambda *_: None))
        rows.append(np.concatenate(data.split(0)))
    np.testing.assert_array_equal(*rows)


def test_names_in_an_npz(tmp_path):
    names = np.array([f"P{i % 6}_{i}.png" for i in range(24)])
    images = np.random.default_rng(0).integers(0, 256, (24, 32, 32), dtype=np.uint8)
    arrays = {"images": images, "labels": np.arange(24) // 6, "class_names": np.array(CLASSES)}
    np.savez(tmp_path / "a.npz", **arrays, file_names=names)
    training, validation = split_of(tmp_path / "a.npz", patient_pattern=r"P(\d+)_")
    assert not training & validation
    np.savez(tmp_path / "a.npz", **arrays)
    for rule in (r"(\d+)", "row"):  # the number of a row is nobody's name
        with pytest.raises(StudyError, match="file_names"):
            split_of(tmp_path / "a.npz", patient_pattern=rule)


@pytest.fixture
def refused(tpl, folder, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)

    def call(says, *flags, data=folder):
        flags = ("--preset", "smoke", "--data", data, "--split", "patient", *flags)
        code, _, err = tpl("run", "oct", *flags)
        assert (code, err.count("\n")) == (2, 1)
        assert err.startswith("tpl: ")
        assert says in err

    return call


def test_without_patients_the_error_names_both_options(refused):
    refused("(`patients`)")
    refused("`patient_pattern`")


def test_mistakes_end_in_one_line(refused, folder, tmp_path):
    refused("NORMAL/P0_NORMAL0.png has no match", "--patient-pattern", r"X(\d+)")
    refused("is not a regular expression", "--patient-pattern", "P(")
    refused("got both", "--patient-pattern", "P", "--patients", "p.csv")
    refused("p.csv: No such file", "--patients", "p.csv")
    (tmp_path / "p.csv").write_text("name,id\n")
    refused("Could not read the columns file and patient of ", "--patients", "p.csv")
    lines = table(folder, tmp_path / "p.csv").read_text().splitlines()
    (tmp_path / "p.csv").write_text("\n".join(lines[:-1]))
    refused("there is none for NORMAL/P5_NORMAL5.png", "--patients", "p.csv")
    (tmp_path / "p.csv").write_bytes(b"\xff\xfe")
    refused("Could not read the columns", "--patients", "p.csv")
    refused("/dev/zero: not a regular file", "--patients", "/dev/zero")
    refused("Phantoms have no patients", "--patient-pattern", "P", data="phantoms")


def test_the_last_part_of_a_name_must_be_unique(refused, tmp_path, picture):
    for c, name in enumerate(CLASSES):
        for i in range(4):
            picture(tmp_path / "same" / name / f"P{i}_x.png", seed=10 * c + i)
    table(tmp_path / "same", tmp_path / "p.csv", short=True)
    refused("there is none for NORMAL/P0_x.png", "--patients", "p.csv", data=tmp_path / "same")


def test_a_check_knows_them_too(tpl, folder):
    code, out, _ = tpl("data", "check", folder, "--patient-pattern", r"P(\d+)_")
    assert code == 0
    assert "48 images, 6 patients" in " ".join(out.split())
    code, out, _ = tpl(
        "data", "check", folder, "--patient-pattern", r"_([A-Z]+)", "--split", "patient"
    )
    assert code == 1
    assert "patient splits that a run would refuse: The patient split leaves" in " ".join(
        out.split()
    )
