"""The random numbers of a trial: each use has its own, derived from the run's seed.

So no use shifts another's: the order of batches is the same for every model of a trial, and the
fifth epoch's order can be had without the four before it. A network's parameters have theirs by
name: what two networks of a trial have in common starts alike in both, whatever else they have.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

# What a number is for; part of the seed of each generator. Never renumber: results would change.
_SPLIT, _START, _ORDER, _NAME, _SHARE = 1, 2, 3, 4, 5


def split_seed(seed: int, trial: int) -> list[int]:
    """Of which images train and which validate."""
    return [seed, trial, _SPLIT]


def share_seed(seed: int, trial: int) -> list[int]:
    """Of which training images are kept, where only a share of them is."""
    return [seed, trial, _SHARE]


def start_seed(seed: int, trial: int) -> int:
    """Of the networks' first weights and, after these, of dropout."""
    return _one_number([seed, trial, _START])


def parameter_seed(network: int, name: str) -> int:
    """Of one parameter's first values, from the network's seed and the parameter's name in it."""
    return _one_number([network, _NAME, *name.encode()])


def batch_order(seed: int, trial: int, epoch: int, count: int) -> NDArray[np.int64]:
    """The numbers 0 … count-1 in the order in which that epoch goes through them."""
    return np.random.default_rng([seed, trial, _ORDER, epoch]).permutation(count)


def _one_number(entropy: list[int]) -> int:
    """As torch takes a seed: 63 bits."""
    return int(np.random.SeedSequence(entropy).generate_state(1, np.uint64)[0] >> 1)
