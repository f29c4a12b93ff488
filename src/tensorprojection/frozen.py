"""A projection whose U's are constants: for deployment and export."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor, nn

from .dtypes import check_input
from .project import back_project, project
from .shapes import Shape


class FrozenProjection(nn.Module):
    """What :meth:`TensorProjection.freeze` returns: the same map, no parameters, U's as buffers."""

    def __init__(
        self,
        in_shape: Shape,
        out_shape: Shape,
        Us: Sequence[Tensor | None],
        *,
        transposed: bool,
    ) -> None:
        super().__init__()
        self.in_shape, self.out_shape, self.transposed = in_shape, out_shape, transposed
        for k, U in enumerate(Us, start=1):
            self.register_buffer(f"U{k}", None if U is None else U.detach().clone())

    def forward(self, x: Tensor) -> Tensor:
        check_input(x, self.in_shape)
        Us = [getattr(self, f"U{k}") for k in range(1, len(self.in_shape) + 1)]
        return back_project(x, Us) if self.transposed else project(x, Us)

    def extra_repr(self) -> str:
        kind = "transposed, " if self.transposed else ""
        return f"{self.in_shape} -> {self.out_shape}, {kind}no parameters"
