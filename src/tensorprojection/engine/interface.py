"""What an engine is: a way to carry out a layer. No autograd here, only values."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor

from ..eps import EpsMode
from .device.flag import DeviceFlag
from .layout import Layout, Matrices


class LayerOptions(NamedTuple):
    """What a layer knows besides its W's."""

    transposed: bool
    eps: tuple[float, ...]
    eps_mode: EpsMode
    names: tuple[str, ...]
    flag: DeviceFlag | None = None  # tells a layer that one of its W's on a device has diverged

    @property
    def relative(self) -> bool:
        return self.eps_mode == "relative"


class Polar(NamedTuple):
    """U = W G, and what M = WᵀW + ε²I = V diag(s²) Vᵀ gives for it: G = M^(-1/2), V and s."""

    U: Tensor
    G: Tensor
    V: Tensor
    s: Tensor


class SavedForBackward(NamedTuple):
    """What a layer's backward pass needs besides x and the W's."""

    tensors: tuple[Tensor, ...]
    context: Any  # the engine's own, not tensors


class Engine(Protocol):
    """Tensors of any memory format come in; results have the format of x, or of ``like``."""

    def layout(self, x: Tensor, Us: Matrices) -> Layout:
        """How x is seen, and the plan for it."""

    def map(self, x: Tensor, Us: Matrices, transposed: bool, like: Tensor) -> Tensor:
        """Eq. 1 or, transposed, Eq. 13."""

    def gradients(
        self, x: Tensor, grad: Tensor, Us: Matrices, transposed: bool, want_x: bool
    ) -> tuple[Tensor | None, list[Tensor | None]]:
        """dL/dx, if it is wanted, and dL/dU by mode."""

    def polar(
        self, W: Tensor, eps: float, relative: bool, dtype: torch.dtype, name: str
    ) -> Polar: ...

    def polar_grad(
        self, W: Tensor, grad_U: Tensor, found: Polar, eps: float, relative: bool
    ) -> Tensor:
        """dL/dW from dL/dU; only G, V and s of ``found`` are used."""

    def forward(
        self, x: Tensor, Ws: Matrices, options: LayerOptions
    ) -> tuple[Tensor, SavedForBackward]:
        """A layer's output, U's and map together."""

    def backward(
        self,
        x: Tensor,
        grad: Tensor,
        Ws: Matrices,
        saved: SavedForBackward,
        options: LayerOptions,
        wanted: Sequence[bool],
    ) -> list[Tensor | None]:
        """dL/dx and dL/dW by mode, where they are wanted."""
