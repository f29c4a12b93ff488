"""Running a model on an example without leaving a trace in it."""

from __future__ import annotations

import copy
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import torch
from torch import Tensor, nn

from ..engine.dtypes import autocasts
from ..engine.torch_private import tree_map
from ..errors import ProjectionTypeError, ProjectionValueError

M = TypeVar("M", bound=nn.Module)


def check_model(model: nn.Module) -> None:
    if not isinstance(model, nn.Module):
        raise ProjectionTypeError(
            f"Expected model to be a torch.nn.Module, got {type(model).__name__}."
        )


def arguments(example_input: Tensor | Sequence[Any]) -> tuple[Any, ...]:
    """The example as the model's positional arguments."""
    if isinstance(example_input, Tensor):
        return (example_input,)
    if not isinstance(example_input, list | tuple) or not example_input:
        raise ProjectionTypeError(
            "Expected example_input to be a tensor or a tuple of the model's arguments, "
            f"got {type(example_input).__name__}."
        )
    return tuple(example_input)


def duplicate(model: M) -> M:
    """A copy in eval mode, so that running it changes no buffer of a BatchNorm."""
    return copy.deepcopy(model).eval()


def run(model: nn.Module, args: tuple[Any, ...], what: str) -> Any:
    """The model's outputs without gradients; on failure, an error says ``what`` was expected."""
    # Of copies: a layer such as ReLU(inplace=True) may write into them.
    args = tree_map(lambda a: a.clone() if isinstance(a, Tensor) else a, args)
    try:
        with torch.no_grad():
            return model(*args)
    except Exception as error:
        raise ProjectionValueError(
            f"Expected {what}, got {type(error).__name__}: {error}"
        ) from error


@dataclass(frozen=True)
class Call:
    """One call of a module: what came in, what came out."""

    x: Any
    z: Any
    autocast: bool  # whether it was on there


def watch(model: nn.Module, names: Iterable[str], args: tuple[Any, ...]) -> dict[str, list[Call]]:
    """The calls that the modules of these names get while a copy of the model runs."""
    twin = duplicate(model)
    calls: dict[str, list[Call]] = {name: [] for name in names}

    for name, seen in calls.items():

        def note(
            module: nn.Module,
            inputs: tuple[Any, ...],
            named: dict[str, Any],
            z: Any,
            seen: list[Call] = seen,
        ) -> None:
            x = (*inputs, *named.values())[0]
            seen.append(Call(x, z, isinstance(x, Tensor) and autocasts(x)))

        twin.get_submodule(name).register_forward_hook(note, with_kwargs=True)
    run(twin, args, "a model that runs on example_input")
    return calls


def count(module: nn.Module) -> int:
    """The number of parameters; those yet to come, of lazy modules, are not counted."""
    return sum(p.numel() for p in module.parameters() if not nn.parameter.is_lazy(p))
