"""The paper's CNN for retinal OCT images, in its three forms (section 3.1.2).

The paper's table, for images of 96 × 96 × 3 and four classes; here channels come first. The three
forms differ in the fourth reduction only, which this module calls the head; there are more forms
than the paper's three.

=================  ===============  ==========  ==========  ==========
layer              output           base        tpl1        tpl2
=================  ===============  ==========  ==========  ==========
conv1, relu1       32 × 96 × 96            896         896         896
pool1              32 × 48 × 48
conv2, relu2       32 × 48 × 48          9,248       9,248       9,248
pool2              32 × 24 × 24
conv3, relu3       32 × 24 × 24          9,248       9,248       9,248
pool3              32 × 12 × 12
conv4, relu4       32 × 12 × 12          9,248       9,248       9,248
pool4              32 × 6 × 6                0
projection4        (20 in tpl2)                        144         784
flatten            1152 (720)
dense1, relu5      256                 295,168     295,168     184,576
dense2             4                     1,028       1,028       1,028
=================  ===============  ==========  ==========  ==========

For tpl2 the paper prints 1152 and 295,168, but 20 · 6 · 6 = 720 features make a dense layer of
184,576. The softmax is left to the loss.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from tensorprojection import TensorProjection, init_from_data
from tensorprojection.init import InitName
from tensorprojection.nn.hope import HOPE

from .layers import Contraction, init_by_name

FILTERS = 32


@dataclass(frozen=True)
class Head:
    """The fourth reduction: title, name in the network, channels, and a function that makes it."""

    title: str
    name: str
    channels: int
    make: Callable[[int], nn.Module]  # from the height and width of its input


def projection_head(
    title: str, channels: int = FILTERS, init: InitName = "normal", init_scale: float = 1.0
) -> Head:
    """Return a head with a TensorProjection; ``init`` is that of height and width."""

    def make(side: int) -> TensorProjection:
        return TensorProjection(
            (FILTERS, side, side),
            (channels, side // 2, side // 2),
            init=("normal", init, init),  # channels have no order that a pooling could use
            init_scale=(1.0, init_scale, init_scale),
        )

    return Head(title, "projection4", channels, make)


def _fixed_dct(side: int) -> nn.Module:
    half = side // 2
    return TensorProjection((FILTERS, side, side), (FILTERS, half, half), init="dct").freeze()


def _not_trained(side: int) -> nn.Module:
    return HEADS["tpl1"].make(side).requires_grad_(False)


def _contraction(side: int) -> nn.Module:
    return Contraction((FILTERS, side, side), (FILTERS, side // 2, side // 2))


# The paper's three; its projections with other inits; and rivals, which are of the same shape.
HEADS: dict[str, Head] = {
    "base": Head("MaxPooling", "pool4", FILTERS, lambda side: nn.MaxPool2d(2)),
    "tpl1": projection_head("TensorProjection 1"),
    "tpl2": projection_head("TensorProjection 2", channels=20),
    "tpl1-block": projection_head("TensorProjection 1, block init", init="block"),
    "tpl1-block3": projection_head(
        "TensorProjection 1, block init × 3", init="block", init_scale=3.0
    ),
    "tpl1-blur": projection_head("TensorProjection 1, blur init", init="blur"),
    "tpl1-dct": projection_head("TensorProjection 1, DCT init", init="dct"),
    "tpl2-dct": projection_head("TensorProjection 2, DCT init", channels=20, init="dct"),
    "avg": Head("AveragePooling", "pool4", FILTERS, lambda side: nn.AvgPool2d(2)),
    "strided": Head(
        "strided convolution",
        "strided4",
        FILTERS,
        lambda side: nn.Conv2d(FILTERS, FILTERS, 3, stride=2, padding=1),
    ),
    "dct-fixed": Head("DCT, fixed", "projection4", FILTERS, _fixed_dct),
    "hope": Head(
        "HOPE", "hope4", FILTERS, lambda side: HOPE((FILTERS, side, side), FILTERS, patch=2)
    ),
    "tcl": Head("contraction, unconstrained", "contraction4", FILTERS, _contraction),
    "mpca": Head("MPCA, frozen", "projection4", FILTERS, _not_trained),  # see freeze_mpca
}


def oct_cnn(head: str | Head, classes: int = 4, channels: int = 3, size: int = 96) -> nn.Sequential:
    """Return the network with that head, initialized as in Keras; it gives logits.

    Networks of one seed have the same initial values in all that they share, whatever their head:
    the convolutions, the dense layers, and of projections W's of one mode, init and size.

    >>> network = oct_cnn("tpl1")
    >>> network.projection4
    TensorProjection((32, 12, 12) -> (32, 6, 6), eps=0.001, init='normal', 144 parameters)
    """
    if not isinstance(head, Head):
        if head not in HEADS:
            raise ValueError(f"Expected a head of {', '.join(map(repr, HEADS))}, got {head!r}.")
        head = HEADS[head]
    if size < 16 or size % 16:
        raise ValueError(f"Expected a size that can be halved four times, got {size}.")
    return init_by_name(lambda: _network(head, classes, channels, size // 16))


def _network(reduce: Head, classes: int, channels: int, side: int) -> nn.Sequential:
    network = nn.Sequential()
    for k in range(1, 5):
        network.add_module(f"conv{k}", nn.Conv2d(channels, FILTERS, 3, padding="same"))
        network.add_module(f"relu{k}", nn.ReLU())
        if k < 4:
            network.add_module(f"pool{k}", nn.MaxPool2d(2))
        channels = FILTERS
    network.add_module(reduce.name, reduce.make(2 * side))
    network.add_module("flatten", nn.Flatten())
    network.add_module("dense1", nn.Linear(reduce.channels * side * side, 256))
    network.add_module("relu5", nn.ReLU())
    network.add_module("dense2", nn.Linear(256, classes))
    return network


def freeze_mpca(network: nn.Sequential, images: Tensor) -> None:
    """Replace the projection with the images' multilinear PCA, as a constant.

    It is that of the features of the network's convolutions before training.
    """
    layer = network.projection4
    assert isinstance(layer, TensorProjection)
    features = images
    with torch.no_grad():
        for name, module in network.named_children():
            if name == "projection4":
                break
            features = module(features)
    network.projection4 = init_from_data(layer, features, sweeps=1).freeze()
