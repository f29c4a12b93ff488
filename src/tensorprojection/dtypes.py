"""What kind of tensor this is: its type, autocast's, and whether torch.func looks on."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext

import torch
from torch import Tensor
from torch.autograd import forward_ad
from torch.nn import Buffer, Parameter

from .errors import ProjectionTypeError
from .shapes import Shape, check_shape, not_floating

_ORDINARY = (Tensor, Parameter, Buffer)  # a parameter of another kind of tensor has that type


def check_tensor(x: Tensor, name: str) -> None:
    if not isinstance(x, Tensor):
        raise ProjectionTypeError(f"Expected {name} to be a torch.Tensor, got {type(x).__name__}.")


def check_floating(x: Tensor, name: str) -> None:
    check_tensor(x, name)
    if not x.is_floating_point():
        raise not_floating(name, x.dtype)


def check_input(x: Tensor, in_shape: Shape) -> None:
    """x must be real, floating-point and end in in_shape."""
    check_floating(x, "the input")
    check_shape(x.shape, in_shape)


def has_values(x: Tensor) -> bool:
    """Whether x is an ordinary tensor with numbers in it: not meta, not a stand-in of a tracer."""
    return type(x) in _ORDINARY and not x.is_meta


def in_transform(*xs: Tensor) -> bool:
    """Whether a transform of torch.func is under way, or an x is batched or carries a tangent."""
    if torch._C._functorch.peek_interpreter_stack() is not None:
        return True
    if forward_ad._current_level >= 0 and any(
        forward_ad.unpack_dual(x).tangent is not None for x in xs
    ):
        return True
    return any(map(torch._C._functorch.is_legacy_batchedtensor, xs))


def no_autocast(x: Tensor) -> AbstractContextManager[None]:
    """Autocast off; nothing at all where it is off already, so that a trace shows nothing."""
    if autocasts(x):
        return torch.autocast(x.device.type, enabled=False)
    return nullcontext()


def map_dtype(x: Tensor) -> torch.dtype:
    """The type in which x is projected: its own, or autocast's (which leaves float64 alone)."""
    if x.dtype != torch.float64 and autocasts(x):
        return torch.get_autocast_dtype(x.device.type)
    return x.dtype


def autocasts(x: Tensor) -> bool:
    """Whether autocast is on where x is."""
    device = x.device.type
    return device != "meta" and torch.is_autocast_enabled(device)


def cast(x: Tensor, dtype: torch.dtype) -> Tensor:
    return x if x.dtype == dtype else x.to(dtype)
