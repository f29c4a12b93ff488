"""Ask once how an operation may run, and keep torch's private names in one place.

Also what follows from the answer: autograd.Functions in two forms, and custom ops.

Note [Three strategies]
    QUICK is for eager mode, torch.compile, fake tensors and dispatch modes: classic
    autograd.Functions around custom ops, which the dispatcher knows how to trace.
    TRANSFORM is for torch.func and forward mode: the same Functions in the form that has rules for
    vmap and jvp, which costs about 90 µs more per call.
    PLAIN is for whoever has to look into every operation: torch.export and torch.jit.trace, whose
    graphs have to run without this package; torch.func inside torch.compile, where Dynamo refuses
    a Function with a jvp; nested forward mode, which calls a Function's jvp once and drops the rest
    without an error (pytorch/pytorch#197867); and the old vmap behind ``vectorize=True``.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from enum import Enum, auto
from typing import Any, NamedTuple, TypeVar

import torch
from torch import Tensor, fx
from torch.autograd import Function, forward_ad
from torch.nn import Buffer, Parameter

from ..errors import ProjectionError

_functorch = torch._C._functorch
_PLAIN_TYPES = (Tensor, Parameter, Buffer)

F = TypeVar("F", bound=Callable[..., Any])


class Strategy(Enum):
    """See Note [Three strategies]."""

    QUICK = auto()
    TRANSFORM = auto()
    PLAIN = auto()


def constant_to_dynamo(function: F) -> F:
    """Do what torch.compiler.assume_constant_result does, without importing the compiler."""
    function._dynamo_marked_constant = True  # type: ignore[attr-defined]
    return function


def strategy(*tensors: Tensor | None) -> Strategy:
    """Return how an operation on these tensors may run."""
    if torch.compiler.is_compiling():
        return Strategy.PLAIN if _compiler_needs_plain() else Strategy.QUICK
    if torch.jit.is_tracing():
        return Strategy.PLAIN
    for x in tensors:
        if x is not None and _functorch.is_legacy_batchedtensor(x):
            return Strategy.PLAIN
    levels = _functorch.get_interpreter_stack()
    if levels:
        forward = [level for level in levels if level.key() == _functorch.TransformType.Jvp]
        return Strategy.PLAIN if len(forward) > 1 else Strategy.TRANSFORM
    return Strategy.TRANSFORM if forward_ad._current_level >= 0 else Strategy.QUICK


@constant_to_dynamo
def _compiler_needs_plain() -> bool:
    # Not a Strategy: Dynamo does not see that a constant is the same object as an Enum's member.
    if forward_ad._current_level >= 0:
        # Dynamo drops a Function's rule for forward mode without an error
        # (pytorch/pytorch#192985), and has crashed the process on ordinary operations.
        raise ProjectionError(
            "torch.func.jvp inside torch.compile is not supported: call jvp outside of the "
            "compiled function."
        )
    return is_exporting() or bool(_functorch.get_interpreter_stack())


def is_exporting() -> bool:
    """Return True inside torch.export.

    Inside Dynamo, torch.compiler.is_exporting() is True under torch.compile as well in torch 2.8
    and 2.9. The variable behind it is right.
    """
    return torch.compiler._is_exporting_flag


def are_cacheable(tensors: Sequence[Tensor]) -> bool:
    """Return True for CPU tensors with values outside of tracers, transforms and dispatch modes.

    Selective checkpointing is such a mode: it expects the same operations when it runs a layer
    again, cached or not.
    """
    return (
        all(type(x) in _PLAIN_TYPES and x.device.type == "cpu" for x in tensors)
        and not torch.compiler.is_compiling()
        and not torch._C._len_torch_dispatch_stack()
        and not _functorch.get_interpreter_stack()
    )


def versions(tensors: Sequence[Tensor | None]) -> list[int]:
    """Return how often each tensor was edited in place."""
    return [0 if x is None else x._version for x in tensors]


def constant_behind(W: Tensor) -> Tensor | None:
    """Return the parameter that an exporter's fake tensor W stands for, if its U can be a constant.

    None if W was computed or written to, or is not a parameter, and None in a branch or a loop,
    whose graph does not show the writes around it. A write to W after the call is refused.
    """
    from torch.fx.experimental.proxy_tensor import get_proxy_mode

    tracer: Any = get_proxy_mode().tracer  # type: ignore[union-attr]
    real = _parameter_behind(W)
    if real is None or _is_in_subgraph() or _is_written(W, real, tracer):
        return None
    create_node = tracer.graph.create_node

    def checked(kind: str, *args: Any, **kwargs: Any) -> Any:
        if kind == "output":  # the last node
            tracer.graph.__dict__.pop("create_node", None)
            if _is_written(W, real, tracer):
                raise ProjectionError(
                    "torch.export cannot take U as a constant: the model writes to W after calling "
                    "the projection. Write to W before the call, or call freeze() on the layer."
                )
        return create_node(kind, *args, **kwargs)

    tracer.graph.create_node = checked
    return real


def _is_in_subgraph() -> bool:
    """Return True in a branch or a loop, which an exporter traces by a call of its own."""
    frame: Any = sys._getframe()
    while frame is not None and not frame.f_code.co_name.startswith("trace_subgraph"):
        frame = frame.f_back
    return frame is not None


def _parameter_behind(W: Any) -> Tensor | None:
    if not hasattr(W, "fake_mode"):  # a tensor of the user's, not one of the program
        return None
    converter = W.fake_mode.fake_tensor_converter.meta_converter
    for real, number in converter.describer.lookup_tensor.items():
        if converter.tensor_memo.get(number) is W:
            return real if isinstance(real, Parameter) else None
    return None


def _is_written(W: Tensor, real: Tensor, tracer: Any) -> bool:
    """Return True if the traced program writes to the memory of W.

    W's version does not count writes through ``W.data``, by ``torch._foreach_mul_``, or to another
    tensor in the same memory. Those are found in the graph.
    """
    memory = W.untyped_storage(), real.untyped_storage()
    places: list[Any] = []
    for node in tracer.graph.nodes:
        schema = getattr(node.target, "_schema", None)
        if schema is None:
            continue
        names = [argument.name for argument in schema.arguments]
        given = {**dict(zip(names, node.args, strict=False)), **node.kwargs}
        # The schemas of batch_norm and instance_norm do not mark the statistics they write to.
        written = [given[name] for name in ("running_mean", "running_var") if name in given]
        if schema.is_mutable:
            written += [given[a.name] for a in schema.arguments if a.is_write and a.name in given]
            written.append(node)
        fx.node.map_arg(written, places.append)
    values = [n.meta.get("val") for n in places]
    values += [getattr(tracer.root, n.target) for n in places if n.op == "get_attr"]
    tensors = (x for x in values if isinstance(x, Tensor) and x.layout == torch.strided)
    return W._version > 0 or any(x.untyped_storage() is m for x in tensors for m in memory)


def without_modes() -> AbstractContextManager[Any]:
    """Compute with real tensors inside of a tracer."""
    from torch.utils._python_dispatch import _disable_current_modes

    context: AbstractContextManager[Any] = _disable_current_modes()
    return context


def outside_jit_trace() -> AbstractContextManager[None]:
    """Keep the operations inside out of a torch.jit.trace: their results are constants of it."""
    tracing = not torch.compiler.is_compiling() and torch.jit.is_tracing()
    return _paused_jit_trace() if tracing else nullcontext()


@contextmanager
def _paused_jit_trace() -> Iterator[None]:
    jit: Any = torch._C
    state = jit._get_tracing_state()
    jit._set_tracing_state(None)
    try:
        with torch.no_grad():  # a constant cannot require a gradient
            yield
    finally:
        jit._set_tracing_state(state)


# Functions and custom ops

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

    def form(self, how: Strategy) -> Any:
        return self.full if how is Strategy.TRANSFORM else self.quick

    def __call__(self, *args: Any) -> Any:
        return self.form(strategy()).apply(*args)


def differentiable(full: type[Function]) -> Differentiable:
    """Derive the quick form from a Function with setup_context, backward, jvp and vmap."""

    def forward(ctx: Any, *args: Any) -> Any:
        output = full.forward(*args)
        full.setup_context(ctx, args, output)
        return output

    forms = {"forward": staticmethod(forward), "backward": staticmethod(full.backward)}
    return Differentiable(full, type(f"{full.__name__}Quick", (Function,), forms))
