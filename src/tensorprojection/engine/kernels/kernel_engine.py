"""A layer by the compiled kernels: float32 on a CPU. The rest is left to torch's operations."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from ..interface import LayerOptions, Polar, SavedForBackward
from ..layout import Layout, Matrices, layout_of
from ..torch_engine import TORCH, TorchEngine
from ..tracing import is_plain
from . import calls
from .header import MOST_COLUMNS
from .library import Library


class KernelEngine(TorchEngine):
    """See :class:`engine.Engine`."""

    def __init__(self, library: Library) -> None:
        self.library = library

    @staticmethod
    def serves(*tensors: Tensor | None) -> bool:
        """Whether there are kernels for such tensors."""
        return all(x is None or _is_float32(x) for x in tensors) and is_plain(*tensors)

    def layout(self, x: Tensor, Us: Matrices) -> Layout:
        return layout_of(x, Us, tiles=self.serves(x))

    def layout_of_layer(self, x: Tensor, Ws: Matrices) -> Layout:
        small = all(W is None or _is_small(W) for W in Ws)
        return layout_of(x, Ws, tiles=small and self.serves(x, *Ws))

    def map(self, x: Tensor, Us: Matrices, transposed: bool, like: Tensor) -> Tensor:
        layout = layout_of(like, Us, tiles=self.serves(x, *Us))
        if layout.program is None:
            return TORCH.map(x, Us, transposed, like)
        return calls.run_map(self.library, x, Us, layout, transposed=transposed)

    def gradients(
        self, x: Tensor, grad: Tensor, Us: Matrices, transposed: bool, want_x: bool
    ) -> tuple[Tensor | None, list[Tensor | None]]:
        layout = layout_of(x, Us, tiles=self.serves(x, grad, *Us))
        if layout.program is None:
            return TORCH.gradients(x, grad, Us, transposed, want_x)
        return calls.run_gradients(
            self.library, x, grad, Us, layout, transposed=transposed, want_x=want_x
        )

    def polar(self, W: Tensor, eps: float, relative: bool, dtype: torch.dtype, name: str) -> Polar:
        if _is_small(W) and dtype != torch.float64 and is_plain(W):
            found = calls.run_polar(self.library, W, eps, relative)
            if found is not None:
                return found._replace(U=found.U.to(dtype))
        return TORCH.polar(W, eps, relative, dtype, name)

    def polar_grad(
        self, W: Tensor, grad_U: Tensor, found: Polar, eps: float, relative: bool
    ) -> Tensor:
        if _is_small(W) and is_plain(W, grad_U, found.G, found.V, found.s):
            return calls.run_polar_grad(self.library, W, grad_U, found, eps, relative)
        return TORCH.polar_grad(W, grad_U, found, eps, relative)

    def forward(
        self, x: Tensor, Ws: Matrices, options: LayerOptions
    ) -> tuple[Tensor, SavedForBackward]:
        layout = self.layout_of_layer(x, Ws)
        if layout.program is not None:
            found = calls.run_forward(self.library, x, Ws, layout, options)
            if found is not None:
                z, packed = found
                return z, SavedForBackward(packed, layout)
        # Too wide, or a W that is not finite or too ill-conditioned: one after the other.
        return super().forward(x, Ws, options)

    def backward(
        self,
        x: Tensor,
        grad: Tensor,
        Ws: Matrices,
        saved: SavedForBackward,
        options: LayerOptions,
        wanted: Sequence[bool],
    ) -> list[Tensor | None]:
        layout: Layout = saved.context
        Us, spectra = saved.tensors
        if (
            layout.program is not None
            and any(wanted[1:])
            and self.serves(x, grad, *Ws, Us)
            and is_plain(spectra)
        ):
            return calls.run_backward(
                self.library, x, grad, Ws, (Us, spectra), layout, options, wanted
            )
        return super().backward(x, grad, Ws, saved, options, wanted)


def _is_float32(x: Tensor) -> bool:
    return x.dtype is torch.float32 and x.device.type == "cpu"


def _is_small(W: Tensor) -> bool:
    return W.ndim == 2 and _is_float32(W) and 1 <= W.shape[1] <= MOST_COLUMNS
