"""The paper's classifier on DenseNet121's features of chest X-rays, in two forms (section 3.2.2).

The paper's table, for features of 5 × 5 × 1024; here channels come first. The forms differ in how
the channels are reduced only; there are more forms than the paper's two.

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

from torch import Tensor, nn

from tensorprojection import TensorProjection, init_from_data

from .layers import Contraction, init_by_name


@dataclass(frozen=True)
class Reduction:
    """A reduction of the channels: title, name in the head, and a function that makes it."""

    title: str
    name: str
    make: Callable[[int, int, int], nn.Module]  # from channels, side and reduced channels


def _projection(channels: int, side: int, reduced: int) -> nn.Module:
    return TensorProjection((channels, side, side), (reduced, side, side), init="normal")


def _contraction(channels: int, side: int, reduced: int) -> nn.Module:
    return Contraction((channels, side, side), (reduced, side, side))


# The paper's two; its projection with another init, and the same map without its constraint.
HEADS: dict[str, Reduction] = {
    "base": Reduction(
        "1×1 convolution",
        "conv",
        lambda channels, side, reduced: nn.Conv2d(channels, reduced, 1),
    ),
    "tpl": Reduction("TensorProjection", "projection", _projection),
    "tpl-mpca": Reduction(  # see init_from_mpca
        "TensorProjection, MPCA init", "projection", _projection
    ),
    "tcl": Reduction("contraction, unconstrained", "contraction", _contraction),
}


def chest_head(
    kind: str,
    channels: int = 1024,
    side: int = 5,
    classes: int = 4,
    reduced: int = 64,
    dropout: float = 0.5,
) -> nn.Sequential:
    """Return the classifier with that reduction, initialized as in Keras; it gives logits.

    It takes features of shape ``(N, channels, side, side)``: 1024 channels of DenseNet121, 1280 of
    EfficientNet-Lite0. Without dropout (0) it has no such layer. Heads of one seed have the same
    initial values in all that they share, whatever their reduction, and the same dropout after it.

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
    return init_by_name(lambda: _head(HEADS[kind], (channels, side, reduced), classes, dropout))


def init_from_mpca(head: nn.Sequential, features: Tensor) -> None:
    """Initialize the head's projection with the multilinear PCA of these features."""
    layer = head.projection
    assert isinstance(layer, TensorProjection)
    init_from_data(layer, features)


def _head(
    reduction: Reduction, sizes: tuple[int, int, int], classes: int, dropout: float
) -> nn.Sequential:
    _, side, reduced = sizes
    head = nn.Sequential()
    head.add_module(reduction.name, reduction.make(*sizes))
    head.add_module("flatten", nn.Flatten())
    head.add_module("dense1", nn.Linear(reduced * side * side, 256))
    head.add_module("relu", nn.ReLU())
    if dropout:
        head.add_module("dropout", nn.Dropout(dropout))
    head.add_module("dense2", nn.Linear(256, classes))
    return head
