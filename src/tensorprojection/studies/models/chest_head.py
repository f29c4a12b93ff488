"""The paper's classifier on DenseNet121's features of chest X-rays, in two forms (section 3.2.2).

The paper's table, for features of 5 × 5 × 1024; here channels come first. The forms differ in how
the channels are reduced only.

=====================  ==============  ==========  ==========
layer                  output          base        tpl
=====================  ==============  ==========  ==========
conv (linear)          64 × 5 × 5          65,600
projection             64 × 5 × 5                      65,536
flatten                1600
dense1, relu           256                409,856     409,856
dropout                256
dense2                 4                    1,028       1,028
=====================  ==============  ==========  ==========

The paper prints 7 outputs and 1,799 parameters for the last layer, but the images are of four
classes; and it does not mention the dropout, which its authors' code has. The softmax is left to
the loss.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from torch import nn

from tensorprojection import TensorProjection

from .start import keras_start


@dataclass(frozen=True)
class Reduction:
    """How the channels are reduced: what it is, its name in the head, and how it is made."""

    title: str
    name: str
    make: Callable[[int, int, int], nn.Module]  # from channels, side and reduced channels


HEADS: dict[str, Reduction] = {
    "base": Reduction(
        "1×1 convolution",
        "conv",
        lambda channels, side, reduced: keras_start(nn.Conv2d(channels, reduced, 1)),
    ),
    "tpl": Reduction(
        "TensorProjection",
        "projection",
        lambda channels, side, reduced: TensorProjection(
            (channels, side, side), (reduced, side, side)
        ),
    ),
}


def chest_head(
    kind: str,
    channels: int = 1024,
    side: int = 5,
    classes: int = 4,
    reduced: int = 64,
    dropout: float = 0.5,
) -> nn.Sequential:
    """The classifier with that reduction, started as Keras does; it gives logits.

    It takes features of shape ``(N, channels, side, side)``: 1024 channels of DenseNet121, 1280 of
    EfficientNet-Lite0. Without dropout (0) it has no such layer. Heads made from one seed start
    with the same dense layers, whatever their reduction.

    >>> head = chest_head("tpl")
    >>> head.projection
    TensorProjection((1024, 5, 5) -> (64, 5, 5), eps=0.001, init='normal', 65,536 parameters)
    """
    if kind not in HEADS:
        raise ValueError(f"Expected a head of {', '.join(map(repr, HEADS))}, got {kind!r}.")
    if not 1 <= reduced <= channels:
        raise ValueError(f"Expected channels reduced to 1 … {channels}, got {reduced}.")
    if not 0 <= dropout < 1:
        raise ValueError(f"Expected a dropout in [0, 1), got {dropout}.")
    # Made first, so that what the reduction draws at random does not shift their start.
    dense1 = keras_start(nn.Linear(reduced * side * side, 256))
    dense2 = keras_start(nn.Linear(256, classes))
    head = nn.Sequential()
    head.add_module(HEADS[kind].name, HEADS[kind].make(channels, side, reduced))
    head.add_module("flatten", nn.Flatten())
    head.add_module("dense1", dense1)
    head.add_module("relu", nn.ReLU())
    if dropout:
        head.add_module("dropout", nn.Dropout(dropout))
    head.add_module("dense2", dense2)
    return head
