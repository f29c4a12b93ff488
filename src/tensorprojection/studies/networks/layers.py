"""Layers of the studies' networks, and their initialization: as in Keras, which the paper used.

Note [Glorot's limit of a transposed convolution]
    The limit is √(6 / (fan_in + fan_out)). For a transposed convolution Keras, whose kernel is
    (kh, kw, out, in), and torch, whose kernel is (in, out, kh, kw), both count ``kh · kw · out`` as
    fan_in and ``kh · kw · in`` as fan_out, the reverse of the data flow. The sum is the same, so
    the limit is Keras's.

Note [Init by name]
    The networks of a trial are compared with each other, so the parameters that they share are
    initialized alike. If all were drawn from one stream, a layer that only one network has would
    shift every draw after it. So each parameter has its own seed, from the network's seed and the
    parameter's name. A network takes one number of the caller's stream, whatever its layers are, so
    that later draws (dropout) are the same for all networks, too.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import TypeVar

import torch
from torch import Tensor, nn

from tensorprojection import (
    ProjectionValueError,
    TensorProjection,
    TransposeTensorProjection,
    init_from_data,
)
from tensorprojection.functional import project
from tensorprojection.nn.hope import HOPE

from ..training.seeds import parameter_seed

M = TypeVar("M", bound=nn.Module)


class Contraction(nn.Module):
    """``x ×₁ A₁ᵀ ×₂ A₂ᵀ …``: the projection without its constraint, with free matrices.

    They are initialized as Keras initializes a dense layer. As in the projection, a mode whose
    size does not change has no matrix.

    >>> Contraction((32, 12, 12), (32, 6, 6))(torch.ones(5, 32, 12, 12)).shape
    torch.Size([5, 32, 6, 6])
    """

    def __init__(self, in_shape: Sequence[int], out_shape: Sequence[int]) -> None:
        super().__init__()
        self.in_shape, self.out_shape = tuple(in_shape), tuple(out_shape)
        for k, (p, q) in enumerate(zip(in_shape, out_shape, strict=True), start=1):
            A = None if p == q else nn.Parameter(nn.init.xavier_uniform_(torch.empty(p, q)))
            self.register_parameter(f"A{k}", A)

    def forward(self, x: Tensor) -> Tensor:
        return project(x, [getattr(self, f"A{k}") for k in range(1, len(self.in_shape) + 1)])

    def extra_repr(self) -> str:
        return f"{self.in_shape} -> {self.out_shape}"


class BatchMPCA(nn.Module):
    """Project each training batch by its own multilinear PCA, which has no gradient.

    In eval mode the directions are those of the last training batch, so that an output depends on
    its own image only. A batch that is too small to determine its directions takes those of the
    batch before.

    >>> layer = BatchMPCA((32, 12, 12), (32, 6, 6))
    >>> layer(torch.rand(5, 32, 12, 12)).shape
    torch.Size([5, 32, 6, 6])
    """

    def __init__(self, in_shape: Sequence[int], out_shape: Sequence[int]) -> None:
        super().__init__()
        self.projection = TensorProjection(in_shape, out_shape).requires_grad_(False)

    def forward(self, x: Tensor) -> Tensor:
        if self.training and len(x) > 1:
            with suppress(ProjectionValueError):  # too few images, or all the same
                init_from_data(self.projection, x.detach(), sweeps=1)
        z: Tensor = self.projection(x)
        return z


def keras_batch_norm(channels: int) -> nn.BatchNorm2d:
    """BatchNorm with Keras's ε and momentum.

    Keras's momentum 0.99 is the share of the running mean that stays, torch's the share that is
    replaced: 0.01.
    """
    return nn.BatchNorm2d(channels, eps=1e-3, momentum=0.01)


class Repeated(nn.Module):
    """Repeat a gray channel three times; leave colour as it is."""

    def forward(self, x: Tensor) -> Tensor:
        return x.expand(-1, 3, -1, -1).contiguous(memory_format=torch.channels_last)


class Normalise(nn.Module):
    """Subtract a mean from each channel and divide by a standard deviation.

    Gray becomes as many channels as there are means.

    >>> Normalise((0.5,), (0.25,))(torch.ones(1, 1, 1, 1)).item()
    2.0
    """

    mean: Tensor
    std: Tensor

    def __init__(self, mean: tuple[float, ...], std: tuple[float, ...]) -> None:
        super().__init__()
        self.register_buffer("mean", torch.tensor(mean)[:, None, None])
        self.register_buffer("std", torch.tensor(std)[:, None, None])

    def forward(self, x: Tensor) -> Tensor:
        # Both backbones are faster by up to a half with channels last in memory.
        return ((x - self.mean) / self.std).contiguous(memory_format=torch.channels_last)


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
