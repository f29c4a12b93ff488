"""The projection without its constraint: the same map by matrices that are free."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from tensorprojection.functional import project


class Contraction(nn.Module):
    """``x ×₁ A₁ᵀ ×₂ A₂ᵀ …``: a tensor contraction layer, started as Keras starts a dense layer.

    As in the projection, a mode that keeps its size is left alone.

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
