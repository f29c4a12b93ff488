"""Run models on an example input, and compare their outputs."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple, TypeVar

import torch
from torch import Tensor, nn

from ..errors import ProjectionTypeError, ProjectionValueError

M = TypeVar("M", bound=nn.Module)

RUNS = "a model that runs on example_input"


class OutputMismatchError(Exception):
    """Two models give different outputs for the same input."""


def read_arguments(model: nn.Module, example_input: Tensor | Sequence[Any]) -> tuple[Any, ...]:
    """Return the model's positional arguments."""
    if not isinstance(model, nn.Module):
        raise ProjectionTypeError(
            f"Expected model to be a torch.nn.Module, got {type(model).__name__}."
        )
    if isinstance(example_input, Tensor):
        return (example_input,)
    if not isinstance(example_input, list | tuple) or not example_input:
        raise ProjectionTypeError(
            "Expected example_input to be a tensor or a tuple of the model's arguments, "
            f"got {type(example_input).__name__}."
        )
    return tuple(example_input)


def eval_copy(model: M) -> M:
    """Return a deep copy in eval mode: running it changes neither the model nor a BatchNorm."""
    return copy.deepcopy(model).eval()


def run(model: nn.Module, args: Any, expected: str = RUNS) -> Any:
    """Return the model's outputs without gradients; on failure an error names ``expected``."""
    args = map_tensors(torch.clone, args)  # a layer such as ReLU(inplace=True) may write into them
    try:
        with torch.no_grad():
            return model(*args)
    except Exception as error:
        raise ProjectionValueError(
            f"Expected {expected}, got {type(error).__name__}: {error}"
        ) from error


class Call(NamedTuple):
    """The first argument and the output of one call of a module."""

    x: Any
    z: Any
    autocast: bool


def record_calls(
    model: nn.Module, names: Iterable[str], args: Any, expected: str = RUNS
) -> dict[str, list[Call]]:
    """Run the model, and return the calls of the modules with these names."""
    calls: dict[str, list[Call]] = {name: [] for name in names}
    handles = []
    for name in calls:

        def record(_: nn.Module, inputs: Any, named: Any, z: Any, name: str = name) -> None:
            x = (*inputs, *named.values())[0]
            device = x.device.type if isinstance(x, Tensor) else "meta"
            autocast = device != "meta" and torch.is_autocast_enabled(device)
            calls[name].append(Call(x, z, autocast))

        hook = model.get_submodule(name).register_forward_hook
        handles.append(hook(record, prepend=True, with_kwargs=True))
    run(model, args, expected)
    for handle in handles:
        handle.remove()
    return calls


def map_tensors(function: Callable[[Tensor], Any], value: Any) -> Any:
    """Apply ``function`` to every tensor in nested tuples, lists and dicts."""
    if isinstance(value, Tensor):
        return function(value)
    if isinstance(value, dict):
        return {key: map_tensors(function, entry) for key, entry in value.items()}
    if isinstance(value, tuple | list):
        entries = [map_tensors(function, entry) for entry in value]
        return tuple(entries) if isinstance(value, tuple) else entries
    return value


def flat(value: Any) -> list[Any]:
    """Return the entries of nested tuples, lists and dicts."""
    if isinstance(value, dict):
        value = list(value.values())
    if isinstance(value, tuple | list):
        return [leaf for entry in value for leaf in flat(entry)]
    return [value]


def to_float64(x: Tensor) -> Tensor:
    """Return x in float64, on the CPU if its device (Apple's GPU) has none."""
    return (x.cpu() if x.device.type == "mps" else x).double()


def parameter_count(module: nn.Module) -> int:
    """Return the number of parameters; those of uninitialized lazy modules do not count."""
    return sum(p.numel() for p in module.parameters() if not nn.parameter.is_lazy(p))


def set_module(root: nn.Module, name: str, module: nn.Module) -> None:
    parent, _, last = name.rpartition(".")
    setattr(root.get_submodule(parent), last, module)


def table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Return a table as text: left-aligned columns, two spaces apart."""
    lines = [head, *rows]
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    return "\n".join(
        "  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip()
        for line in lines
    )


class Reference:
    """A model's outputs for the example, for its first sample, for no sample, and once more.

    The example comes twice because a model may change its own state in a call. Sizes that the model
    cannot run are left out.
    """

    def __init__(self, model: nn.Module, args: tuple[Any, ...]) -> None:
        twin = eval_copy(model)
        self._inputs, self._outputs = [args], [flat(run(twin, args))]
        for example in (_first_samples(args, 1), _first_samples(args, 0), args):
            try:
                self._outputs.append(flat(run(twin, example)))
                self._inputs.append(example)
            except ProjectionValueError:
                pass
        tensors = [*model.parameters(), *model.buffers(), *flat(self._inputs), *flat(self._outputs)]
        types = {t.dtype for t in tensors if isinstance(t, Tensor) and t.is_floating_point()}
        self._eps = max((torch.finfo(dtype).eps for dtype in types), default=0.0)

    def difference(self, other: nn.Module) -> float:
        """Return the largest difference of the outputs, or raise OutputMismatchError.

        An output may differ by 1e-5 of its own scale, or more in types coarser than float32.
        """
        twin = eval_copy(other)
        try:
            found = [flat(run(twin, args)) for args in self._inputs]
        except ProjectionValueError as error:
            raise OutputMismatchError(str(error)) from error
        largest = 0.0
        for got, expected in zip(found, self._outputs, strict=True):
            if list(map(_kind, got)) != list(map(_kind, expected)):
                raise OutputMismatchError(
                    f"got {list(map(_kind, got))} for {list(map(_kind, expected))}"
                )
            for a, b in zip(got, expected, strict=True):
                if not isinstance(b, Tensor) or not b.is_floating_point() or not b.numel():
                    continue
                off, scale = _off(a, b), to_float64(b).abs().nan_to_num(posinf=0.0).max().item()
                if not off <= max(1e-5, 16 * self._eps) * scale:  # NaN is not <=
                    raise OutputMismatchError(
                        f"got a difference of {off:.1e} in outputs of up to {scale:.1e}"
                    )
                largest = max(largest, off)
        return largest


def _first_samples(args: tuple[Any, ...], n: int) -> Any:
    """Return the example with n samples: axis 0 of all tensors as long as the first tensor."""
    sizes = [a.shape[0] for a in flat(args) if isinstance(a, Tensor) and a.ndim]
    return map_tensors(lambda a: a[:n] if a.ndim and a.shape[0] == sizes[0] else a, args)


def _off(a: Tensor, b: Tensor) -> float:
    a, b = to_float64(a), to_float64(b)
    equal = (a == b) | (a.isnan() & b.isnan())  # equal infinities, too
    return (a - b).abs().masked_fill(equal, 0).max().item()


def _kind(a: Any) -> str:
    return f"{tuple(a.shape)} of {a.dtype}" if isinstance(a, Tensor) else type(a).__name__
