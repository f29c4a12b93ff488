"""Tensors that wait for the backward pass, checked when they come back.

A hook on saved tensors (``torch.autograd.graph.saved_tensors_hooks``: offloading, compression) may
return another type or memory format than it was given.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from ..errors import ProjectionError
from .dtypes import cast
from .tracing import in_compiler

Kind = tuple[torch.Size, torch.dtype] | None


def save(ctx: Any, *tensors: Tensor | None) -> None:
    """``ctx.save_for_backward``, with a note of what was saved."""
    # A compiler runs no hooks, and need not see the note.
    ctx.kinds = None if in_compiler() else [t if t is None else (t.shape, t.dtype) for t in tensors]
    ctx.save_for_backward(*tensors)


def saved(ctx: Any) -> Sequence[Any]:
    """What was saved, in the types in which it was."""
    if ctx.kinds is None:
        tensors: Sequence[Any] = ctx.saved_tensors
        return tensors
    return [_as_saved(t, kind) for t, kind in zip(ctx.saved_tensors, ctx.kinds, strict=True)]


def _as_saved(found: Tensor | None, kind: Kind) -> Tensor | None:
    if found is None or kind is None:
        return None
    shape, dtype = kind
    if found.shape != shape:
        raise ProjectionError(
            f"Expected a hook on saved tensors to give back a tensor of shape {tuple(shape)}, got "
            f"{tuple(found.shape)}."
        )
    return cast(found, dtype)
