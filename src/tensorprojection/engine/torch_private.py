"""Every private name of torch that the package uses, each behind one function here.

Note [Private names]
    A layer that keeps its numbers in C kernels has to know who else is looking: a transform, a
    tracer, a mode; and model surgery has to read the exporter's graphs. Torch has no public way to
    ask most of that. What is used stands here and nowhere else, so that a new version of torch is
    looked over in one file; tests/engine/test_torch_private.py shows what each is taken to mean.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import torch
from torch import Tensor
from torch.autograd import forward_ad

# torch has no public names for these; torch's own libraries import them from here too.
from torch.utils._python_dispatch import TorchDispatchMode as TorchDispatchMode
from torch.utils._pytree import tree_flatten as tree_flatten
from torch.utils._pytree import tree_leaves as tree_leaves
from torch.utils._pytree import tree_map as tree_map
from torch.utils._pytree import tree_unflatten as tree_unflatten

_functorch = torch._C._functorch


# Kinds of tensors


def dispatch_keys(x: Tensor) -> int:
    """What kind of tensor x is to torch: its device, and wrappers or pending operations."""
    keys: int = torch._C._dispatch_keys(x).raw_repr()
    return keys


def is_legacy_batched(x: Tensor) -> bool:
    """Whether x is batched by the vmap behind ``is_grads_batched`` and ``vectorize``."""
    return bool(_functorch.is_legacy_batchedtensor(x))


# Modes


def in_dispatch_mode() -> bool:
    """Whether a TorchDispatchMode is on: one of torch's tracers, or a user's own."""
    return torch._C._len_torch_dispatch_stack() > 0


_TRACING_MODES = tuple(
    getattr(torch._C._TorchDispatchModeKey, name)
    for name in ("FAKE", "PROXY", "FUNCTIONAL")
    if hasattr(torch._C._TorchDispatchModeKey, name)
)


def in_tracing_mode() -> bool:
    """Whether one of the modes is on in which operations are recorded, or have no values."""
    return any(torch._C._get_dispatch_mode(key) is not None for key in _TRACING_MODES)


def without_modes() -> AbstractContextManager[Any]:
    """Real arithmetic, inside of a tracer."""
    from torch.utils._python_dispatch import _disable_current_modes

    context: AbstractContextManager[Any] = _disable_current_modes()
    return context


# Transforms


def in_functorch() -> bool:
    """Whether a transform of torch.func is under way."""
    return _functorch.peek_interpreter_stack() is not None


def mark_constant(function: Any) -> Any:
    """What torch.compiler.assume_constant_result does, without its import of the whole compiler."""
    function._dynamo_marked_constant = True
    return function


def in_forward_mode() -> bool:
    """Whether a level of forward-mode differentiation is open."""
    return forward_ad._current_level >= 0


def jvp_levels(x: Tensor) -> int:
    """How many nested transforms of torch.func carry a tangent of x."""
    stack = _functorch.get_interpreter_stack() or []
    kinds = {level.level(): level.key() for level in stack}
    count = 0
    while _functorch.is_functorch_wrapped_tensor(x):
        count += kinds.get(_functorch.maybe_get_level(x)) == _functorch.TransformType.Jvp
        x = _functorch.get_unwrapped(x)
    return count


# Compilers, exporters, tracers


def is_exporting() -> bool:
    """Whether torch.export is at work.

    Inside Dynamo, torch 2.8 and 2.9 take torch.compiler.is_exporting() for True; the variable
    behind it is right.
    """
    return torch.compiler._is_exporting_flag


# Before, Dynamo takes any W that functional_call puts in place for the parameter itself.
KNOWS_PARAMETERS = tuple(map(int, torch.__version__.split(".")[:2])) >= (2, 13)


def real_tensor(W: Tensor) -> Tensor | None:
    """The parameter for which an exporter's W stands; None if W is not simply that parameter.

    An exporter puts tensors without values in the parameters' place, and remembers which came from
    which.
    """
    from torch._subclasses.fake_tensor import FakeTensor

    if not isinstance(W, FakeTensor):
        return None
    converter = W.fake_mode.fake_tensor_converter.meta_converter
    for real, number in converter.describer.lookup_tensor.items():
        if number in converter.tensor_memo and converter.tensor_memo[number] is W:
            found: Tensor = real
            return found
    return None


def in_jit_trace() -> bool:
    """Whether torch.jit.trace is at work."""
    return not torch.compiler.is_compiling() and torch._C._is_tracing()


def without_jit_trace() -> AbstractContextManager[None]:
    """What is computed inside becomes a constant of a torch.jit.trace, if one is under way."""
    return _paused() if in_jit_trace() else nullcontext()


@contextmanager
def _paused() -> Iterator[None]:
    tracer: Any = torch._C
    state = tracer._get_tracing_state()
    tracer._set_tracing_state(None)
    try:
        yield
    finally:
        tracer._set_tracing_state(state)


# Graphs


def is_operator(target: Any) -> bool:
    """Whether a node of a graph calls one of torch's operators."""
    return isinstance(target, torch._ops.OpOverload)


def writes(operator: Any) -> bool:
    """Whether one of torch's operators writes into one of its arguments."""
    return bool(operator._schema.is_mutable)


def is_block(target: Any) -> bool:
    """Whether a node of a graph runs a graph of its own, such as torch.cond's."""
    return isinstance(target, torch._ops.HigherOrderOperator)


def size_as_text(expression: Any) -> str:
    """An expression in sizes, as Python writes it."""
    from torch.utils._sympy.printers import PythonPrinter

    text: str = PythonPrinter().doprint(expression)
    return text


def size_as_nodes(expression: Any, proxies: Any) -> Any:
    """An expression in sizes, computed from proxies of a graph."""
    from torch.utils._sympy.interp import sympy_interp
    from torch.utils._sympy.reference import PythonReferenceAnalysis

    return sympy_interp(PythonReferenceAnalysis, proxies, expression)
