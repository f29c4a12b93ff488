"""What is in the cache: listed, or removed to free the space."""

from __future__ import annotations

import math
import os
import re
import shutil
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from filelock import FileLock, Timeout
from rich import box
from rich.console import Group, RenderableType
from rich.markup import escape
from rich.table import Table
from rich.text import Text

from ..errors import StudyError
from .cache import KEY, about, cache_folder, discard
from .in_use import alone

# Only what has such a name belongs to the cache: its folder may hold other things as well.
NAME = re.compile(r"((images|copies|features|unpacked)-[0-9a-f]{16})(\.[0-9a-f]+\.part|\.work)?")
DAY = 24 * 60 * 60


@dataclass(frozen=True)
class Entry:
    """A folder of the cache."""

    path: Path
    kind: str  # images, copies, features, unpacked; "unfinished" for what is not complete
    study: str  # empty where it is not known
    source: str
    bytes: int
    used: float  # when, in seconds since 1970
    place: Path  # the complete folder's path, which is its own unless it is unfinished

    @property
    def name(self) -> str:
        return self.path.name


def entries(root: Path | None = None) -> list[Entry]:
    """All folders of the cache, the last used first."""
    root = cache_folder() if root is None else root
    try:
        names = sorted(os.listdir(root))
    except FileNotFoundError:
        return []
    except OSError as error:
        raise StudyError(f"Could not read the cache {root}: {error.strerror}.") from error
    found = []
    for name in names:
        match = NAME.fullmatch(name)
        path = root / name
        if match and path.is_dir() and not path.is_symlink():
            found.append(_entry(path, "unfinished" if match[3] else match[2], root / match[1]))
    return sorted(found, key=lambda entry: -entry.used)


def chosen(
    found: Iterable[Entry], study: str | None = None, older_than: float | None = None
) -> list[Entry]:
    """The entries of a study, or all; those not used for this many days, or all."""
    if older_than is not None and not (math.isfinite(older_than) and older_than >= 0):
        raise StudyError(f"Expected a number of days of 0 or more, got {older_than}.")
    latest = math.inf if older_than is None else time.time() - older_than * DAY
    return [e for e in found if e.used <= latest and (study is None or e.study == study)]


def clear(found: Iterable[Entry]) -> tuple[list[Entry], list[tuple[Entry, str]]]:
    """Remove these; which were, and which were not and why."""
    removed, kept = [], []
    for entry in found:
        try:
            why = _remove(entry)
        except OSError as error:
            why = f"could not be removed ({error.strerror or error})"
        if why is None:
            removed.append(entry)
        else:
            kept.append((entry, why))
    return removed, kept


def render(found: Sequence[Entry]) -> RenderableType:
    """The list for a terminal."""
    where = f"{cache_folder()}: {gigabytes(sum(entry.bytes for entry in found))}"
    if not found:
        return Text(f"{where}, nothing is kept.")
    table = Table(box=box.SIMPLE_HEAD)
    for column in ("folder", "kind", "study"):
        table.add_column(column)
    table.add_column("size", justify="right")
    table.add_column("last used", justify="right")
    table.add_column("made from", overflow="fold")
    for e in found:
        row = (e.name, e.kind, e.study or "–", gigabytes(e.bytes), _age(e.used), e.source or "–")
        table.add_row(*map(escape, row))
    return Group(Text(where), table)


def gigabytes(size: int) -> str:
    """
    >>> gigabytes(1_234_000_000), gigabytes(5_000)
    ('1.23 GB', '0.0 MB')
    """
    return f"{size / 1e9:.2f} GB" if size >= 1e9 else f"{size / 1e6:.1f} MB"


def _entry(path: Path, kind: str, place: Path) -> Entry:
    told = about(path)
    total = 0
    for folder, _, files in os.walk(path):
        for name in files:
            try:
                total += os.lstat(os.path.join(folder, name)).st_size
            except OSError:  # removed meanwhile
                continue
    source = told.get("source", "")
    return Entry(path, kind, told.get("study", ""), source, total, _used(path), place)


def _used(path: Path) -> float:
    for seen in (path / KEY, path):
        try:
            return seen.stat().st_mtime
        except OSError:
            continue
    return time.time()


def _remove(entry: Entry) -> str | None:
    """Remove it; returns the reason where it was not removed."""
    try:
        # The lock of a process that makes the folder: so it does not appear meanwhile.
        with FileLock(f"{entry.place}.lock", timeout=0):
            if entry.kind == "unfinished":
                shutil.rmtree(entry.path)
                return None
            with alone(entry.path) as free:
                if not free:
                    return "a run is using it"
                discard(entry.path)
                return None
    except Timeout:
        return "it is being made"


def _age(used: float) -> str:
    days = max(0.0, time.time() - used) / DAY
    return f"{days:.0f} days ago" if days >= 1 else f"{24 * days:.1f} hours ago"
