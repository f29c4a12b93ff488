"""Checking a data set before it is used: counts, sizes, damage, duplicates, leaks."""

from __future__ import annotations

import dataclasses
import hashlib
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
from PIL import Image
from rich import box
from rich.console import Group, RenderableType
from rich.markup import escape
from rich.table import Table
from rich.text import Text

from ..errors import StudyError
from .decode import UnreadableError, binary, open_image, read, to_mode
from .folders import NOTHING, DatasetFiles, File, IgnoredFiles, Item, find, guess
from .kinds import ImageKind, Mode
from .npz import facts, image_blocks, mask_blocks
from .npz_arrays import NpzArrays
from .regular import what_is
from .sources import unpacked
from .threads import Progress, in_threads
from .unpack import Limits, is_archive

UNDIVIDED = "all"
SHOWN = 10  # names on a line
T = TypeVar("T")


@dataclass(frozen=True)
class Duplicate:
    """Images with the same content, byte by byte."""

    names: tuple[str, ...]
    classes: tuple[str, ...]  # each once
    parts: tuple[str, ...]


@dataclass(frozen=True)
class Report:
    """What was found. ``problems`` say what is wrong; ``notes`` what is worth knowing."""

    path: str
    study: str
    images: int
    classes: dict[str, dict[str, int]]  # class → part → how many images
    sizes: dict[str, int]  # "width × height" → how many images, most common first
    patients: int | None = None
    missing_classes: tuple[str, ...] = ()
    unreadable: tuple[str, ...] = ()
    duplicates: tuple[Duplicate, ...] = ()
    patients_on_both_sides: tuple[int | str, ...] = ()  # of train against val and test
    masks_missing: tuple[str, ...] = ()
    masks_of_other_size: tuple[str, ...] = ()
    masks_without_image: tuple[str, ...] = ()
    masks_empty: tuple[str, ...] = ()
    ignored: IgnoredFiles = NOTHING

    @property
    def problems(self) -> list[str]:
        across = [d for d in self.duplicates if len(d.parts) > 1]
        contradicting = [d for d in self.duplicates if len(d.classes) > 1]
        return _lines(
            ("classes without an image", self.missing_classes),
            ("unreadable files", self.unreadable),
            ("images in more than one part", _joined(across)),
            ("images under more than one label", _joined(contradicting)),
            ("patients both in train and outside of it", self.patients_on_both_sides),
            ("images without a mask", self.masks_missing),
            ("masks of another size than their image", self.masks_of_other_size),
        )

    @property
    def notes(self) -> list[str]:
        plain = [d for d in self.duplicates if len(d.parts) < 2 and len(d.classes) < 2]
        lines = _lines(
            ("images stored more than once", _joined(plain)),
            ("empty masks", self.masks_empty),
            ("masks without an image", self.masks_without_image),
        )
        return [*lines, str(self.ignored)] if str(self.ignored) else lines

    @property
    def ok(self) -> bool:
        return not self.problems

    def as_dict(self) -> dict[str, Any]:
        """All of it, as JSON can write it."""
        return {
            **dataclasses.asdict(self),
            "problems": self.problems,
            "notes": self.notes,
            "ok": self.ok,
        }


def check(
    path: str | Path,
    kinds: Sequence[ImageKind],
    *,
    workers: int | None = None,
    cache: Path | None = None,
    unpack_limits: float = 1,
    progress: Progress | None = None,
) -> Report:
    """Read every image of a folder, an archive or an ``.npz``; of several kinds, guess which.

    The rules are those of a run: what a run refuses is an error here, or one of the problems.

    Args:
        path: as :func:`~.sources.open_images` takes it.
        kinds: what they may be.
        workers: threads that decode; default one per core.
        cache: where an archive is unpacked; default :func:`~.cache.cache_folder`.
        unpack_limits: factor on the limits for what an archive may hold.
        progress: called while files of a folder are read.
    """
    path = Path(path)
    limits = Limits().times(unpack_limits)
    kind = what_is(path)
    if kind is None:
        raise StudyError(f"Expected a folder, an .npz, a zip or a tar file, got {path}: not there.")
    if kind == "file" and path.suffix.lower() == ".npz":
        with NpzArrays(path) as file:
            return _npz(file, kinds)
    if kind != "folder" and not (kind == "file" and is_archive(path)):
        raise StudyError(f"Expected a folder, an .npz, a zip or a tar file, got {path}.")
    folder = path if kind == "folder" else unpacked(path, cache, limits)
    found = find(kinds[0], folder) if len(kinds) == 1 else guess(folder, kinds)
    return _folder(str(path), found, workers, progress)


def render(report: Report) -> RenderableType:
    """The report for a terminal."""
    parts = sorted({part for counts in report.classes.values() for part in counts}, key=_part_order)
    table = Table(box=box.SIMPLE_HEAD, title=None)
    table.add_column("class")
    for part in parts:
        table.add_column(part, justify="right")
    for name, counts in report.classes.items():
        table.add_row(escape(name), *(str(counts.get(part, 0)) for part in parts))
    sizes = [f"{size} ({count})" for size, count in report.sizes.items()]
    patients = "" if report.patients is None else f", {report.patients} patients"
    lines = [f"{report.path}: {report.study}, {report.images} images{patients}"]
    after = [f"sizes: {_some(sizes)}", *report.notes, *(f"Problem: {p}" for p in report.problems)]
    after += ["No problem found."] if report.ok else []
    return Group(Text("\n".join(lines)), table, Text("\n".join(after)))


# Folders


class _Seen:
    """What reading one item gave."""

    def __init__(self) -> None:
        self.digest: bytes | None = None
        self.size: tuple[int, int] | None = None
        self.unreadable: list[str] = []
        self.other_size = False
        self.empty = False


def _folder(
    path: str, found: DatasetFiles, workers: int | None, progress: Progress | None
) -> Report:
    kind = found.kind
    items = found.items
    seen = [_Seen() for _ in items]
    in_threads(
        lambda row: _look(items[row], seen[row], kind.mode), len(items), workers, "files", progress
    )

    def named(rows: Iterable[int]) -> tuple[str, ...]:
        return tuple(items[row].image.name for row in rows)

    rows = range(len(items))
    labels = [None if item.label is None else kind.class_names[item.label] for item in items]
    return _report(
        path=path,
        study=found.kind.name,
        names=[item.image.name for item in items],
        labels=labels,
        class_names=() if kind.masks else kind.class_names,
        parts=[item.part for item in items],
        groups=[item.group for item in items],
        digests=[s.digest for s in seen],
        sizes=[s.size for s in seen],
        missing_classes=found.missing_classes(),
        unreadable=tuple(line for s in seen for line in s.unreadable),
        masks_missing=named(row for row in rows if kind.masks and items[row].mask is None),
        masks_of_other_size=named(row for row in rows if seen[row].other_size),
        masks_without_image=found.stray_masks,
        masks_empty=named(row for row in rows if seen[row].empty),
        ignored=found.ignored,
    )


def _look(item: Item, seen: _Seen, mode: Mode) -> None:
    """The steps of decoding, one by one."""

    def step(file: File, do: Callable[[], T]) -> T | None:
        try:
            return do()
        except UnreadableError as error:
            seen.unreadable.append(f"{file.name} {error}")
            return None

    def picture() -> Image.Image:
        content = read(item.image)
        if content:
            seen.digest = hashlib.blake2b(content, digest_size=16).digest()
        image = open_image(content)
        to_mode(image, mode)
        return image

    image = step(item.image, picture)
    if image is not None:
        seen.size = image.size
    if (file := item.mask) is None:
        return
    mask = step(file, lambda: open_image(read(file)))
    if mask is None:
        return
    seen.other_size = image is not None and mask.size != image.size
    ones = step(file, lambda: binary(mask))
    seen.empty = ones is not None and ones.getbbox() is None


# npz


def _npz(file: NpzArrays, kinds: Sequence[ImageKind]) -> Report:
    known = facts(file, kinds)
    names = [f"row {i}" for i in range(known.count)] if known.names is None else list(known.names)
    labels = known.labels
    empty: list[str] = []
    if known.kind.masks:
        for start, block in mask_blocks(file):
            rows = np.flatnonzero(~block.any(axis=(1, 2)))
            empty += [str(names[start + row]) for row in rows]
    digests = [
        hashlib.blake2b(row.tobytes(), digest_size=16).digest()
        for _, block in image_blocks(file, known)
        for row in block
    ]
    return _report(
        path=str(file.path),
        study=known.kind.name,
        names=[str(name) for name in names],
        labels=[None] * known.count if labels is None else [known.class_names[i] for i in labels],
        class_names=() if labels is None else known.class_names,
        parts=[None] * known.count if known.parts is None else [str(p) for p in known.parts],
        groups=[None] * known.count if known.patients is None else known.patients.tolist(),
        digests=digests,
        sizes=[(known.shape[1], known.shape[0])] * known.count,
        missing_classes=known.missing_classes(),
        masks_empty=tuple(empty),
    )


# Both


def _report(
    *,
    path: str,
    study: str,
    names: Sequence[str],
    labels: Sequence[str | None],
    class_names: Sequence[str],
    parts: Sequence[str | None],
    groups: Sequence[int | str | None],
    digests: Sequence[bytes | None],
    sizes: Sequence[tuple[int, int] | None],
    **rest: Any,
) -> Report:
    counts: dict[str, Counter[str]] = {name: Counter() for name in class_names or ("images",)}
    for label, part in zip(labels, parts, strict=True):
        counts[label or "images"][part or UNDIVIDED] += 1
    common = Counter(f"{size[0]} × {size[1]}" for size in sizes if size).most_common()
    known = None not in groups
    return Report(
        path=path,
        study=study,
        images=len(names),
        classes={name: dict(counter) for name, counter in counts.items()},
        sizes=dict(common),
        patients=len(set(groups)) if known else None,
        duplicates=_duplicates(names, labels, parts, digests),
        patients_on_both_sides=_on_both_sides(groups, parts) if known else (),
        **rest,
    )


def _duplicates(
    names: Sequence[str],
    labels: Sequence[str | None],
    parts: Sequence[str | None],
    digests: Sequence[bytes | None],
) -> tuple[Duplicate, ...]:
    same: dict[bytes, list[int]] = defaultdict(list)
    for row, digest in enumerate(digests):
        if digest is not None:
            same[digest].append(row)
    return tuple(
        Duplicate(
            tuple(names[row] for row in rows),
            tuple(sorted({labels[row] or "" for row in rows})),
            tuple(sorted({parts[row] or UNDIVIDED for row in rows}, key=_part_order)),
        )
        for rows in same.values()
        if len(rows) > 1
    )


def _on_both_sides(
    groups: Sequence[int | str | None], parts: Sequence[str | None]
) -> tuple[int | str, ...]:
    """Validation and test count as one, as the paper combines them."""
    inside = {g for g, part in zip(groups, parts, strict=True) if part == "train"}
    outside = {g for g, part in zip(groups, parts, strict=True) if part not in (None, "train")}
    return tuple(sorted((g for g in inside & outside if g is not None), key=_as_listed))


def _as_listed(group: int | str) -> tuple[int, str]:
    """Numbers by size, texts by their letters."""
    return (group, "") if isinstance(group, int) else (0, group)


def _part_order(part: str) -> int:
    known = ("train", "val", "test", UNDIVIDED)
    return known.index(part) if part in known else len(known)


def _joined(duplicates: Iterable[Duplicate]) -> tuple[str, ...]:
    return tuple(" = ".join(d.names) for d in duplicates)


def _lines(*found: tuple[str, Sequence[Any]]) -> list[str]:
    return [f"{len(names)} {what}: {_some(names)}" for what, names in found if names]


def _some(names: Sequence[Any]) -> str:
    more = f" and {len(names) - SHOWN} more" if len(names) > SHOWN else ""
    return ", ".join(map(str, names[:SHOWN])) + more
