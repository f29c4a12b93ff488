"""Kinds of tensors: their types, autocast's, and DTensors."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext

import torch
from torch import Tensor

from ..errors import ProjectionTypeError
from ..shapes import Shape, check_shape, not_floating

# Devices that cannot hold float64, not even to copy from or to: Apple's.
WITHOUT_FLOAT64 = {"mps"}
HALF = (torch.float16, torch.bfloat16)


def has_float64(x: Tensor) -> bool:
    """Return True if x's device has float64."""
    return x.device.type not in WITHOUT_FLOAT64


def in_float64(x: Tensor) -> Tensor:
    """Return x in float64: on its own device, or on the host if the device has no float64."""
    return x.double() if has_float64(x) else x.cpu().double()


def back_like(x: Tensor, like: Tensor) -> Tensor:
    """Return x, from `in_float64`, in the type and on the device of ``like``."""
    return x.to(like.dtype).to(like.device)


def check_tensor(x: Tensor, name: str) -> None:
    if not isinstance(x, Tensor):
        raise ProjectionTypeError(f"Expected {name} to be a torch.Tensor, got {type(x).__name__}.")


def check_floating(x: Tensor, name: str) -> None:
    check_tensor(x, name)
    if not x.is_floating_point():
        raise not_floating(name, x.dtype)
    if x.layout is not torch.strided:
        raise ProjectionTypeError(
            f"Expected {name} to be a dense tensor (torch.strided), got layout {x.layout}."
        )


def check_input(x: Tensor, in_shape: Shape) -> None:
    """Refuse an x that is not real and floating-point, or whose shape does not end in in_shape."""
    check_floating(x, "the input")
    if x.shape[x.ndim - len(in_shape) :] != in_shape or x.ndim < len(in_shape):
        check_shape(tuple(x.shape), in_shape)


def no_autocast(x: Tensor) -> AbstractContextManager[None]:
    """Switch autocast off. If it is off already, do nothing, so that a trace shows nothing."""
    if autocasts(x):
        return torch.autocast(x.device.type, enabled=False)
    return nullcontext()


def map_dtype(x: Tensor) -> torch.dtype:
    """Return the type in which x is projected: its own, or autocast's except for float64."""
    if x.dtype != torch.float64 and autocasts(x):
        return torch.get_autocast_dtype(x.device.type)
    return x.dtype


def autocasts(x: Tensor) -> bool:
    """Return True if autocast is on for x's device."""
    device = x.device.type
    return device != "meta" and torch.is_autocast_enabled(device)


def derivative_dtype(dtype: torch.dtype) -> torch.dtype:
    """Return float32 for half types: see Note [The derivative in float32] in torch_steps.py."""
    return torch.float32 if dtype in HALF else dtype


def cast(x: Tensor, dtype: torch.dtype) -> Tensor:
    return x if x.dtype == dtype else x.to(dtype)


def is_distributed(x: Tensor | None) -> bool:
    """Return True for a DTensor. Its class is slow to import, so it is not imported for others."""
    return hasattr(x, "full_tensor")


def gathered(Ws: Sequence[Tensor | None]) -> list[Tensor | None]:
    """Return the W's as ordinary tensors, each whole; differentiable."""
    return [W.full_tensor() if is_distributed(W) else W for W in Ws]  # type: ignore[union-attr]
