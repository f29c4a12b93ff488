"""Which images train and which validate."""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from ..errors import StudyError
from .images import ImageSet
from .patients import share_groups

Rows = NDArray[np.int64]
Split = Literal["image", "patient", "as-shipped"]


def split(
    images: ImageSet,
    how: Split,
    seed: int | Sequence[int],
    fraction: float = 0.7,
    counts: tuple[int, int] | None = None,
) -> tuple[Rows, Rows]:
    """The rows for training and for validation, each in rising order.

    >>> images = ImageSet(np.zeros((10, 8, 8), np.uint8), labels=np.arange(10) % 2,
    ...                   class_names=("NORMAL", "DRUSEN"))
    >>> training, validation = split(images, "image", seed=0)
    >>> images.select(training)
    ImageSet(6 images of 8 × 8, labels: NORMAL 3, DRUSEN 3)

    Args:
        images: where there are labels, every class of two images or more is on both sides.
        how: "image" draws the images of each class at random; "patient" keeps the images of one
            group on one side, with the classes' shares as near as that allows; "as-shipped"
            takes the part "train" against all others, which is what the paper's text says.
        seed: a number, or several such as ``[seed, trial]``.
        fraction: of each class for training, rounded down, as in the paper's table of OCT images.
        counts: how many train and validate, instead of a fraction; the rest is not used. For a
            smaller set, or by patient, they are taken as a proportion. "as-shipped" needs neither.
    """
    if not 0 < fraction < 1:
        raise StudyError(f"Expected a fraction between 0 and 1, got {fraction}.")
    if counts is not None and min(counts) < 1:
        raise StudyError(f"Expected counts of at least one image per side, got {counts}.")
    exact = Fraction(str(fraction)) if counts is None else Fraction(counts[0], sum(counts))
    draw = np.random.default_rng(seed)
    if how == "image":
        sides = _by_image(images, draw, exact, counts)
    elif how == "patient":
        sides = _by_patient(images, draw, exact)
    elif how == "as-shipped":
        sides = _as_shipped(images)
    else:
        raise StudyError(f"Expected a split by image, patient or as-shipped, got {how!r}.")
    training, validation = (np.sort(side).astype(np.int64) for side in sides)
    if not len(training) or not len(validation):
        raise StudyError(
            f"Expected images for training and for validation, got {len(training)} and "
            f"{len(validation)} of {len(images)}."
        )
    return training, validation


def subset(
    labels: NDArray[np.int64] | None, total: int, count: int | None, seed: int | Sequence[int]
) -> Rows:
    """Rows of ``count`` images drawn at random with the classes in proportion; all if no count.

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
    images: ImageSet,
    draw: np.random.Generator,
    fraction: Fraction,
    counts: tuple[int, int] | None,
) -> tuple[Rows, Rows]:
    classes = _classes(images.labels, len(images))
    sizes = [len(rows) for rows in classes]
    if counts is not None and len(images) >= sum(counts):
        train = _proportional(sizes, counts[0])
        left = [size - n for size, n in zip(sizes, train, strict=True)]
        validate = _proportional(left, counts[1])
    else:
        # Two or more images of a class go to both sides, since a fraction of them, rounded down,
        # is fewer than all; of one, training has the greater need.
        train = [max(int(size * fraction), 1) for size in sizes]
        validate = [size - n for size, n in zip(sizes, train, strict=True)]
    mixed = [draw.permutation(rows) for rows in classes]
    return (
        np.concatenate([rows[:n] for rows, n in zip(mixed, train, strict=True)]),
        np.concatenate(
            [rows[n : n + m] for rows, n, m in zip(mixed, train, validate, strict=True)]
        ),
    )


def _by_patient(
    images: ImageSet, draw: np.random.Generator, fraction: Fraction
) -> tuple[Rows, Rows]:
    if images.groups is None:
        raise StudyError(
            "Expected to know each image's patient to split by patient, but these images come "
            "without. Split by image."
        )
    _, group = np.unique(images.groups, return_inverse=True)
    labels = np.zeros(len(images), np.int64) if images.labels is None else np.asarray(images.labels)
    table = np.zeros((group.max(initial=-1) + 1, labels.max(initial=0) + 1), np.int64)
    np.add.at(table, (group, labels), 1)
    trains = share_groups(table, float(fraction), draw)[group]
    return np.flatnonzero(trains), np.flatnonzero(~trains)


def _as_shipped(images: ImageSet) -> tuple[Rows, Rows]:
    if images.parts is None:
        raise StudyError(
            "Expected images that come divided into train, val and test to split them as shipped, "
            "but these come undivided. Split by image."
        )
    trains = np.asarray(images.parts) == "train"
    return np.flatnonzero(trains), np.flatnonzero(~trains)


def _classes(labels: NDArray[np.int64] | None, total: int) -> list[Rows]:
    """The rows of each class that has any; all rows where there are no labels."""
    if labels is None:
        return [np.arange(total)]
    labels = np.asarray(labels)
    return [np.flatnonzero(labels == label) for label in np.unique(labels)]


def _proportional(sizes: Sequence[int], count: int) -> list[int]:
    """``count`` shared out like ``sizes``, the largest remainders rounded up.

    >>> _proportional([6, 3, 1], 5)
    [3, 2, 0]
    """
    exact = [Fraction(size * count, sum(sizes)) for size in sizes]
    shares = [int(share) for share in exact]
    by_remainder = sorted(range(len(sizes)), key=lambda i: shares[i] - exact[i])
    for i in by_remainder[: count - sum(shares)]:
        shares[i] += 1
    return shares
