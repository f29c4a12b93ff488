"""How a user's own typed code sees the package: checked by mypy, together with the sources."""

import torch
from torch import nn

import tensorprojection as tp


def second_parameter(layer: tp.TensorProjection) -> nn.Parameter:
    return layer.W2


def values(layer: tp.TransposeTensorProjection) -> torch.Tensor:
    return layer.W1.detach()


def kept_shape(x: torch.Tensor) -> tp.TensorProjection:
    return tp.TensorProjection((8, 6), tp.suggest_out_shape(x, energy=0.9))
