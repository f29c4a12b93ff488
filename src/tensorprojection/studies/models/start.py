"""How Keras starts a layer, and so the paper: Glorot uniform weights, zero biases.

Note [Glorot's limit of a transposed convolution]
    The limit is √(6 / (fan_in + fan_out)). For a transposed convolution Keras, whose kernel is
    (kh, kw, out, in), and torch, whose kernel is (in, out, kh, kw), both count ``kh · kw · out`` as
    fan_in and ``kh · kw · in`` as fan_out, the other way round than data flow. The sum is the same
    either way, so the limit is Keras's.
"""

from __future__ import annotations

from typing import TypeVar

from torch import nn

M = TypeVar("M", bound=nn.Module)


def keras_start(module: M) -> M:
    """Start every convolution, dense layer and BatchNorm in the module anew; return the module.

    Weights are Glorot uniform and biases zero; a BatchNorm starts as the identity (γ = 1, β = 0,
    mean 0, variance 1). Any other layer keeps the start it has.

    >>> layer = keras_start(nn.ConvTranspose2d(6, 2, 2, stride=2))
    >>> bool(layer.weight.abs().max() <= (6 / (4 * (6 + 2))) ** 0.5), layer.bias.tolist()
    (True, [0.0, 0.0])
    """
    for layer in module.modules():
        if isinstance(layer, nn.Conv2d | nn.ConvTranspose2d | nn.Linear):
            # See Note [Glorot's limit of a transposed convolution].
            nn.init.xavier_uniform_(layer.weight)
            if layer.bias is not None:
                nn.init.zeros_(layer.bias)
        elif isinstance(layer, nn.BatchNorm2d):
            layer.reset_parameters()
    return module


def keras_batch_norm(channels: int) -> nn.BatchNorm2d:
    """BatchNorm with Keras's ε and momentum.

    Keras's momentum 0.99 is the share of the running mean that stays, torch's the share that is
    replaced: 0.01.
    """
    return nn.BatchNorm2d(channels, eps=1e-3, momentum=0.01)
