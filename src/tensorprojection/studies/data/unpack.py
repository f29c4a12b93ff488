"""Unpacking an archive that may have been made to do harm."""

from __future__ import annotations

import lzma
import re
import shutil
import stat
import tarfile
import tempfile
import zipfile
import zlib
from pathlib import Path

from ..errors import StudyError

ARCHIVES = (".zip", ".tar", ".tar.gz", ".tgz", ".tar.bz2", ".tar.xz")


def is_archive(path: Path) -> bool:
    """By its name.

    >>> is_archive(Path("OCT2017.tar.gz")), is_archive(Path("oct_96.npz"))
    (True, False)
    """
    return path.name.lower().endswith(ARCHIVES)


def unpack(archive: Path, folder: Path) -> Path:
    """Unpack a zip or tar file into a new folder; nothing is left behind where it fails.

    Refused are archives with a member that would land outside of the folder, on any platform, with
    links that lead outside, with devices, or with more bytes than the disk has free.
    """
    if folder.exists():
        raise StudyError(f"Expected a new folder to unpack {archive} into, but {folder} exists.")
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        beside = Path(tempfile.mkdtemp(prefix=f"{folder.name}.", dir=folder.parent))
        try:
            if archive.name.lower().endswith(".zip"):
                _unzip(archive, beside)
            else:
                _untar(archive, beside)
            beside.rename(folder)
        finally:
            shutil.rmtree(beside, ignore_errors=True)
    except (
        zipfile.BadZipFile,
        tarfile.TarError,
        lzma.LZMAError,
        zlib.error,
        EOFError,
        NotImplementedError,  # a compression that zipfile does not know
        RuntimeError,  # encrypted
        ValueError,  # a name that no file can have
        OSError,
    ) as error:
        # tarfile lists on further lines every compression that it tried.
        reason = getattr(error, "strerror", None) or f"{error}\n".splitlines()[0].rstrip(" :.")
        raise StudyError(f"Could not unpack {archive}: {reason}.") from error
    return folder


def _unzip(archive: Path, folder: Path) -> None:
    with zipfile.ZipFile(archive) as file:
        for member in file.infolist():
            _check_name(archive, member.filename)
            # Only archives made on Unix say what a member is; 0 means an ordinary file.
            form = stat.S_IFMT(member.external_attr >> 16)
            if form not in (0, stat.S_IFREG, stat.S_IFDIR):
                raise _refused(archive, member.filename, "is a link or a device")
        _check_space(archive, sum(member.file_size for member in file.infolist()), folder)
        file.extractall(folder)


def _untar(archive: Path, folder: Path) -> None:
    with tarfile.open(archive) as file:
        members = file.getmembers()
        for member in members:
            _check_name(archive, member.name)
            if not (member.isreg() or member.isdir() or member.issym() or member.islnk()):
                raise _refused(archive, member.name, "is a device")
            if member.issym() or member.islnk():
                _check_link(archive, member)
        _check_space(archive, sum(member.size for member in members), folder)
        try:
            file.extractall(folder, members, filter="data")
        except tarfile.FilterError as error:
            raise _refused(archive, error.tarinfo.name, "leads outside") from error


def _check_name(archive: Path, name: str) -> None:
    """Both kinds of slash and drive letters count: what one system allows may harm on another."""
    parts = re.split(r"[/\\]", name)
    if ".." in parts or parts[0] == "" or re.match(r"[A-Za-z]:", name):
        raise _refused(archive, name, "would land outside")


def _check_link(archive: Path, member: tarfile.TarInfo) -> None:
    target = member.linkname
    if re.match(r"[/\\]|[A-Za-z]:", target):
        raise _refused(archive, member.name, "leads outside")
    # A symbolic link is read from its own place, a hard link from the archive's top.
    inside = len(Path(member.name).parts) - 1 if member.issym() else 0
    for part in re.split(r"[/\\]", target):
        inside += -1 if part == ".." else part not in ("", ".")
        if inside < 0:
            raise _refused(archive, member.name, "leads outside")


def _check_space(archive: Path, needed: int, folder: Path) -> None:
    free = shutil.disk_usage(folder).free
    if needed > free:
        raise StudyError(
            f"Expected {needed / 1e9:.1f} GB free to unpack {archive}, got {free / 1e9:.1f} GB."
        )


def _refused(archive: Path, name: str, why: str) -> StudyError:
    return StudyError(f"Refused to unpack {archive}: its member {name!r} {why}.")
