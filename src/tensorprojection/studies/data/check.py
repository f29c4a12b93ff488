"""Checking images before they are used: counts, sizes, unreadable files, duplicates, leaks."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import polars as pl

from ..errors import StudyError
from .decode import Progress, UnreadableError, in_threads, open_item
from .images import ImageKind, ImageSet
from .read import Item, is_folder, known_of, read_items
from .splits import SplitRule, split

SHOWN = 10  # names on a line


@dataclass(frozen=True)
class Report:
    """The findings.

    Args:
        title: what was checked.
        counts: images by class, in the data's parts and in training and validation.
        notes: lines that are worth knowing.
        problems: lines about what is wrong.
    """

    title: str
    counts: pl.DataFrame
    notes: tuple[str, ...]
    problems: tuple[str, ...]


def check(
    path: Path,
    kinds: Sequence[ImageKind],
    *,
    how: SplitRule = "image",
    seed: int | Sequence[int] = 0,
    patients: Path | None = None,
    patient_pattern: str | None = None,
    progress: Progress | None = None,
) -> Report:
    """Read every image of a folder or an ``.npz`` file.

    The rules are those of a run: what a run refuses is an error here, or one of the problems.

    Args:
        path: as :func:`~.sources.open_images` takes it.
        kinds: what the images may be; the first kind that fits is taken.
        how: the split whose training and validation images are counted.
        seed: of that split.
        patients: a CSV file with the patient of each file.
        patient_pattern: a regular expression for the patient in a file's name.
        progress: called while images are read.
    """
    is_folder(path)  # an error about the path itself comes first
    errors = []
    # Masks last: each class of a data set may have folders images and masks as well.
    for kind in sorted(kinds, key=lambda kind: kind.masks):
        try:
            items, ignored = read_items(kind, path, None, patients, patient_pattern)
            break
        except StudyError as error:
            errors.append(str(error))
    else:
        raise StudyError(" ".join(errors))
    seen = in_threads(lambda row: _look(items[row], kind), len(items), "files", progress)
    classes = ("images",) if kind.masks else kind.class_names
    table = pl.DataFrame(
        {
            "name": [item.name for item in items],
            "class": [classes[item.label or 0] for item in items],
            "part": [item.part for item in items],
            "patient": [item.patient for item in items],
            "set": "",
            **{name: [one[name] for one in seen] for name in ("digest", "size", "empty", "wrong")},
        },
        schema_overrides=dict.fromkeys(("part", "patient", "digest", "size", "wrong"), pl.String),
    )
    absent = [name for name in classes if name not in set(table["class"])]
    refused = []
    try:
        without_pixels = np.broadcast_to(np.uint8(0), (len(items), 1, 1))
        known = ImageSet(without_pixels, class_names=kind.class_names, **known_of(items))
        training, validation = split(known, how, seed)
        sets = np.full(len(items), "", object)
        sets[training], sets[validation] = "training", "validation"
        table = table.with_columns(pl.Series("set", sets, pl.String))
    except StudyError as error:
        refused.append(str(error))

    same = (
        table.drop_nulls("digest")
        .group_by("digest", maintain_order=True)
        .agg(pl.col("name"), pl.col("part").n_unique(), pl.col("class").n_unique())
        .filter(pl.col("name").list.len() > 1)
        .with_columns(pl.col("name").list.join(" = "))
    )
    trains = pl.col("part") == "train"
    leaks = (
        table.drop_nulls(["patient", "part"])
        .group_by("patient", maintain_order=True)
        .agg(leak=trains.any() & trains.not_().any())
        .filter("leak")
    )
    sizes = Counter(table["size"].drop_nulls().to_list()).most_common()
    version = kind.versions.get(len(items))
    notes = {
        "sizes": [f"{size} ({count})" for size, count in sizes],
        "images stored more than once": _names(same.filter(part=1, **{"class": 1})),
        "empty masks": _names(table.filter("empty")),
    }
    problems = {
        "classes without an image": absent,
        "images that a run refuses": table["wrong"].drop_nulls().to_list(),
        "images in more than one part": _names(same.filter(pl.col("part") > 1)),
        "images under more than one label": _names(same.filter(pl.col("class") > 1)),
        "patients both in train and outside of it": leaks["patient"].to_list(),
        f"{how} splits that a run would refuse": refused,
    }
    count = table["patient"].drop_nulls().n_unique()
    title = f"{path}: {kind.name}, {len(items)} images" + (f", {count} patients" if count else "")
    return Report(
        title,
        _counts(table, classes),
        (
            *([f"version: {version}"] if version else []),
            *([ignored] if ignored else []),
            *_lines(notes),
        ),
        _lines(problems),
    )


def _look(item: Item, kind: ImageKind) -> dict[str, str | bool | None]:
    """Decode an image and its mask, as a run does; return its digest and size, or what is wrong."""
    try:
        image, mask = open_item(item, kind)
    except UnreadableError as error:
        return {"digest": None, "size": None, "empty": False, "wrong": str(error)}
    content = f"{image.size}".encode() + image.tobytes()
    return {
        "digest": hashlib.sha256(content).hexdigest(),
        "size": f"{image.width} × {image.height}",
        "empty": mask is not None and mask.getbbox() is None,
        "wrong": None,
    }


def _counts(table: pl.DataFrame, classes: Sequence[str]) -> pl.DataFrame:
    """Return the images by class and in total, in each part and set that there is."""
    columns = [("part", name) for name in ("train", "val", "test")]
    columns += [("set", name) for name in ("training", "validation")]
    found = table.group_by("class").agg(
        *((pl.col(where) == name).sum().alias(name) for where, name in columns),
        images=pl.len(),
    )
    counts = pl.DataFrame({"class": classes}).join(found, on="class", how="left").fill_null(0)
    if len(classes) > 1:
        total = counts.select(pl.lit("total").alias("class"), pl.exclude("class").sum())
        counts = pl.concat([counts, total])
    share = 100 * pl.col("images") / max(1, len(table))
    used = [n for n in counts.columns if n == "class" or counts[n].sum()]
    return counts.select(*used, share.round(2).alias("%"))


def _names(table: pl.DataFrame) -> list[str]:
    return table["name"].to_list()


def _lines(findings: dict[str, list[str]]) -> tuple[str, ...]:
    """Return a line for each finding that there is, with the first names."""
    return tuple(
        f"{len(names)} {what}: {', '.join(names[:SHOWN])}"
        + (f" and {len(names) - SHOWN} more" if len(names) > SHOWN else "")
        for what, names in findings.items()
        if names
    )
