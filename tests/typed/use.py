"""A user's typed code, checked by mypy together with the sources."""

import torch
from torch import nn

import tensorprojection as tp


def second_parameter(layer: tp.TensorProjection) -> nn.Parameter:
    return layer.W2


def values(layer: tp.TransposeTensorProjection) -> torch.Tensor:
    return layer.W1.detach()


def kept_shape(x: torch.Tensor) -> tp.TensorProjection:
    return tp.TensorProjection((8, 6), tp.suggest_out_shape(x, energy=0.9))


def initialized(shape: tuple[int, int]) -> list[tp.TensorProjection]:
    return [
        tp.TensorProjection(shape, (4, 3), init=("block", "dct")),
        tp.TensorProjection(shape, (4, 3), init=nn.init.orthogonal_),
        tp.TensorProjection(shape, (4, 3), init="Block"),  # type: ignore[arg-type]
        tp.TensorProjection(shape, (4, 3), eps_mode="Relative"),  # type: ignore[arg-type]
    ]
