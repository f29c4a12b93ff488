"""How a network starts: as Keras starts it, and so the paper, and every parameter by its name.

Note [Glorot's limit of a transposed convolution]
    The limit is √(6 / (fan_in + fan_out)). For a transposed convolution Keras, whose kernel is
    (kh, kw, out, in), and torch, whose kernel is (in, out, kh, kw), both count ``kh · kw · out`` as
    fan_in and ``kh · kw · in`` as fan_out, the other way round than data flow. The sum is the same
    either way, so the limit is Keras's.

Note [Starts by name]
    The networks of a trial are compared with each other, so what they have in common starts alike.
    Drawn one after the other from one stream, it would not: a layer that only one network has
    shifts every draw after it. So each parameter is drawn from a seed of its own, made of the
    network's and of the parameter's name. Of the caller's stream a network takes one number,
    whatever it is made of; what is drawn after it, dropout, is then the same for all as well.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

import torch
from torch import nn

from tensorprojection import HOPE, TensorProjection, TransposeTensorProjection

from ..trial.seeds import parameter_seed
from .contraction import Contraction

M = TypeVar("M", bound=nn.Module)


def start_by_name(make: Callable[[], M]) -> M:
    """The network that ``make`` gives, with every parameter started anew from its own seed.

    Weights of convolutions, dense layers and contractions are Glorot uniform, biases zero; a
    BatchNorm starts as the identity (γ = 1, β = 0); projections start as their ``init`` says. See
    Note [Starts by name].

    >>> def small(): return nn.Sequential(nn.Linear(6, 2))
    >>> def large(): return nn.Sequential(nn.Linear(6, 2), nn.Linear(2, 9))
    >>> starts = []
    >>> for make in (small, large):
    ...     _ = torch.manual_seed(0)
    ...     starts.append(start_by_name(make)[0].weight)
    >>> torch.equal(*starts)
    True
    """
    seed = int(torch.randint(2**62, (), device="cpu"))
    with torch.random.fork_rng(devices=[]):
        network = make()
        for path, layer in network.named_modules():
            for name, _ in layer.named_parameters(recurse=False):
                # Not torch.manual_seed, which would seed the accelerators, too.
                torch.default_generator.manual_seed(parameter_seed(seed, f"{path}.{name}"))
                _start(layer, name)
    return network


def _start(layer: nn.Module, name: str) -> None:
    """Start the layer's parameter of that name."""
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
            raise TypeError(f"Expected a layer whose start is known, got {layer} with {name}.")


def keras_batch_norm(channels: int) -> nn.BatchNorm2d:
    """BatchNorm with Keras's ε and momentum.

    Keras's momentum 0.99 is the share of the running mean that stays, torch's the share that is
    replaced: 0.01.
    """
    return nn.BatchNorm2d(channels, eps=1e-3, momentum=0.01)
