import os
import shutil
from pathlib import Path

import pytest
from by_name import check, find, kind_of

from tensorprojection.studies.data.read import known_of, read_items
from tensorprojection.studies.errors import StudyError


def ignored(folder):
    return read_items(kind_of("oct"), folder)[1]


def summary(found):
    return [(item.label, item.part) for item in found]


def test_oct_as_kaggle_ships_it(oct_folder):
    found = find("oct", oct_folder)
    assert len(found) == 36
    assert summary(found).count((0, "train")) == 6
    assert summary(found).count((3, "test")) == 2
    first = found[0]
    assert first.name == "OCT2017 /test/NORMAL/NORMAL-1011-0.jpeg"
    assert (first.label, first.patient) == (0, "1011")


@pytest.mark.parametrize("below", ["", "OCT2017 "])
def test_from_any_height(oct_folder, below):
    assert len(find("oct", oct_folder / below)) == 36
    deeper = oct_folder.parent / "a" / "b"
    deeper.parent.mkdir()
    (oct_folder / "OCT2017 ").rename(deeper)
    assert len(find("oct", oct_folder.parent)) == 36


def test_classes_alone_have_no_parts(oct_folder):
    found = find("oct", oct_folder / "OCT2017 " / "train")
    assert len(found) == 24
    assert {item.part for item in found} == {None}


def test_the_second_copy_in_kaggles_oct_is_not_counted(oct_folder):
    shutil.copytree(oct_folder / "OCT2017 ", oct_folder / "oct2017" / "OCT2017 ")
    assert len(find("oct", oct_folder)) == 36


def test_two_copies_beside_each_other_are_ambiguous(oct_folder):
    shutil.copytree(oct_folder / "OCT2017 ", oct_folder / "copy")
    with pytest.raises(StudyError, match=r"once in .*found them in OCT2017  and copy"):
        find("oct", oct_folder)


def test_a_patient_may_have_several_classes(oct_folder):
    found = find("oct", oct_folder)
    classes = {}
    for item in found:
        classes.setdefault(item.patient, set()).add(item.label)
    assert max(map(len, classes.values())) > 1


def test_without_patients_in_every_name_there_are_none(oct_folder, picture):
    picture(oct_folder / "OCT2017 " / "train" / "CNV" / "mine.jpeg")
    found = find("oct", oct_folder)
    assert len(found) == 37
    assert known_of(found)["groups"] is None


def test_chest_ignores_masks(chest_folder):
    found = find("chest", chest_folder)
    assert [item.label for item in found] == [0] * 5 + [1] * 4 + [2] * 3 + [3] * 6
    assert not any("masks" in item.name for item in found)


def test_chest_of_older_versions(tmp_path, picture):
    for name in ("NORMAL", "Lung Opacity", "COVID-19", "Viral Pneumonia"):
        picture(tmp_path / name / f"{name} (1).png")
    assert [item.label for item in find("chest", tmp_path)] == [0, 1, 2, 3]


def test_kvasir_pairs_by_name(kvasir_folder):
    os.rename(kvasir_folder / "Kvasir-SEG/masks/c1.jpg", kvasir_folder / "Kvasir-SEG/masks/z1.jpg")
    found = find("kvasir", kvasir_folder)
    assert [item.mask and item.mask[-6:] for item in found] == [
        "c0.jpg",
        None,
        "c2.jpg",
        "c3.jpg",
        "c4.jpg",
    ]


def test_hidden_and_other_files_are_ignored(oct_folder):
    cnv = oct_folder / "OCT2017 " / "train" / "CNV"
    for name in ("._CNV-1000-0.jpeg", ".DS_Store", "Thumbs.db", "notes.txt"):
        (cnv / name).write_bytes(b"x")
    shutil.copytree(oct_folder / "OCT2017 ", oct_folder / "__MACOSX")
    assert len(find("oct", oct_folder)) == 36


def test_what_is_ignored_is_counted(oct_folder, picture):
    top = oct_folder / "OCT2017 "
    assert ignored(oct_folder) == ""
    cnv = top / "train" / "CNV"
    for name in ("a.gif", "b.GIF", "c.webp", "d.dcm", "LICENSE"):
        (cnv / name).write_bytes(b"x")
    (oct_folder / "notes.txt").write_bytes(b"x")
    picture(top / "train" / "AMD" / "deeper" / "AMD-1-1.jpeg")
    picture(top / "extra" / "x.jpeg")
    shutil.copytree(top / "val", oct_folder / "more" / "deeper" / "val")
    assert len(find("oct", oct_folder)) == 36
    assert ignored(oct_folder).startswith("12 files ignored (6 .jpeg, 2 .gif, ")
    assert "1 .txt" in ignored(oct_folder)
    assert "1 without ending" in ignored(oct_folder)
    (cnv / "a.gif").rename(cnv / "CNV-77-1.jpeg")
    assert ignored(oct_folder).startswith("11 files")


@pytest.mark.parametrize("where", ["images", "masks"])
def test_two_files_of_one_name_are_ambiguous(kvasir_folder, picture, where):
    picture(kvasir_folder / "Kvasir-SEG" / where / "c3.png")
    for search in (lambda folder: find("kvasir", folder), check):
        with pytest.raises(StudyError, match=r"one file named c3, .*c3.jpg and .*c3.png"):
            search(kvasir_folder)


@pytest.mark.skipif(os.name == "nt", reason="names are Unicode there")
def test_names_that_are_not_utf_8(oct_folder):
    place = os.fsencode(oct_folder / "OCT2017 " / "train" / "CNV")
    with open(place + b"/CNV-\xff-1.jpeg", "wb"):
        pass
    with pytest.raises(StudyError, match=r"names in UTF-8 in .*got b'CNV-\\xff-1.jpeg'. Rename"):
        find("oct", oct_folder)
    with pytest.raises(StudyError, match="names in UTF-8"):
        check(oct_folder)


def test_nothing_found_says_what_was_expected_and_what_is_there(tmp_path):
    with pytest.raises(
        StudyError, match=r"each of NORMAL, .* train, val and test.*Found an empty folder"
    ):
        find("oct", tmp_path)
    (tmp_path / "holiday.jpg").write_bytes(b"x")
    (tmp_path / "more").mkdir()
    with pytest.raises(StudyError, match=r"images and masks.*Found holiday.jpg, more/\."):
        find("kvasir", tmp_path)


def test_the_study_is_guessed(oct_folder, chest_folder, kvasir_folder, tmp_path):
    assert ": oct, " in check(oct_folder).title
    assert ": chest, " in check(chest_folder).title
    assert ": kvasir, " in check(kvasir_folder).title
    (tmp_path / "empty").mkdir()
    with pytest.raises(StudyError, match=r"the oct layout: .* the kvasir layout: "):
        check(tmp_path / "empty")


def test_unknown_study(tmp_path):
    with pytest.raises(StudyError, match=r"Expected a study of oct, chest, .* got 'mnist'"):
        find("mnist", tmp_path)


@pytest.mark.parametrize("given", [".", "OCT2017 ", "OCT2017 /", "./OCT2017 /train/.."])
def test_names_are_relative_to_what_was_given(oct_folder, monkeypatch, given):
    monkeypatch.chdir(oct_folder)
    for item in find("oct", Path(given)):
        assert (Path(given) / item.name).samefile(item.image)
