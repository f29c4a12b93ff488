"""U's kept in eval mode for as long as the W's they came from do not change.

Note [When U is kept]
    While a layer trains, U follows W at every step. In eval mode, where no gradient of W is asked
    for, U is computed once and kept together with a copy of the W it came from; the copy is
    compared with W at every call. Nothing less notices an edit through ``W.data``, which leaves
    W's version counter alone. The comparison reads p·q numbers; the decomposition it saves costs
    many times that.

Note [On an accelerator U is not kept]
    A comparison makes the host wait for the device, at every layer and every call. Computing U
    again takes some 65 launches of small products for all modes of a layer together, which the
    host queues without waiting. So in eval mode a layer on a device computes its U's at every
    call, as in training. To serve a model, `freeze()` it: then there is neither.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from ..engine.dispatch import by_products
from ..engine.tracing import Onlooker, onlooker

Us = list[Tensor | None]


@dataclass(frozen=True)
class CachedProjections:
    """U's, copies of the W's they came from, and the settings (dtype, ε) they were made with."""

    Ws: list[Tensor]
    Us: Us
    settings: tuple[object, ...]

    def serves(self, Ws: Sequence[Tensor], settings: tuple[object, ...]) -> bool:
        return (
            self.settings == settings
            and len(self.Ws) == len(Ws)
            and all(map(_identical, self.Ws, Ws))
        )


def renew(
    kept: CachedProjections | None,
    Ws: Sequence[Tensor],
    settings: tuple[object, ...],
    compute: Callable[[Sequence[Tensor]], Us],
) -> CachedProjections:
    """``kept`` where it still holds for these W's and settings, else a new one."""
    if kept is not None and kept.serves(Ws, settings):
        return kept
    # Outside of inference mode, or U could not take part in a backward pass later.
    with torch.inference_mode(False), torch.no_grad():
        copies = [W.detach().clone() for W in Ws]
        # From the copies: another thread may be changing W.
        return CachedProjections(copies, compute(copies), settings)


def may_keep(Ws: Sequence[Tensor]) -> bool:
    """Whether U can be a constant: nobody differentiates through W, and W has values to compare."""
    if torch.is_grad_enabled() and any(W.requires_grad for W in Ws):
        return False
    if by_products(*Ws):  # see Note [On an accelerator U is not kept]
        return False
    # What is computed inside a transform of torch.func belongs to it and must not outlive it.
    return onlooker(*Ws) in (Onlooker.NOBODY, Onlooker.MODE)


def _identical(a: Tensor, b: Tensor) -> bool:
    return a.dtype == b.dtype and a.device == b.device and torch.equal(a, b)
