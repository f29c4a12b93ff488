"""A mode product taken into the weights of the layer beside it: the algebra alone.

``A`` is a mode's matrix, ``in × out``: U of a projection, Uᵀ of a transposed one. Sums run in
float64; what is returned has the weight's type.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from ..engine.dtypes import back_like, in_float64


def into_conv_before(
    weight: Tensor, bias: Tensor | None, A: Tensor
) -> tuple[Tensor, Tensor | None]:
    """Weight and bias of the convolution that gives its channels times A."""
    return _product(weight, A, 0), None if bias is None else _product(bias, A, 0)


def into_conv_after(weight: Tensor, A: Tensor) -> Tensor:
    """Weight of the convolution that takes the channels before A. Zero padding stays zero."""
    return _product(weight, A.mT, 1)


def into_linear_after(weight: Tensor, As: Mapping[int, Tensor], out_shape: Sequence[int]) -> Tensor:
    """Weight of the linear layer that takes the flattened tensor before the A's, by mode from 0."""
    merged = in_float64(weight.reshape(weight.shape[0], *out_shape))
    for k, A in As.items():
        merged = _product(merged, A.mT, k + 1)
    return back_like(merged.flatten(1), weight)


def _product(x: Tensor, A: Tensor, axis: int) -> Tensor:
    """x with ``axis`` multiplied by A."""
    moved: Tensor = torch.tensordot(in_float64(x), in_float64(A), dims=([axis], [0]))
    return back_like(moved.movedim(-1, axis).contiguous(), x)
