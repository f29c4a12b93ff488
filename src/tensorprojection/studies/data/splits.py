"""The split of images into training, validation and test sets."""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction
from typing import Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ..errors import StudyError
from .images import ImageSet

Rows = NDArray[np.int64]
SplitRule = Literal["image", "patient", "as-shipped", "fixed"]
TRIES = 100  # orders of the groups; each class comes into both sets with the first, nearly always
PASSES = 20


class Split(NamedTuple):
    """The rows of a trial. The test set neither trains nor chooses an epoch; it may be empty."""

    train: Rows
    validation: Rows
    test: Rows = np.arange(0)


def split(
    images: ImageSet,
    how: SplitRule,
    seed: int | Sequence[int],
    fraction: float = 0.7,
    among: Rows | None = None,
) -> tuple[Rows, Rows]:
    """Return the rows for training and for validation, each in rising order.

    >>> images = ImageSet(np.zeros((10, 8, 8), np.uint8), labels=np.arange(10) % 2,
    ...                   class_names=("NORMAL", "DRUSEN"))
    >>> training, validation = split(images, "image", seed=0)
    >>> np.bincount(images.labels[training])
    array([3, 3])

    Args:
        images: if there are labels, both sets must have every class.
        how: "image" draws the images of each class at random; "patient" puts the images of one
            group into one set, with the classes' shares as near as that allows; "as-shipped"
            takes the part "train" against all others, as in the paper's text; "fixed" draws as
            "image" does (all trials of a run pass the same seed).
        seed: a number, or several such as ``[seed, trial]``.
        fraction: of each class for training, rounded down, as in the paper's table of OCT images.
        among: the rows to split; default all.
    """
    draw = np.random.default_rng(seed)
    rows = np.arange(len(images)) if among is None else among
    labels = None if images.labels is None else np.asarray(images.labels)[rows]
    if how in ("image", "fixed"):
        sets = _by_image(labels, len(rows), draw, Fraction(str(fraction)))
    elif how == "patient":
        groups = None if images.groups is None else np.asarray(images.groups)[rows]
        sets = _by_patient(labels, groups, draw, fraction)
    else:
        sets = _as_shipped(None if images.parts is None else np.asarray(images.parts)[rows])
    training, validation = (rows[np.sort(chosen)].astype(np.int64) for chosen in sets)
    if not len(training) or not len(validation):
        raise StudyError(
            f"Expected images for training and for validation, got {len(training)} and "
            f"{len(validation)} of {len(rows)}."
        )
    require_classes(images, training, validation, f"The {how} split")
    return training, validation


def require_classes(images: ImageSet, training: Rows, validation: Rows, what: str) -> None:
    """Raise an error if a class is in one set only: its accuracy would mean nothing."""
    if images.labels is None:
        return
    here, there = (set(np.unique(images.labels[rows]).tolist()) for rows in (training, validation))
    if here == there:
        return
    found = " and ".join(
        f"no image of {', '.join(images.class_names[c] for c in sorted(missing))} for {name}"
        for name, missing in (("training", there - here), ("validation", here - there))
        if missing
    )
    raise StudyError(
        f"{what} leaves {found}. Each class must be in both sets: choose another split, or add "
        "images or patients of these classes."
    )


def subset(
    labels: NDArray[np.int64] | None, total: int, count: int | None, seed: int | Sequence[int]
) -> Rows:
    """Return the rows of ``count`` images, drawn with the classes in proportion; all if None.

    >>> subset(np.array([0, 0, 0, 0, 1, 1]), 6, 3, seed=0).shape
    (3,)
    """
    if count is None or count >= total:
        return np.arange(total)
    draw = np.random.default_rng(seed)
    classes = _classes(labels, total)
    shares = _proportional([len(rows) for rows in classes], count)
    chosen = [draw.permutation(rows)[:n] for rows, n in zip(classes, shares, strict=True)]
    return np.sort(np.concatenate(chosen)).astype(np.int64)


def _by_image(
    labels: Rows | None, total: int, draw: np.random.Generator, fraction: Fraction
) -> tuple[Rows, Rows]:
    # Two or more images of a class are in both sets, since a fraction of them, rounded down, is
    # fewer than all. A single image trains.
    parts = [
        np.split(draw.permutation(rows), [max(int(len(rows) * fraction), 1)])
        for rows in _classes(labels, total)
    ]
    return np.concatenate([a for a, _ in parts]), np.concatenate([b for _, b in parts])


def _by_patient(
    labels: Rows | None, groups: Rows | None, draw: np.random.Generator, fraction: float
) -> tuple[Rows, Rows]:
    if groups is None:
        raise StudyError(
            "A split by patient needs each image's patient, which these images do not have. Give a "
            "CSV file with the columns file and patient (`patients`), or a regular expression for "
            r"the files' names (`patient_pattern` 'P(\d+)_')."
        )
    _, group = np.unique(groups, return_inverse=True)
    labels = np.zeros(len(group), np.int64) if labels is None else labels
    table = np.zeros((group.max(initial=-1) + 1, labels.max(initial=0) + 1), np.int64)
    np.add.at(table, (group, labels), 1)
    trains = share_groups(table, fraction, draw)[group]
    return np.flatnonzero(trains), np.flatnonzero(~trains)


def _as_shipped(parts: NDArray[np.str_] | None) -> tuple[Rows, Rows]:
    if parts is None:
        raise StudyError(
            "Expected images that come divided into train, val and test to split them as shipped, "
            "but these come undivided. Split by image."
        )
    trains = parts == "train"
    return np.flatnonzero(trains), np.flatnonzero(~trains)


def _classes(labels: NDArray[np.int64] | None, total: int) -> list[Rows]:
    """Return the rows of each class that has any; all rows if there are no labels."""
    if labels is None:
        return [np.arange(total)]
    labels = np.asarray(labels)
    return [np.flatnonzero(labels == label) for label in np.unique(labels)]


def _proportional(sizes: Sequence[int], count: int) -> list[int]:
    """Return ``count`` in proportion to ``sizes``, the largest remainders rounded up.

    >>> _proportional([6, 3, 1], 5)
    [3, 2, 0]
    """
    exact = [Fraction(size * count, sum(sizes)) for size in sizes]
    shares = [int(share) for share in exact]
    by_remainder = sorted(range(len(sizes)), key=lambda i: shares[i] - exact[i])
    for i in by_remainder[: count - sum(shares)]:
        shares[i] += 1
    return shares


# Patients


def share_groups(
    table: NDArray[np.int64], fraction: float, draw: np.random.Generator
) -> NDArray[np.bool_]:
    """Return True for the groups that train. ``table[g, c]`` counts group g's images of class c.

    First some groups are assigned so that every class of two groups or more is in both sets. The
    others follow in random order, each to the set that lacks its classes most. Then single groups
    change sets as long as that brings the shares closer.

    >>> table = np.array([[1, 0]] * 10 + [[0, 1]] * 10)
    >>> trains = share_groups(table, 0.7, np.random.default_rng(0))
    >>> table[trains].sum(axis=0)
    array([7, 7])
    """
    # All images count as one more class: 70 % of all is wanted too, and neither set empty.
    table = np.column_stack([table[:, table.sum(axis=0) > 0], table.sum(axis=1)])
    shares = table / table.sum(axis=0)
    for _ in range(TRIES):
        order = draw.permutation(len(table))
        assigned, complete = _cover(table, order)
        if complete:
            break
    _greedy(assigned, shares, fraction, order)
    trains: NDArray[np.bool_] = assigned == 1
    for _ in range(PASSES):
        if not _improve(trains, shares, table, fraction, order):
            break
    return trains


def _cover(table: NDArray[np.int64], order: NDArray[np.int64]) -> tuple[NDArray[np.int8], bool]:
    """Assign groups until each class is in both sets; return False if the groups run out.

    The groups have 1 (trains), 0 (validates) or −1 (free).
    """
    has = [order[table[order, c] > 0] for c in range(table.shape[1])]
    assigned, complete = np.full(len(table), -1, np.int8), True
    # Rare classes first: they leave the least choice.
    for groups in sorted((groups for groups in has if len(groups) > 1), key=len):
        for wanted in (1, 0):
            free = groups[assigned[groups] == -1]
            if (assigned[groups] == wanted).any():
                continue
            complete &= len(free) > 0
            assigned[free[:1]] = wanted
    return assigned, complete


def _greedy(
    assigned: NDArray[np.int8],
    shares: NDArray[np.float64],
    fraction: float,
    order: NDArray[np.int64],
) -> None:
    """Assign each free group to the set that lacks its classes most, relative to its target."""
    have = np.stack([shares[assigned == k].sum(axis=0) for k in (0, 1)])
    wanted = np.array([[1 - fraction], [fraction]])
    for g in order:
        if assigned[g] == -1:
            full = (have / wanted) @ shares[g]
            assigned[g] = int(full[1] <= full[0])
            have[assigned[g]] += shares[g]


def _improve(
    trains: NDArray[np.bool_],
    shares: NDArray[np.float64],
    table: NDArray[np.int64],
    fraction: float,
    order: NDArray[np.int64],
) -> bool:
    """Move groups if it helps and takes no class from a set; return True if any moved."""
    off = shares[trains].sum(axis=0) - fraction
    present = table > 0
    count = np.stack([present[~trains].sum(axis=0), present[trains].sum(axis=0)])
    several = count.sum(axis=0) > 1
    changed = False
    for g in order:
        here = int(trains[g])
        after = off + (shares[g] if here == 0 else -shares[g])
        # The sums have rounding errors; without a margin two groups could swap for ever.
        last = present[g] & several & (count[here] == 1)
        if after @ after >= off @ off - 1e-12 or last.any():
            continue
        trains[g] = not trains[g]
        count[here] -= present[g]
        count[1 - here] += present[g]
        off = after
        changed = True
    return changed
