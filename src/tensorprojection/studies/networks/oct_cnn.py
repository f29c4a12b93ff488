"""The paper's CNN for retinal OCT images, in its three forms (section 3.1.2).

The paper's table, for images of 96 × 96 × 3 and four classes; here channels come first. The three
forms differ in the fourth reduction only, which this module calls the head; there are more forms
than the paper's three, also with heads of any size (``tpl-16x3x3``) and with projections in place
of earlier poolings.

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

import math
from collections.abc import Mapping
from functools import partial

import torch
from torch import Tensor, nn

from tensorprojection import TensorProjection, init_from_data
from tensorprojection.nn.hope import HOPE

from ..errors import StudyError
from .layers import BatchMPCA, Contraction, init_by_name
from .reductions import (
    GLOBAL_AVERAGE,
    Layers,
    Reduction,
    Shape,
    add_layers,
    find_reduction,
    halved,
    projection,
)

FILTERS = 32


def _fixed_dct(shape: Shape) -> Layers:
    return {"projection": TensorProjection(shape, halved(shape), init="dct").freeze()}


def _not_trained(shape: Shape) -> Layers:
    return {
        "projection": TensorProjection(shape, halved(shape), init="normal").requires_grad_(False)
    }


# The paper's three; its projections with other inits; and rivals, most of the same shape.
HEADS: dict[str, Reduction] = {
    "base": Reduction("MaxPooling", lambda shape: {"pool": nn.MaxPool2d(2)}),
    "tpl1": projection("TensorProjection 1"),
    "tpl2": projection("TensorProjection 2", channels=20),
    "tpl1-block": projection("TensorProjection 1, block init", init="block"),
    "tpl1-block3": projection("TensorProjection 1, block init × 3", init="block", init_scale=3.0),
    "tpl1-blur": projection("TensorProjection 1, blur init", init="blur"),
    "tpl1-dct": projection("TensorProjection 1, DCT init", init="dct"),
    "tpl2-dct": projection("TensorProjection 2, DCT init", channels=20, init="dct"),
    "tpl-pool2": projection("TensorProjection as the second pooling", init="auto"),
    "tpl-all": projection("TensorProjection as every pooling", init="auto"),
    "avg": Reduction("AveragePooling", lambda shape: {"pool": nn.AvgPool2d(2)}),
    "gap": GLOBAL_AVERAGE,
    "strided": Reduction(
        "strided convolution",
        lambda shape: {"strided": nn.Conv2d(shape[0], shape[0], 3, stride=2, padding=1)},
    ),
    "dct-fixed": Reduction("DCT, fixed", _fixed_dct),
    "hope": Reduction("HOPE", lambda shape: {"hope": HOPE(shape, shape[0], patch=2)}),
    "tcl": Reduction(
        "contraction, unconstrained",
        lambda shape: {"contraction": Contraction(shape, halved(shape))},
    ),
    "mpca": Reduction("MPCA, frozen", _not_trained),  # see freeze_mpca
    "mpca-batch": Reduction(
        "MPCA of each batch", lambda shape: {"mpca": BatchMPCA(shape, halved(shape))}
    ),
}
SIZED = "tpl-CxHxW, max-CxHxW, avg-CxHxW"
# The poolings that a head replaces, if it is not the fourth alone.
PLACES = {"tpl-pool2": (2,), "tpl-all": (1, 2, 3, 4)}

find_head = partial(find_reduction, HEADS, SIZED)


def oct_cnn(
    head: str | Reduction, classes: int = 4, channels: int = 3, size: int = 96
) -> nn.Sequential:
    """Return the network with that head, initialized as in Keras; it gives logits.

    Networks of one seed have the same initial values in all that they share, whatever their head:
    the convolutions, the dense layers, and of projections W's of one mode, init and size.

    >>> network = oct_cnn("tpl1")
    >>> network.projection4
    TensorProjection((32, 12, 12) -> (32, 6, 6), eps=0.001, init='normal', 144 parameters)
    """
    places = PLACES.get(head, (4,)) if isinstance(head, str) else (4,)
    reduction = find_head(head) if isinstance(head, str) else head
    if size < 16 or size % 16:
        raise StudyError(f"Expected a size divisible by 16, got {size}.")
    reductions = {k: reduction if k in places else HEADS["base"] for k in (1, 2, 3, 4)}
    return init_by_name(lambda: _network(reductions, classes, channels, size))


def _network(
    reductions: Mapping[int, Reduction], classes: int, channels: int, side: int
) -> nn.Sequential:
    network = nn.Sequential()
    shape: Shape = (FILTERS, side, side)
    for k, reduction in reductions.items():
        network.add_module(f"conv{k}", nn.Conv2d(channels, FILTERS, 3, padding="same"))
        network.add_module(f"relu{k}", nn.ReLU())
        shape = add_layers(network, reduction.make(shape), shape, str(k))
        channels = FILTERS
    network.add_module("flatten", nn.Flatten())
    network.add_module("dense1", nn.Linear(math.prod(shape), 256))
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
