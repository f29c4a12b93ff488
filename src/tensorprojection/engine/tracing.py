"""Who looks on while a layer runs (a tracer, a transform, a mode): asked here, and only here.

Note [Who looks on]
    The C kernels read and write memory behind torch's back, so they serve plain dense tensors when
    nobody needs to see the operations: no compiler, no exporter, no transform of torch.func, no
    forward mode, no tracer, no dispatch mode. Everybody else gets torch's own operations, as ones
    that they can see through (`composed` maps, functions with rules for vmap and forward mode) or,
    where a value must not be looked at, as one opaque operator.
"""

from __future__ import annotations

from enum import Enum, auto
from functools import cache

import torch
from torch import Tensor
from torch.autograd import forward_ad
from torch.nn import Buffer, Parameter

from . import torch_private

_ORDINARY = (Tensor, Parameter, Buffer)  # a parameter of another kind of tensor has that type


class Onlooker(Enum):
    """Who looks on."""

    NOBODY = auto()
    MODE = auto()  # a dispatch mode with real tensors, such as FlopCounterMode
    TRACER = auto()  # tensors without values, or wrapped, or whose operations are recorded
    TRANSFORM = auto()  # torch.func, forward mode, a batch of gradients
    COMPILER = auto()
    EXPORTER = auto()


def onlooker(*tensors: Tensor | None) -> Onlooker:
    """Who looks on at operations on these tensors."""
    if in_compiler():
        who: Onlooker = onlooker_in_compiler()
        return who
    given = [x for x in tensors if x is not None]
    if in_transform(*given):
        return Onlooker.TRANSFORM
    if not all(map(has_values, given)) or torch_private.in_jit_trace():
        return Onlooker.TRACER
    if torch_private.in_dispatch_mode():
        return Onlooker.TRACER if torch_private.in_tracing_mode() else Onlooker.MODE
    return Onlooker.NOBODY


def in_compiler() -> bool:
    """Whether torch.compile or torch.export is at work: the code is followed, not run."""
    return torch.compiler.is_compiling()


def in_dynamo() -> bool:
    """Whether it is followed by Dynamo, as by torch.compile and by a strict torch.export."""
    return torch.compiler.is_dynamo_compiling()


@torch_private.mark_constant
def onlooker_in_compiler() -> Onlooker:
    """Which of a compiler's users looks on; only where `in_compiler` holds.

    A constant to Dynamo: one thing to check at each call of what it compiled, not a dozen. To it
    the answer equals a member of the enumeration, and is not the same object: compare by ==.
    """
    if torch_private.is_exporting():
        return Onlooker.EXPORTER
    return Onlooker.TRANSFORM if torch_private.in_functorch() else Onlooker.COMPILER


def is_exported() -> bool:
    """Whether torch.export is at work."""
    return torch_private.is_exporting()


def is_strict_parameter(W: Tensor) -> bool:
    """In a strict export, by Dynamo: whether W is known to be simply the layer's parameter."""
    return torch_private.KNOWS_PARAMETERS and in_dynamo() and isinstance(W, Parameter)


def in_jit_trace() -> bool:
    """Whether torch.jit.trace is at work, which takes what is computed from sizes for constants."""
    return torch_private.in_jit_trace()


def compiles_forward_mode() -> bool:
    """Whether forward mode is followed by a compiler."""
    return in_compiler() and torch_private.in_forward_mode()


def ignores_rules(x: Tensor) -> bool:
    """Whether somebody looks on who does not follow a torch.autograd.Function's rules in full.

    To be asked inside of a transform: see Note [Ordinary operations] in device/unrolled.py.
    """
    return in_compiler() or torch_private.jvp_levels(x) > 1


def is_ordinary(x: Tensor) -> bool:
    """Whether x is a tensor of torch's own kind, not of a subclass with ideas of its own."""
    return type(x) in _ORDINARY


def has_values(x: Tensor) -> bool:
    """Whether x is an ordinary tensor with numbers in it: not meta, not a stand-in of a tracer."""
    return is_ordinary(x) and not x.is_meta


def in_transform(*tensors: Tensor) -> bool:
    """Whether a transform of torch.func is under way, or a tensor is batched or has a tangent.

    Inside of a compiler the answer is no: it takes transforms apart itself.
    """
    if in_compiler():
        return False
    if torch_private.in_functorch():
        return True
    if torch_private.in_forward_mode() and any(
        forward_ad.unpack_dual(x).tangent is not None for x in tensors
    ):
        return True
    return any(map(torch_private.is_legacy_batched, tensors))


def is_opaque(*tensors: Tensor) -> bool:
    """Whether what depends on values must be one operator that nobody looks into."""
    if in_compiler() or torch_private.in_jit_trace():
        return True
    return torch_private.in_tracing_mode() or not all(map(has_values, tensors))


def is_plain(*tensors: Tensor | None) -> bool:
    """Whether these are dense tensors in the host's memory, and nobody looks on.

    Then, and only then, may their memory be read and written directly.
    """
    if (
        torch_private.in_dispatch_mode()
        or torch_private.in_functorch()
        or torch_private.in_jit_trace()
    ):
        return False
    kinds = _plain_kinds()
    return all(
        x is None or (type(x) in _ORDINARY and torch_private.dispatch_keys(x) in kinds)
        for x in tensors
    )


@cache
def _plain_kinds() -> frozenset[int]:
    """The kinds of an ordinary tensor, and of one made in inference mode.

    Not among them: wrapped and batched tensors, ones without memory (meta, fake, zero tensors) or
    of another layout, and views that wait to be negated or conjugated.
    """
    kinds = []
    for inference in (False, True):
        with torch.inference_mode(inference):
            kinds.append(torch_private.dispatch_keys(torch.empty(0, device="cpu")))
    return frozenset(kinds)
