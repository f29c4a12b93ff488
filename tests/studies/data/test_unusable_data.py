"""Data that no command can use: one line that says so, and exit code 2."""

import os
import shutil
import socket

import numpy as np
import pytest
from PIL import Image

pytestmark = pytest.mark.filterwarnings("ignore:Cyclopts application invoked without tokens")


@pytest.fixture
def tpl(tpl, monkeypatch, tmp_path):
    """The command, with a folder and a cache of its own."""
    monkeypatch.setenv("TENSORPROJECTION_CACHE", str(tmp_path / "cache"))
    monkeypatch.chdir(tmp_path)
    return tpl


def zero_d(folder):
    path = folder / "a.npz"
    images = np.zeros((8, 32, 32), np.uint8)
    np.savez(path, images=images, labels=np.arange(8) % 4, class_names=np.array("NORMAL"))
    return path


def archive(folder):
    (folder / "a.zip").write_bytes(b"PK")
    return folder / "a.zip"


def not_utf_8(folder):
    os.mkdir(os.fsencode(folder) + b"/data\xff")
    return os.fsdecode(os.fsencode(folder) + b"/data\xff")


def inside_not_utf_8(folder):
    os.makedirs(os.fsencode(folder) + b"/data/train\xff")
    return folder / "data"


def pipe(folder):
    os.mkfifo(folder / "a.npz")
    return folder / "a.npz"


DATA = {
    "0-d class_names": (zero_d, "class_names of type str and shape"),
    "a zip": (archive, "a.zip is an archive. Unpack it, and give the folder instead."),
    "not UTF-8": (not_utf_8, "in UTF-8"),
    "not UTF-8 inside": (inside_not_utf_8, "names in UTF-8"),
    "300 characters": (lambda folder: "x" * 300, "File name too long"),
    "a pipe": (pipe, "a.npz"),
    "a device": (lambda folder: "/dev/zero", "/dev/zero"),
}


@pytest.mark.parametrize("command", [("data", "check"), ("run", "oct", "--data")])
@pytest.mark.parametrize("what", DATA)
def test_data(what, command, tpl, tmp_path):
    make, says = DATA[what]
    code, out, err = tpl(*command, make(tmp_path))
    assert (code, out) == (2, "")
    assert err.startswith("tpl: ")
    assert err.count("\n") == 1
    assert says in err


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["oct", "--size", "20000"], "size"),
        (["kvasir", "--preset", "smoke", "--copies", "100000000"], "copies"),
    ],
)
def test_wishes_that_are_too_large(arguments, says, tpl):
    code, _, err = tpl("run", *arguments)
    assert code == 2
    assert err.count("\n") == 1
    assert says in err


@pytest.fixture
def refused(tpl):
    """``refused(study, data, says, *flags)``: one line by a run, and a problem for a check."""

    def call(study, data, says, *flags):
        code, out, err = tpl("run", study, "--preset", "smoke", "--data", data, *flags)
        assert (code, err.count("\n")) == (2, 1)
        assert err.startswith("tpl: ")
        assert says in err
        split = flags if "--split" in flags else ()
        code, out, _ = tpl("data", "check", data, "--study", study, *split)
        assert code == 1
        assert says in " ".join(out.split())

    return call


def test_a_class_that_ships_in_one_part_only(refused, oct_folder):
    for part in ("val", "test"):
        shutil.rmtree(oct_folder / "OCT2017 " / part / "DME")
    refused("oct", oct_folder, "no image of DME for validation", "--split", "as-shipped")


def test_a_class_of_one_patient(refused, tmp_path, picture):
    for name, patients in (("NORMAL", 3), ("CNV", 3), ("DME", 3), ("DRUSEN", 1)):
        for i in range(6):
            number = 1000 + ord(name[1]) * 10 + i % patients
            picture(tmp_path / "data" / name / f"{name}-{number}-{i}.png", seed=number * 10 + i)
    says = "split leaves no image of DRUSEN for"
    refused("oct", tmp_path / "data", says, "--split", "patient")


def test_a_share_that_leaves_a_class_out(tpl, oct_folder):
    flags = ("--preset", "smoke", "--data", oct_folder, "--train-share", "0.05")
    code, _, err = tpl("run", "oct", *flags)
    assert (code, err.count("\n")) == (2, 1)
    assert "A train_share of 0.05 leaves no image of" in err


@pytest.mark.parametrize("kind", ["png", "jpg"])
def test_masks_of_many_classes(refused, kvasir_folder, kind):
    place = kvasir_folder / "Kvasir-SEG/masks"
    (place / "c2.jpg").unlink()
    mask = np.repeat(np.array([0, 60, 120, 180, 240], np.uint8), 8)[None].repeat(30, 0)
    Image.fromarray(mask).save(place / f"c2.{kind}")
    refused("kvasir", kvasir_folder, f"masks/c2.{kind} has the values 0, ")


def make_pipe(path):
    os.mkfifo(path)


def make_device(path):
    path.symlink_to("/dev/zero")


def make_socket(path):
    here = os.getcwd()
    os.chdir(path.parent)  # a socket's path has at most 107 bytes
    with socket.socket(socket.AF_UNIX) as made:
        made.bind(path.name)
    os.chdir(here)


@pytest.mark.parametrize("make", [make_pipe, make_device, make_socket])
def test_what_is_no_file_is_never_read(refused, oct_folder, make):
    path = next(oct_folder.rglob("*.jpeg"))
    path.unlink()
    make(path)
    refused("oct", oct_folder, "not a regular file")


def test_a_cache_in_the_home_folder(tpl, tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.setenv("TENSORPROJECTION_CACHE", "~/caches/here")
    code, _, err = tpl("run", "oct", "--preset", "smoke", "--train-share", "0.01")
    assert code == 2  # after the images are made
    assert "train_share" in err
    assert list((tmp_path / "home/caches/here").glob("images-*"))
    assert not (tmp_path / "~").exists()
    monkeypatch.setenv("TENSORPROJECTION_CACHE", "~nobody-of-that-name/x")
    code, _, err = tpl("cache")
    assert (code, err.count("\n")) == (2, 1)
    assert "no home folder" in err
