"""A layer on an accelerator: all modes at once, nothing that waits; see Note [Nothing waits]."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from ..dtypes import WITHOUT_FLOAT64
from ..interface import LayerOptions, SavedForBackward
from ..layout import Matrices
from ..torch_engine import TorchEngine
from .factors import Factors
from .modes import in_stacks, modes_gradients, modes_values

_ELSEWHERE = {"cpu", "meta"}


class DeviceEngine(TorchEngine):
    """See :class:`engine.Engine`. It saves the U's, then U, T, H and size for each stack of W's."""

    @staticmethod
    def serves(*Ws: Tensor | None) -> bool:
        """Whether the W's are on a device where waiting costs time, and not float64 themselves.

        A W of float64 itself goes to the host; see Note [How exact].
        """
        present = [W for W in Ws if W is not None]
        return bool(present) and all(
            W.device.type not in _ELSEWHERE
            and W.device.type not in WITHOUT_FLOAT64
            and W.dtype != torch.float64
            for W in present
        )

    def forward(
        self, x: Tensor, Ws: Matrices, options: LayerOptions
    ) -> tuple[Tensor, SavedForBackward]:
        present = [k for k, W in enumerate(Ws) if W is not None]
        matrices = [W for W in Ws if W is not None]
        eps = [options.eps[k] for k in present]
        found, stacks = modes_values(matrices, eps, options.relative, x.dtype)
        if options.flag is not None:
            shapes = [(W.shape[0], W.shape[1]) for W in matrices]
            names = in_stacks(shapes, [options.names[k] for k in present])
            options.flag.put(names, [stack.size for stack in stacks])
        z = self.map(x, _by_mode(found, Ws), options.transposed, x)
        return z, SavedForBackward((*found, *(t for stack in stacks for t in stack)), None)

    def backward(
        self,
        x: Tensor,
        grad: Tensor,
        Ws: Matrices,
        saved: SavedForBackward,
        options: LayerOptions,
        wanted: Sequence[bool],
    ) -> list[Tensor | None]:
        present = [k for k, W in enumerate(Ws) if W is not None]
        Us = _by_mode(saved.tensors[: len(present)], Ws)
        numbers = saved.tensors[len(present) :]
        if not any(wanted[1:]):
            return [self.map(grad, Us, not options.transposed, x), *[None] * len(Ws)]
        grad_x, grad_Us = self.gradients(x, grad, Us, options.transposed, wanted[0])
        stacks = [Factors(*numbers[i : i + 4]) for i in range(0, len(numbers), 4)]
        grad_Ws = modes_gradients(
            [dU for dU in grad_Us if dU is not None],
            stacks,
            [options.eps[k] for k in present],
            options.relative,
            [W.dtype for W in Ws if W is not None],
        )
        by_mode = _by_mode(grad_Ws, Ws)
        # One W of a stack costs as much as the whole stack.
        return [
            grad_x,
            *(dW if want else None for dW, want in zip(by_mode, wanted[1:], strict=True)),
        ]


def _by_mode(matrices: Sequence[Tensor], Ws: Matrices) -> list[Tensor | None]:
    present = iter(matrices)
    return [None if W is None else next(present) for W in Ws]
