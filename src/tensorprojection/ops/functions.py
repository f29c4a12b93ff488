"""Custom ops, and autograd.Functions in the form that each strategy needs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch.autograd import Function

from .tracing import Strategy, strategy

# torch.library.custom_op checks its arguments at each call, which takes about 70 µs.
LIBRARY = torch.library.Library("tensorprojection", "FRAGMENT")


def register(
    name: str, schema: str, implementation: Callable[..., Any], fake: Callable[..., Any]
) -> Any:
    """Register a custom op with a real and a fake (meta) implementation, and return it."""
    LIBRARY.define(f"{name}{schema}")
    LIBRARY.impl(name, implementation, "CPU")
    torch.library.register_fake(f"tensorprojection::{name}", fake, lib=LIBRARY)
    return getattr(torch.ops.tensorprojection, name).default


class Differentiable(NamedTuple):
    """A function with a derivative, in two forms of torch.autograd.Function; call it.

    The quick form, which has no rules for vmap and jvp, has half the overhead. torch.compile takes
    it as well: Dynamo refuses a Function with a jvp.
    """

    full: type[Function]
    quick: type[Function]

    def __call__(self, *args: Any) -> Any:
        form: Any = self.full if strategy() is Strategy.TRANSFORM else self.quick
        return form.apply(*args)


def differentiable(full: type[Function]) -> Differentiable:
    """Derive the quick form from a Function with setup_context, backward, jvp and vmap."""

    def forward(ctx: Any, *args: Any) -> Any:
        output = full.forward(*args)
        full.setup_context(ctx, args, output)
        return output

    forms = {"forward": staticmethod(forward), "backward": staticmethod(full.backward)}
    return Differentiable(full, type(f"{full.__name__}Quick", (Function,), forms))
