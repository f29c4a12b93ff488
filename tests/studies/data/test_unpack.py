import io
import os
import random
import shutil
import stat
import tarfile
import zipfile

import pytest

from tensorprojection.studies.data.unpack import Limits, unpack
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
@pytest.mark.parametrize("target", ["/etc/passwd", "../../x", "a.txt", "missing.txt"])
def test_links(tmp_path, kind, target):
    """Also those that stay inside: no data set has them."""
    archive = tarred(tmp_path / "a.tar", "a.txt", special("d/link", kind, target))
    refused(archive, tmp_path, "'d/link' is a link")


def test_links_that_leave_together(tmp_path):
    """The chain of CVE-2025-4517: folders so deep that resolving them gives up, then out."""
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "file.txt").write_text("mine")
    deep, members, step = "d" * 247, [], ""
    for letter in "abcdefghijklmnop":
        members.append(special(f"{step}{deep}", tarfile.DIRTYPE))
        members.append(special(f"{step}{letter}", tarfile.SYMTYPE, deep))
        step = f"{step}{deep}/"
    link = "/".join("abcdefghijklmnop") + "/" + "l" * 254
    members += [
        special(link, tarfile.SYMTYPE, "../" * 16),
        special("escape", tarfile.SYMTYPE, f"{link}/../outside"),
        special("target", tarfile.LNKTYPE, "escape/file.txt"),
        "target",
    ]
    refused(tarred(tmp_path / "a.tar", *members), tmp_path, "is a link|has a name of")
    assert (outside / "file.txt").read_text() == "mine"


def test_sparse_files(tmp_path):
    """Of these the archive has fewer bytes than the file."""
    info = special("x.txt", tarfile.GNUTYPE_SPARSE)
    refused(tarred(tmp_path / "a.tar", info), tmp_path, "Refused|Could not unpack")


@pytest.mark.parametrize("make", [zipped, tarred])
@pytest.mark.parametrize("name", ["a\\b.txt", "a\nb.txt", "a\x1b[2J.txt", "x/" * 40, "y" * 2000])
def test_odd_names(tmp_path, make, name):
    archive = make(tmp_path / ("a.zip" if make is zipped else "a.tar"), name)
    refused(archive, tmp_path, "has a name (that is not plain text|of .* characters)")


def test_a_name_that_is_not_utf_8(tmp_path):
    refused(tarred(tmp_path / "a.tar", "a\udcff.txt"), tmp_path, "not plain text")


@pytest.mark.parametrize("make", [zipped, tarred])
@pytest.mark.filterwarnings("ignore:Duplicate name")
def test_a_member_that_is_there_twice(tmp_path, make):
    archive = make(tmp_path / ("a.zip" if make is zipped else "a.tar"), "x.txt", "x.txt")
    refused(archive, tmp_path, "'x.txt' is there twice")


# Limits


@pytest.mark.parametrize("make", [zipped, tarred])
@pytest.mark.parametrize(
    ("limits", "message"),
    [
        (Limits(files=2), "more than 2 files and folders"),
        (Limits(file_bytes=6), "a file of more than 0.0 MB"),
        (Limits(total_bytes=20), "more than 0.0 MB"),
        (Limits(growth=0, always=20), "more than 0.0 MB"),
    ],
)
def test_limits(tmp_path, make, limits, message):
    archive = make(tmp_path / ("a.zip" if make is zipped else "a.tar"), "x.txt", "y.txt", "z.txt")
    before = sorted(tmp_path.rglob("*"))
    with pytest.raises(StudyError, match=f"it holds {message}, which is the limit.*`unpack_limits"):
        unpack(archive, tmp_path / "out", limits)
    assert sorted(tmp_path.rglob("*")) == before
    assert len(files(unpack(archive, tmp_path / "out", limits.times(1.5)))) == 3


def test_a_bomb(tmp_path):
    """1 GB of zeros in 1 MB: images do not shrink like that."""
    path = tmp_path / "bomb.zip"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as file:
        for i in range(30):
            file.writestr(f"{i}.jpg", bytes(10**7))
    refused(path, tmp_path, r"bomb.zip, of 0\.3 MB: it holds more than 256.0 MB")


def test_a_zip_that_says_less_than_it_holds(tmp_path):
    content = bytearray(zipped(tmp_path / "a.zip", "x.txt").read_bytes())
    entry = content.index(b"PK\x01\x02")
    content[entry + 24 : entry + 28] = (3).to_bytes(4, "little")  # of 7 bytes
    (tmp_path / "a.zip").write_bytes(content)
    refused(tmp_path / "a.zip", tmp_path, "Could not unpack .*CRC")


# Damage


def packed(path):
    """Files whose content does not shrink, so that most of the archive is theirs."""
    content = random.Random(0).randbytes
    if path.name.endswith(".zip"):
        with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as file:
            for i in range(3):
                file.writestr(f"d/{i}.jpg", content(100))
    else:
        with tarfile.open(path, f"w:{path.suffix[1:]}") as file:
            for i in range(3):
                info = tarfile.TarInfo(f"d/{i}.jpg")
                info.size = 100
                file.addfile(info, io.BytesIO(content(100)))
    return path


@pytest.mark.parametrize("name", ["a.zip", "a.tar.gz", "a.tar.bz2", "a.tar.xz"])
def test_no_single_bit_changes_what_is_unpacked(tmp_path, name):
    """Either it is found, or it lies where it does no harm, such as in a header's time."""
    archive = packed(tmp_path / name)
    whole = archive.read_bytes()

    def unpacked():
        place = tmp_path / "out"
        unpack(archive, place)
        found = {path.name: path.read_bytes() for path in place.rglob("*.*")}
        shutil.rmtree(place)
        return found

    right, found = unpacked(), 0
    for bit in range(0, 8 * len(whole), 19):
        flipped = bytearray(whole)
        flipped[bit // 8] ^= 1 << bit % 8
        archive.write_bytes(flipped)
        try:
            assert unpacked() == right, f"bit {bit} changed what came out"
        except StudyError:
            found += 1
    assert found > 0.5 * len(range(0, 8 * len(whole), 19))


@pytest.mark.parametrize("field", [30, 32])  # the lengths of a member's extra field and comment
def test_a_length_that_swallows_the_next_member(tmp_path, field):
    content = bytearray(packed(tmp_path / "a.zip").read_bytes())
    first = content.index(b"PK\x01\x02")
    second = content.index(b"PK\x01\x02", first + 1)
    third = content.index(b"PK\x01\x02", second + 1)
    content[first + field : first + field + 2] = (third - second).to_bytes(2, "little")
    (tmp_path / "a.zip").write_bytes(content)
    refused(tmp_path / "a.zip", tmp_path, "Could not unpack")


@pytest.mark.parametrize("name", ["a.tar", "a.tar.gz", "a.tar.bz2", "a.tar.xz", "a.zip"])
def test_archives_cut_short(tmp_path, name):
    whole = packed(tmp_path / name).read_bytes()
    ends = {len(whole) // k for k in (1, 2, 3, 5)} - {len(whole)} | {len(whole) - 9}
    if name == "a.tar":  # between two members, and behind the last; the rest is padding
        ends = {1024, 2048, 3072}
    for end in ends:
        (tmp_path / name).write_bytes(whole[:end])
        refused(tmp_path / name, tmp_path, "Could not unpack")


def test_a_damaged_header_is_not_the_end_of_a_tar(tmp_path):
    content = bytearray(packed(tmp_path / "a.tar").read_bytes())
    content[1024 + 3] ^= 1  # in the second member's name
    (tmp_path / "a.tar").write_bytes(content)
    refused(tmp_path / "a.tar", tmp_path, "a header is damaged")


def test_what_follows_the_end_of_a_tar(tmp_path):
    first = packed(tmp_path / "a.tar").read_bytes()
    (tmp_path / "a.tar").write_bytes(first + first)
    refused(tmp_path / "a.tar", tmp_path, "something follows its end")


@pytest.mark.parametrize("size", [0, 1, 511, 512, 513, 2**14, 2**14 + 512])
@pytest.mark.parametrize("kind", ["tar", "tar.gz", "tar.bz2", "tar.xz"])
def test_members_of_any_size(tmp_path, size, kind, monkeypatch):
    monkeypatch.setattr("tensorprojection.studies.data.unpack.CHUNK", 2**14)
    path, content = tmp_path / f"a.{kind}", random.Random(size).randbytes(size)
    with tarfile.open(path, "w" if kind == "tar" else f"w:{path.suffix[1:]}") as file:
        for name in ("first.jpg", "n" * 150 + ".jpg", "last.jpg"):  # the second needs two headers
            info = tarfile.TarInfo(name)
            info.size = size
            file.addfile(info, io.BytesIO(content))
    folder = unpack(path, tmp_path / "out")
    assert [place.read_bytes() for place in folder.iterdir()] == [content] * 3


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
