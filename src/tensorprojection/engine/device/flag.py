"""Reports that a W has diverged as soon as the host can know it without waiting.

Note [One step later]
    The host is ahead of a GPU. `put` starts a copy of each M's norm (a few numbers that the
    iteration has anyway) into memory that the GPU writes while the host goes on; `check`, at the
    layer's next call, looks whether it has arrived, and raises if a norm is not a positive finite
    number. So the error comes one step after the one that diverged, or a few if the host is
    further ahead. W stays NaN once it is, so a copy that is skipped loses nothing.
    While a CUDA graph is captured nothing runs, so there is nothing to copy; and to ask for what is
    on its way would end the capture.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import isfinite
from typing import Any, Protocol

import torch
from torch import Tensor

from ...errors import DivergedError


class Arrival(Protocol):
    """Numbers on their way to the host."""

    def ready(self) -> bool:
        """Whether they are there; does not wait."""

    def numbers(self) -> list[float]:
        """All of them; only when they are there."""


class Transport(Protocol):
    """How numbers get from a device to the host without making either wait."""

    def start(self, norms: Sequence[Tensor]) -> Arrival | None:
        """None where that cannot be done now."""


class DeviceFlag:
    """One per layer. Copies and pickles of it start anew."""

    def __init__(self, transport: Transport | None = None) -> None:
        self._transport = transport or _NonBlocking()
        self._arrival: Arrival | None = None
        self._names: tuple[str, ...] = ()

    def put(self, names: Sequence[str], norms: Sequence[Tensor]) -> None:
        """Notes the norms of M, any number per tensor, in the order of the names of the W's."""
        if self._arrival is None:
            self._arrival = self._transport.start(norms)
            self._names = tuple(names)

    def check(self) -> None:
        """Raises DivergedError for what has arrived; does nothing if nothing has."""
        if self._arrival is None or not self._arrival.ready():
            return
        numbers, self._arrival = self._arrival.numbers(), None
        for name, norm in zip(self._names, numbers, strict=True):
            if not isfinite(norm):
                raise DivergedError(
                    f"{name} contained NaN or infinity in a step before this one: the training "
                    "has most likely diverged. Look at the loss and the gradients of that step "
                    "and of those before."
                )
            if norm == 0:
                raise DivergedError(
                    f"{name} was all zeros in a step before this one. With eps_mode='relative' "
                    f"the scale of {name} is the unit of eps, so it needs one: start from other "
                    "values, or use eps_mode='absolute'."
                )

    def __reduce__(self) -> Any:
        return DeviceFlag, ()


class _NonBlocking:
    """Through memory that the device writes itself, with an event recorded after the copy."""

    def start(self, norms: Sequence[Tensor]) -> Arrival | None:
        if not norms or _is_capturing(norms[0].device):
            return None
        if norms[0].device.type == "cpu":
            return _Arrived([norm.detach().clone() for norm in norms])
        return _OnItsWay(norms)


class _Arrived:
    def __init__(self, norms: Sequence[Tensor]) -> None:
        self._norms = norms

    def ready(self) -> bool:
        return True

    def numbers(self) -> list[float]:
        return [number for norm in self._norms for number in norm.flatten().tolist()]


class _OnItsWay(_Arrived):
    def __init__(self, norms: Sequence[Tensor]) -> None:
        device = norms[0].device
        pinned = [_pinned_like(norm) for norm in norms]
        for place, norm in zip(pinned, norms, strict=True):
            place.copy_(norm.detach(), non_blocking=True)
        self._device = device
        self._event = torch.Event(device)
        self._event.record()
        super().__init__(pinned)

    def ready(self) -> bool:
        return not _is_capturing(self._device) and bool(self._event.query())


def _pinned_like(norm: Tensor) -> Tensor:
    """Pinned memory: the host's, but the device can write it itself."""
    return torch.empty(norm.shape, dtype=norm.dtype, device="cpu", pin_memory=True)


def _is_capturing(device: torch.device) -> bool:
    return device.type == "cuda" and torch.cuda.is_current_stream_capturing()
