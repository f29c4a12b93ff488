"""A projection whose U's are constants: for deployment and export."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, fx, nn

from ..functional import back_project, project
from ..ops.dtypes import check_input
from ..ops.torch_steps import mode_matmul
from ..ops.tracing import outside_jit_trace
from ..shapes import Shape


class FrozenProjection(nn.Module):
    """A projection without parameters, its U's as buffers: from :meth:`TensorProjection.freeze`.

    It is for deployment: torch.export, torch.compile, ONNX by either exporter,
    torch.fx, torch.jit.trace and torch.jit.script.

    >>> import torch, tensorprojection as tp
    >>> frozen = tp.TensorProjection((32, 12, 12), (20, 6, 6)).eval().freeze()
    >>> torch.fx.symbolic_trace(frozen)(torch.randn(8, 32, 12, 12)).shape
    torch.Size([8, 20, 6, 6])
    """

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
        if torch.jit.is_scripting():
            return self._plain(x)
        return self._planned(x)

    @torch.jit.unused
    def _planned(self, x: Tensor) -> Tensor:
        if isinstance(x, fx.Proxy):
            return self._plain(x)
        with outside_jit_trace():  # a comparison of sizes is not part of a trace
            check_input(x, self.in_shape)
        Us = [getattr(self, f"U{k}") for k in range(1, len(self.in_shape) + 1)]
        return back_project(x, Us) if self.transposed else project(x, Us)

    def _plain(self, x: Tensor) -> Tensor:
        """Return the map with operations that TorchScript and torch.fx know."""
        for name, U in self.named_buffers():
            if U is not None:  # to TorchScript, a mode left alone has a buffer too
                axis = int(name[1:]) - 1 - len(self.in_shape)
                A = U.transpose(0, 1) if self.transposed else U
                x = mode_matmul(x, A.to(x.dtype), axis)
        return x

    def extra_repr(self) -> str:
        kind = "transposed, " if self.transposed else ""
        return f"{self.in_shape} -> {self.out_shape}, {kind}no parameters"
