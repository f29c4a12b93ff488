"""Operators of the package, as torch's compilers and tracers see them.

By torch.library.Library and not by torch.library.custom_op, whose checks take some 70 µs at every
call. None has a rule for autograd of its own: they are called inside of torch.autograd.Functions.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

_LIBRARY = torch.library.Library("tensorprojection", "FRAGMENT")

# Note [What a CUDA graph can hold]
#     An operator that copies to the host, or looks at a value there, cannot be recorded in a CUDA
#     graph. Such ones carry a tag that says so, and torch.compile's "reduce-overhead" leaves them
#     out of its graphs. Those for devices wait for nothing and carry none. Torch 2.8 has no tag for
#     it.
WAITS: tuple[torch.Tag, ...] = tuple(
    getattr(torch.Tag, name) for name in ("cudagraph_unsafe",) if hasattr(torch.Tag, name)
)


def opaque(
    name: str,
    schema: str,
    values: Callable[..., Any],
    fake: Callable[..., Any],
    tags: tuple[torch.Tag, ...] = (),
) -> Any:
    """An operator that nobody looks into: its values, and what comes out without values."""
    _LIBRARY.define(f"{name}{schema}", tags=tags)
    _LIBRARY.impl(name, values, "CompositeExplicitAutograd")
    torch.library.register_fake(f"tensorprojection::{name}", fake, lib=_LIBRARY)
    return getattr(torch.ops.tensorprojection, name).default


def composite(name: str, schema: str, function: Callable[..., Any]) -> Any:
    """An operator that is one call to Dynamo, and that those after it take apart."""
    _LIBRARY.define(f"{name}{schema}")
    _LIBRARY.impl(name, function, "CompositeImplicitAutograd")
    return getattr(torch.ops.tensorprojection, name).default
