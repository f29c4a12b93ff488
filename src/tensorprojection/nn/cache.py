"""The U's that a module in eval mode computes once: the layers' and `tensorprojection.Polar`'s."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from ..ops.layout import Matrices
from ..ops.tracing import are_cacheable, outside_jit_trace, versions


class _Entry(NamedTuple):
    """U's, copies of the W's they came from, and the settings they were computed with."""

    Ws: list[Tensor]
    Us: list[Tensor | None]
    versions: list[int]  # of the U's: an edit in place is not cached
    settings: tuple[object, ...]

    def is_of(self, Ws: Sequence[Tensor], settings: tuple[object, ...]) -> bool:
        return (
            self.settings == settings
            and self.versions == versions(self.Us)
            and len(self.Ws) == len(Ws)
            and all(
                a.dtype == b.dtype and torch.equal(a, b) for a, b in zip(self.Ws, Ws, strict=True)
            )
        )


class EvalCache:
    """The U's of the last call in eval mode.

    Note [When U is cached]
        While a layer trains, U follows W at every step. In eval mode, if no gradient of W is
        needed, U is computed once and cached with a copy of the W it came from. The copy is
        compared with W at every call: nothing less notices an edit through ``W.data``, which
        leaves W's version counter alone. The comparison reads p·q numbers; the decomposition
        it saves costs many times that. On an accelerator the comparison would synchronize, and
        inside torch.compile it would break the graph: there U is computed at every call. To
        deploy a model, freeze it.
    """

    def __init__(self) -> None:
        self._entry: _Entry | None = None

    def get_or_compute(
        self,
        Ws: Matrices,
        settings: tuple[object, ...],
        compute: Callable[[Matrices], list[Tensor | None]],
    ) -> list[Tensor | None]:
        """Return ``compute(Ws)``, or its last result if W's and settings have not changed since."""
        present = [W for W in Ws if W is not None]
        with outside_jit_trace():  # a constant of a torch.jit.trace
            if not are_cacheable(present) or (
                torch.is_grad_enabled() and any(W.requires_grad for W in present)
            ):
                return compute(Ws)
            entry = self._entry  # read once and written once: other threads may replace it
            if entry is None or not entry.is_of(present, settings):
                # Outside of inference mode, or U could not take part in a later backward pass.
                with torch.inference_mode(False), torch.no_grad():
                    # From copies: another thread may be changing W.
                    copies = [None if W is None else W.detach().clone() for W in Ws]
                    Us = compute(copies)
                entry = _Entry([W for W in copies if W is not None], Us, versions(Us), settings)
                self._entry = entry
            return entry.Us

    def __getstate__(self) -> dict[str, None]:
        return {"_entry": None}  # a copy or a pickle starts without a cache
