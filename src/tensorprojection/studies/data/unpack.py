"""Unpacking an archive that may be damaged, or have been made to do harm."""

from __future__ import annotations

import bz2
import gzip
import lzma
import re
import secrets
import shutil
import stat
import tarfile
import zipfile
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, cast

from ..errors import StudyError
from .regular import open_regular

ARCHIVES = (".zip", ".tar", ".tar.gz", ".tgz", ".tar.bz2", ".tar.xz")
CHUNK = 2**20
MOST_PADDING = 2**26  # bytes of zeros behind a tar's end
LONGEST_NAME, DEEPEST_NAME = 1024, 32  # characters, and folders


@dataclass(frozen=True)
class Limits:
    """How much an archive may hold. Kaggle's largest of the three has 170,000 files and 12 GB."""

    files: int = 500_000  # and folders
    file_bytes: int = 256 * 10**6
    total_bytes: int = 32 * 10**9
    # Images hardly shrink in an archive, so one that grows much was made to fill the disk.
    growth: int = 100
    always: int = 256 * 10**6  # the sum that is allowed whatever the growth

    def times(self, factor: float) -> Limits:
        """Raised by ```unpack_limits```."""
        if not 0 < factor < 1e6:  # which NaN is not
            raise StudyError(f"Expected `unpack_limits` above 0 and below a million, got {factor}.")
        raised = (self.files, self.file_bytes, self.total_bytes, self.growth, self.always)
        return type(self)(*(int(limit * factor) for limit in raised))

    def total(self, archive_bytes: int) -> int:
        return min(self.total_bytes, max(self.always, self.growth * archive_bytes))


def is_archive(path: Path) -> bool:
    """By its name.

    >>> is_archive(Path("OCT2017.tar.gz")), is_archive(Path("oct_96.npz"))
    (True, False)
    """
    return path.name.lower().endswith(ARCHIVES)


def unpack(archive: Path, folder: Path, limits: Limits | None = None) -> Path:
    """Unpack a zip or tar file into a new folder; nothing is left behind where it fails.

    Only regular files are written, by this module and under names that it has checked: every link,
    device and odd name is refused. So are archives of more files or bytes than the limits, or than
    the disk has free. All is read to the end, where the checksums are.
    """
    if folder.exists():
        raise StudyError(f"Expected a new folder to unpack {archive} into, but {folder} exists.")
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        beside = folder.with_name(f"{folder.name}.{secrets.token_hex(8)}.part")
        beside.mkdir()
        try:
            with open_regular(archive) as file:
                target = _Target(archive, beside, limits or Limits())
                if archive.name.lower().endswith(".zip"):
                    _unzip(file, target)
                else:
                    _untar(file, target)
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
        RuntimeError,  # encrypted, or headers nested without end
        ValueError,  # a name that no file can have
        OSError,
    ) as error:
        reason = getattr(error, "strerror", None) or f"{error}\n".splitlines()[0].rstrip(" :.")
        raise StudyError(
            f"Could not unpack {archive}: {reason or type(error).__name__}. If it is damaged, "
            "fetch it again."
        ) from error
    return folder


class _Target:
    """The folder that files are written into, and how much there is in it."""

    def __init__(self, archive: Path, folder: Path, limits: Limits) -> None:
        self.archive, self.folder, self.limits = archive, folder, limits
        self.most = limits.total(archive.stat().st_size)
        self.files = self.bytes = 0

    def expect(self, files: int, total: int, largest: int) -> None:
        """What the archive says of itself, before the first file is written."""
        if files > self.limits.files:
            raise self._too_much(f"more than {self.limits.files:,} files and folders")
        if largest > self.limits.file_bytes:
            raise self._too_much(f"a file of more than {_mb(self.limits.file_bytes)}")
        if total > self.most:
            raise self._too_much(f"more than {_mb(self.most)}")
        free = shutil.disk_usage(self.folder).free
        if total > free:
            raise StudyError(
                f"Expected {total / 1e9:.1f} GB free to unpack {self.archive}, got "
                f"{free / 1e9:.1f} GB."
            )

    def add_folder(self, name: str) -> None:
        self.expect(self.files + 1, self.bytes, 0)
        self.files += 1
        self._place(name).mkdir(parents=True, exist_ok=True)

    def add_file(self, name: str, content: IO[bytes], size: int) -> None:
        """Write ``size`` bytes of ``content``, never more than the limits allow."""
        self.expect(self.files + 1, self.bytes + size, size)
        self.files += 1
        place = self._place(name)
        place.parent.mkdir(parents=True, exist_ok=True)
        try:
            file = open(place, "xb")  # noqa: SIM115
        except FileExistsError:
            raise self.refused(name, "is there twice") from None
        with file:
            left = size
            while left:
                chunk = content.read(min(left, CHUNK))
                if not chunk:
                    raise EOFError(f"{name!r} ends early")
                file.write(chunk)
                left -= len(chunk)
        self.bytes += size

    def refused(self, name: str, why: str) -> StudyError:
        return StudyError(f"Refused to unpack {self.archive}: its member {name!r} {why}.")

    def _place(self, name: str) -> Path:
        """Both kinds of slash and drive letters count: what one system allows may harm another."""
        parts = re.split(r"[/\\]", name.rstrip("/"))
        if ".." in parts or parts[0] == "" or re.match(r"[A-Za-z]:", name):
            raise self.refused(name, "would land outside")
        if len(name) > LONGEST_NAME or len(parts) > DEEPEST_NAME:
            raise self.refused(name[:60], f"has a name of {len(name)} characters")
        if "\\" in name or any(ord(c) < 32 or 0xD800 <= ord(c) < 0xE000 for c in name):
            raise self.refused(name, "has a name that is not plain text with / between folders")
        return self.folder.joinpath(*parts)

    def _too_much(self, what: str) -> StudyError:
        return StudyError(
            f"Refused to unpack {self.archive}, of {_mb(self.archive.stat().st_size)}: it holds "
            f"{what}, which is the limit. Where that is right, allow twice as much with "
            "`unpack_limits 2`."
        )


def _unzip(raw: IO[bytes], target: _Target) -> None:
    with zipfile.ZipFile(raw) as file:
        members = file.infolist()
        sizes = [member.file_size for member in members]
        target.expect(len(members), sum(sizes), max(sizes, default=0))
        for member in members:
            # A damaged length makes the next members a part of this one's comment.
            if b"PK\x01\x02" in member.comment or b"PK\x01\x02" in member.extra:
                raise zipfile.BadZipFile(f"the entry of {member.filename!r} is damaged")
            # Only archives made on Unix say what a member is; 0 means an ordinary file.
            form = stat.S_IFMT(member.external_attr >> 16)
            if form not in (0, stat.S_IFDIR if member.is_dir() else stat.S_IFREG):
                raise target.refused(member.filename, "is a link or a device")
            if member.is_dir():
                target.add_folder(member.filename)
                continue
            with file.open(member) as content:
                target.add_file(member.filename, content, member.file_size)
                content.read(1)  # to the end, where the checksum is compared


def _untar(raw: IO[bytes], target: _Target) -> None:
    with _plain(raw) as plain:
        stream = _Forward(plain)
        with tarfile.open(fileobj=cast(Any, stream), mode="r:") as file:
            while (member := file.next()) is not None:
                cast(Any, file).members = []  # or it keeps them all
                if member.isdir():
                    target.add_folder(member.name)
                elif member.type in (tarfile.REGTYPE, tarfile.AREGTYPE) and not member.sparse:
                    target.add_file(member.name, cast(Any, stream), member.size)
                else:
                    raise target.refused(member.name, _odd(member))
        # tarfile takes a damaged header for the end; the real end is a block of zeros.
        if stream.last != bytes(tarfile.BLOCKSIZE):
            raise tarfile.ReadError("a header is damaged, or the end is missing")
        rest = 0
        while chunk := stream.read(CHUNK):  # to the trailer, where the checksum is compared
            rest += len(chunk)
            if chunk.strip(b"\0") or rest > MOST_PADDING:
                raise tarfile.ReadError("something follows its end")


def _odd(member: tarfile.TarInfo) -> str:
    if member.issym() or member.islnk():
        return f"is a link (to {member.linkname!r}), and only files are unpacked"
    if member.ischr() or member.isblk() or member.isfifo():
        return "is a device, and only files are unpacked"
    return "is not a regular file, and only files are unpacked"


@contextmanager
def _plain(raw: IO[bytes]) -> Iterator[IO[bytes]]:
    """What is compressed in the file, by its first bytes."""
    magic = raw.read(6)
    raw.seek(0)
    if magic.startswith(b"\x1f\x8b"):
        with gzip.GzipFile(fileobj=raw) as file:
            yield cast(IO[bytes], file)
    elif magic.startswith(b"BZh"):
        with bz2.BZ2File(raw) as file:
            yield file
    elif magic == b"\xfd7zXZ\x00":
        with lzma.LZMAFile(raw) as file:
            yield file
    else:
        yield raw


class _Forward:
    """A stream for tarfile that never goes back, but for the one byte that tarfile looks at again.

    Going back in a compressed stream would mean to decompress it from its start.
    """

    def __init__(self, stream: IO[bytes]) -> None:
        self.last = b""  # what the last read gave
        self._stream, self._at, self._again = stream, 0, b""

    def tell(self) -> int:
        return self._at - len(self._again)

    def seek(self, position: int) -> None:
        if position == self._at - 1 and self.last:
            self._again = self.last[-1:]
            return
        if position < self.tell():
            raise tarfile.ReadError("its headers lead back")
        while (left := position - self.tell()) > 0:
            if not self.read(min(left, CHUNK)):
                return

    def read(self, size: int) -> bytes:
        if size > CHUNK:
            raise tarfile.ReadError(f"a header of {size} bytes")
        if self._again:
            byte, self._again = self._again, b""
            return byte if size == 1 else byte + self._more(size - 1)
        return self._more(size)

    def _more(self, size: int) -> bytes:
        found = self._stream.read(size)
        self._at += len(found)
        self.last = found
        return found


def _mb(size: int) -> str:
    return f"{size / 1e6:,.1f} MB"
