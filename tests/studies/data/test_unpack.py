import io
import os
import stat
import tarfile
import zipfile

import pytest

from tensorprojection.studies.data.unpack import unpack
from tensorprojection.studies.errors import StudyError

OUTSIDE = [
    "../evil.txt",
    "a/../../evil.txt",
    "/outside/evil.txt",
    "..\\evil.txt",
    "a\\..\\..\\evil.txt",
    "C:\\evil.txt",
    "c:evil.txt",
    "\\\\host\\share\\evil.txt",
]


def zipped(path, *names, attributes=0):
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as file:
        for name in names:
            info = zipfile.ZipInfo(name)
            info.external_attr = attributes
            file.writestr(info, b"content")
    return path


def tarred(path, *members):
    with tarfile.open(path, "w:gz" if path.name.endswith("gz") else "w") as file:
        for member in members:
            info = tarfile.TarInfo(member) if isinstance(member, str) else member
            if info.isreg():
                info.size = 7
            file.addfile(info, io.BytesIO(b"content"))
    return path


def special(name, kind, target=""):
    info = tarfile.TarInfo(name)
    info.type = kind
    info.linkname = target
    return info


def files(folder):
    return sorted(path.relative_to(folder).as_posix() for path in folder.rglob("*.*"))


def refused(archive, tmp_path, message):
    before = sorted(tmp_path.rglob("*"))
    with pytest.raises(StudyError, match=message) as caught:
        unpack(archive, tmp_path / "out")
    assert "\n" not in str(caught.value)
    assert sorted(tmp_path.rglob("*")) == before  # nothing is left behind, inside or outside


@pytest.mark.parametrize("name", ["a.zip", "a.tar", "a.tar.gz", "a.tgz"])
def test_plain_archives(tmp_path, name):
    make = zipped if name.endswith("zip") else tarred
    archive = make(tmp_path / name, "OCT2017 /train/CNV/CNV-1-1.jpeg", "b..c.txt")
    folder = unpack(archive, tmp_path / "new" / "out")
    assert files(folder) == ["OCT2017 /train/CNV/CNV-1-1.jpeg", "b..c.txt"]
    assert (folder / "b..c.txt").read_bytes() == b"content"
    assert os.listdir(tmp_path / "new") == ["out"]


@pytest.mark.parametrize("name", OUTSIDE)
@pytest.mark.parametrize("make", [zipped, tarred])
def test_members_that_would_land_outside(tmp_path, make, name):
    archive = make(tmp_path / ("a.zip" if make is zipped else "a.tar"), "good.txt", name)
    refused(archive, tmp_path, "Refused to unpack .* would land outside")


@pytest.mark.parametrize("kind", [stat.S_IFLNK, stat.S_IFCHR, stat.S_IFIFO])
def test_links_and_devices_in_a_zip(tmp_path, kind):
    archive = zipped(tmp_path / "a.zip", "x", attributes=(kind | 0o644) << 16)
    refused(archive, tmp_path, "'x' is a link or a device")


@pytest.mark.parametrize("kind", [tarfile.CHRTYPE, tarfile.BLKTYPE, tarfile.FIFOTYPE])
def test_devices_in_a_tar(tmp_path, kind):
    refused(tarred(tmp_path / "a.tar", special("x", kind)), tmp_path, "'x' is a device")


@pytest.mark.parametrize("kind", [tarfile.SYMTYPE, tarfile.LNKTYPE])
@pytest.mark.parametrize("target", ["/etc/passwd", "../../x", "..\\..\\x", "D:\\x", "a/../../../x"])
def test_links_that_lead_outside(tmp_path, kind, target):
    archive = tarred(tmp_path / "a.tar", special("d/link", kind, target))
    refused(archive, tmp_path, "'d/link' leads outside")


def test_links_through_links(tmp_path):
    """Each link alone stays inside by its text; together they leave."""
    archive = tarred(
        tmp_path / "a.tar",
        special("d", tarfile.DIRTYPE),
        special("d/up", tarfile.SYMTYPE, ".."),
        special("far", tarfile.SYMTYPE, "d/up/../.."),
        "far/evil.txt",
    )
    refused(archive, tmp_path, "outside")


def test_links_that_stay_inside(tmp_path):
    archive = tarred(tmp_path / "a.tar", "a.txt", special("d/b.txt", tarfile.SYMTYPE, "../a.txt"))
    folder = unpack(archive, tmp_path / "out")
    assert (folder / "d/b.txt").read_bytes() == b"content"


@pytest.mark.parametrize("make", [zipped, tarred])
def test_more_than_the_disk_has(tmp_path, make, monkeypatch):
    archive = make(tmp_path / ("a.zip" if make is zipped else "a.tar"), "x.txt", "y.txt")
    usage = type("Usage", (), {"free": 13})
    monkeypatch.setattr("shutil.disk_usage", lambda path: usage)
    refused(archive, tmp_path, "GB free to unpack")


def test_damaged_and_encrypted(tmp_path):
    for name in ("a.zip", "a.tar", "a.tar.gz"):
        (tmp_path / name).write_bytes(b"nonsense" * 100)
        refused(tmp_path / name, tmp_path, "Could not unpack")
    whole = tarred(tmp_path / "b.tar.gz", "x.txt").read_bytes()
    (tmp_path / "b.tar.gz").write_bytes(whole[:-20])
    refused(tmp_path / "b.tar.gz", tmp_path, "Could not unpack")
    content = bytearray(zipped(tmp_path / "c.zip", "x").read_bytes())
    content[6] |= 1  # the flags that say "encrypted", in both places
    content[content.index(b"PK\x01\x02") + 8] |= 1
    (tmp_path / "c.zip").write_bytes(content)
    refused(tmp_path / "c.zip", tmp_path, "encrypted")


def test_the_folder_is_new(tmp_path):
    (tmp_path / "out").mkdir()
    refused(zipped(tmp_path / "a.zip", "x.txt"), tmp_path, "Expected a new folder")
