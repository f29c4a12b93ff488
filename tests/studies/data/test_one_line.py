"""Data that no command can use: one line that says so, and exit code 2."""

import os
import tarfile

import numpy as np
import pytest

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


def hard_link(folder):
    with tarfile.open(folder / "a.tar", "w") as file:
        info = tarfile.TarInfo("train/CNV/CNV-1-1.jpeg")
        info.type, info.linkname = tarfile.LNKTYPE, "missing.jpeg"
        file.addfile(info)
    return folder / "a.tar"


def bomb(folder):
    info = tarfile.TarInfo("x.jpg")
    info.size = 257 * 10**6
    (folder / "a.tar").write_bytes(info.tobuf())  # what it says is enough
    return folder / "a.tar"


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
    "0-d class_names": (zero_d, "class_names of shape (classes,) and type str"),
    "a hard link": (hard_link, "is a link (to 'missing.jpeg')"),
    "a bomb": (bomb, "a file of more than 256.0 MB, which is the limit"),
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


def test_a_pipe_among_the_images_is_found_by_both(tpl, oct_folder):
    path = next(oct_folder.rglob("*.jpeg"))
    path.unlink()
    os.mkfifo(path)
    code, out, _ = tpl("data", "check", oct_folder)
    assert code == 1
    assert "a pipe, not a regular file" in " ".join(out.split())
    code, _, err = tpl("run", "oct", "--preset", "paper", "--data", oct_folder)
    assert code == 2
    assert "a pipe, not a regular file" in err
