"""The random numbers of a trial, each use with its own seed derived from the run's; and its split.

So no use shifts another's: the order of batches is the same for every model of a trial, and the
fifth epoch's order does not need the four before it. A network's parameters have their seeds by
name: parameters that two networks of a trial have in common have the same init in both.
"""

from __future__ import annotations

from fractions import Fraction

import numpy as np
from numpy.typing import NDArray

from ..config import RunConfig
from ..data.images import ImageSet
from ..data.splits import Split, require_classes, split, subset
from ..errors import StudyError

# The uses; part of the seed of each generator. Never renumber: results would change.
_SPLIT, _INIT, _ORDER, _NAME, _SHARE, _TEST = 1, 2, 3, 4, 5, 6


def split_seed(seed: int, trial: int) -> list[int]:
    """Return the seed of the train/validation split."""
    return [seed, trial, _SPLIT]


def test_seed(seed: int, trial: int) -> list[int]:
    """Return the seed of the test set."""
    return [seed, trial, _TEST]


def share_seed(seed: int, trial: int) -> list[int]:
    """Return the seed of the training images that are used, if only a share of them is."""
    return [seed, trial, _SHARE]


def init_seed(seed: int, trial: int) -> int:
    """Return the seed of the networks' init and, after that, of dropout."""
    return _one_number([seed, trial, _INIT])


def parameter_seed(network: int, name: str) -> int:
    """Return the seed of one parameter's init, from the network's seed and the parameter's name."""
    return _one_number([network, _NAME, *name.encode()])


def batch_order(seed: int, trial: int, epoch: int, count: int) -> NDArray[np.int64]:
    """Return the numbers 0 … count-1 in the order of that epoch."""
    return np.random.default_rng([seed, trial, _ORDER, epoch]).permutation(count)


def _one_number(entropy: list[int]) -> int:
    """Return a seed for torch: 63 bits."""
    return int(np.random.SeedSequence(entropy).generate_state(1, np.uint64)[0] >> 1)


def trial_split(config: RunConfig, images: ImageSet, trial: int) -> Split:
    """Return the originals of the training, validation and test sets of that trial.

    The test set is drawn first, by the same rule; the rest is split as all images are without it.
    With a ``train_share`` below 1, that share of the training set is drawn, the classes in
    proportion; the other sets stay whole, so that all shares are measured on the same images.
    """
    seed, trial = config.seed, 0 if config.split == "fixed" else trial
    rest, test = None, np.arange(0)
    if config.test_share:
        if config.split == "as-shipped":
            raise StudyError("The as-shipped split has no test_share. Split by image or patient.")
        share = 1 - Fraction(str(config.test_share))
        rest, test = split(images, config.split, test_seed(seed, trial), float(share))
    training, validation = split(images, config.split, split_seed(seed, trial), among=rest)
    labels = None if images.labels is None else images.labels[training]
    count = max(1, round(config.train_share * len(training)))
    kept = subset(labels, len(training), count, share_seed(seed, trial))
    require_classes(images, training[kept], validation, f"A train_share of {config.train_share}")
    return Split(training[kept], validation, test)
