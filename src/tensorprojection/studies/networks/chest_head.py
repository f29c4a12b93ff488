"""The paper's classifier on DenseNet121's features of chest X-rays, in two forms (section 3.2.2).

The paper's table, for features of 5 × 5 × 1024; here channels come first. The forms differ in
how the features are reduced only; there are more forms than the paper's two, also with reductions
to any size (``tpl-16``, ``avg-16x3x3``).

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

import math
from functools import partial

from torch import Tensor, nn

from tensorprojection import TensorProjection, init_from_data

from .layers import init_by_name
from .reductions import GLOBAL_AVERAGE, Reduction, Shape, add_layers, find_reduction, to_size

# The paper's two; its projection with another init, the same map without its constraint, a pooling.
HEADS: dict[str, Reduction] = {
    "base": Reduction("1×1 convolution", to_size("conv-64").make),
    "tpl": Reduction("TensorProjection", to_size("tpl-64").make),
    # See init_from_mpca.
    "tpl-mpca": Reduction("TensorProjection, MPCA init", to_size("tpl-64").make),
    "tcl": Reduction("contraction, unconstrained", to_size("tcl-64").make),
    "gap": GLOBAL_AVERAGE,
}
SIZED = "tpl-C, conv-C, tcl-C, tpl-CxHxW, max-CxHxW, avg-CxHxW"

find_head = partial(find_reduction, HEADS, SIZED)


def chest_head(
    kind: str, channels: int = 1024, side: int = 5, classes: int = 4, dropout: float = 0.5
) -> nn.Sequential:
    """Return the classifier with that reduction, initialized as in Keras; it gives logits.

    It takes features of shape ``(N, channels, side, side)``: 1024 channels of DenseNet121, 1280 of
    EfficientNet-Lite0. Without dropout (0) it has no such layer. Heads of one seed have the same
    initial values in all that they share, whatever their reduction, and the same dropout after it.

    >>> chest_head("tpl").projection.W1.shape
    torch.Size([1024, 64])
    """
    reduction = find_head(kind)
    return init_by_name(lambda: _head(reduction, (channels, side, side), classes, dropout))


def init_from_mpca(head: nn.Sequential, features: Tensor) -> None:
    """Initialize the head's projection with the multilinear PCA of these features."""
    layer = head.projection
    assert isinstance(layer, TensorProjection)
    init_from_data(layer, features)


def _head(reduction: Reduction, shape: Shape, classes: int, dropout: float) -> nn.Sequential:
    head = nn.Sequential()
    shape = add_layers(head, reduction.make(shape), shape)
    head.add_module("flatten", nn.Flatten())
    head.add_module("dense1", nn.Linear(math.prod(shape), 256))
    head.add_module("relu", nn.ReLU())
    if dropout:
        head.add_module("dropout", nn.Dropout(dropout))
    head.add_module("dense2", nn.Linear(256, classes))
    return head
