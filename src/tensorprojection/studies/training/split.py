"""A trial's training and validation images, as its settings say."""

from __future__ import annotations

from ..config import RunConfig
from ..data.images import ImageSet
from ..data.splits import require_classes, split, subset
from ..inputs import Rows
from .seeds import share_seed, split_seed


def trial_split(
    config: RunConfig, images: ImageSet, trial: int, counts: tuple[int, int] | None = None
) -> tuple[Rows, Rows]:
    """The originals that train and those that validate in that trial.

    With a ``train_share`` below 1, that share of the training set is drawn, the classes in
    proportion; the validation set stays whole, so that all shares are measured on the same images.

    Args:
        config: says how to split.
        images: the originals.
        trial: its number.
        counts: see :func:`split`.
    """
    training, validation = split(
        images, config.split, split_seed(config.seed, trial), counts=counts
    )
    labels = None if images.labels is None else images.labels[training]
    count = max(1, round(config.train_share * len(training)))
    kept = subset(labels, len(training), count, share_seed(config.seed, trial))
    require_classes(images, training[kept], validation, f"A train_share of {config.train_share}")
    return training[kept], validation
