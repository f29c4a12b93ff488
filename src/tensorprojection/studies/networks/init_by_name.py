"""Initialization of a network as in Keras, and so in the paper, each parameter by its name.

Note [Glorot's limit of a transposed convolution]
    The limit is √(6 / (fan_in + fan_out)). For a transposed convolution Keras, whose kernel is
    (kh, kw, out, in), and torch, whose kernel is (in, out, kh, kw), both count ``kh · kw · out`` as
    fan_in and ``kh · kw · in`` as fan_out, the other way round than data flow. The sum is the same
    either way, so the limit is Keras's.

Note [Init by name]
    The networks of a trial are compared with each other, so the parameters that they share are
    initialized alike. If all were drawn from one stream, a layer that only one network has would
    shift every draw after it. So each parameter has its own seed, from the network's seed and the
    parameter's name. A network takes one number of the caller's stream, whatever its layers are, so
    that later draws (dropout) are the same for all networks, too.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

import torch
from torch import nn

from tensorprojection import TensorProjection, TransposeTensorProjection
from tensorprojection.nn.hope import HOPE

from ..training.seeds import parameter_seed
from .layers import Contraction

M = TypeVar("M", bound=nn.Module)


def init_by_name(make: Callable[[], M]) -> M:
    """Return the network that ``make`` gives, with every parameter initialized from its own seed.

    Weights of convolutions, dense layers and contractions are Glorot uniform, biases zero; a
    BatchNorm is the identity (γ = 1, β = 0); projections are initialized as their ``init`` says.
    See Note [Init by name].

    >>> def small(): return nn.Sequential(nn.Linear(6, 2))
    >>> def large(): return nn.Sequential(nn.Linear(6, 2), nn.Linear(2, 9))
    >>> weights = []
    >>> for make in (small, large):
    ...     _ = torch.manual_seed(0)
    ...     weights.append(init_by_name(make)[0].weight)
    >>> torch.equal(*weights)
    True
    """
    seed = int(torch.randint(2**62, (), device="cpu"))
    with torch.random.fork_rng(devices=[]):
        network = make()
        for path, layer in network.named_modules():
            for name, _ in layer.named_parameters(recurse=False):
                # Not torch.manual_seed, which would seed the accelerators, too.
                torch.default_generator.manual_seed(parameter_seed(seed, f"{path}.{name}"))
                _init(layer, name)
    return network


def _init(layer: nn.Module, name: str) -> None:
    """Initialize the layer's parameter of that name."""
    parameter = layer.get_parameter(name)
    match layer:
        case nn.Conv2d() | nn.ConvTranspose2d() | nn.Linear() if name == "bias":
            nn.init.zeros_(parameter)
        case nn.Conv2d() | nn.ConvTranspose2d() | nn.Linear() | Contraction():
            # See Note [Glorot's limit of a transposed convolution].
            nn.init.xavier_uniform_(parameter)
        case nn.BatchNorm2d():
            nn.init.constant_(parameter, 1 if name == "weight" else 0)
        case TensorProjection() | TransposeTensorProjection():
            # A layer of this mode alone: another mode of the layer must not shift the draws.
            mode = int(name.removeprefix("W")) - 1
            (p, q), init, scale = parameter.shape, layer.init[mode], layer.init_scale[mode]
            alone = TensorProjection((p,), (q,), init=init, init_scale=scale)
            with torch.no_grad():
                parameter.copy_(alone.get_parameter("W1"))
        case HOPE():
            layer.reset_parameters()  # it has one
        case _:
            raise TypeError(
                f"Expected a layer whose initialization is known, got {layer} with {name}."
            )
