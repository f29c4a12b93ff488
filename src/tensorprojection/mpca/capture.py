"""Features from inside a model, as data for a start or a choice of dimensions."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from difflib import get_close_matches
from typing import Any

import torch
from torch import Tensor, nn

from ..errors import ProjectionTypeError, ProjectionValueError

# How many samples of a tensor go through the model at a time.
BATCH = 64


def capture(model: nn.Module, name: str, loader: Tensor | Iterable[Any]) -> Iterable[Tensor]:
    """The outputs of one module inside a model, batch by batch, as the model runs over a loader.

    >>> model = nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU(), nn.Flatten(), nn.LazyLinear(4))
    >>> features = capture(model, "1", torch.randn(100, 3, 12, 12))
    >>> [tuple(f.shape) for f in features]
    [(64, 8, 10, 10), (36, 8, 10, 10)]

    The model runs in eval mode and without gradients, and is left as it was after every batch. The
    result can be gone through again wherever the loader can.

    Args:
        model: any module; batches are moved to the device of its first parameter.
        name: of the module, as ``model.named_modules()`` lists it, such as ``"features.7"``. One
            that is called several times in a forward pass gives several outputs.
        loader: batches that the model takes; of a tuple such as ``(x, y)`` the first entry. A
            tensor is cut into batches of 64.
    """
    modules = dict(model.named_modules(remove_duplicate=False))
    if name not in modules:
        near = get_close_matches(name, [n for n in modules if n], n=5, cutoff=0.4)
        names = near or [n for n in modules if n][:5]
        hint = ", ".join(map(repr, names)) or "none at all"
        raise ProjectionValueError(
            f"Expected the name of a module inside {type(model).__name__}, got {name!r}; "
            f"{'near names' if near else 'there are'}: {hint}."
        )
    features = _Features(model, modules[name], loader)
    return iter(features) if isinstance(loader, Iterator) else features


class _Features:
    """Runs the model anew each time it is iterated."""

    def __init__(self, model: nn.Module, module: nn.Module, loader: Tensor | Iterable[Any]) -> None:
        self._model, self._module, self._loader = model, module, loader

    def __iter__(self) -> Iterator[Tensor]:
        loader = self._loader
        for batch in loader.split(BATCH) if isinstance(loader, Tensor) else loader:
            x = batch[0] if isinstance(batch, tuple | list) and len(batch) else batch
            parameter = next(self._model.parameters(), None)
            if isinstance(x, Tensor) and parameter is not None:
                x = x.to(parameter.device)
            # All is undone before a batch is yielded: the caller may stop after any.
            with _outputs(self._model, self._module) as outputs:
                self._model(x)
            if not outputs:
                raise ProjectionValueError(
                    "Expected a module that the model's forward pass calls, got one that it does "
                    "not: the model gave no output of it."
                )
            yield from outputs


@contextmanager
def _outputs(model: nn.Module, module: nn.Module) -> Iterator[list[Tensor]]:
    outputs: list[Tensor] = []

    def keep(_: nn.Module, __: Any, output: Any) -> None:
        first = output[0] if isinstance(output, tuple | list) and len(output) else output
        if not isinstance(first, Tensor):
            raise ProjectionTypeError(
                f"Expected a module that returns a tensor, or a tuple that starts with one, got "
                f"{type(output).__name__}."
            )
        # A later in-place operation, such as ReLU(inplace=True), must not reach it.
        outputs.append(first.detach().clone())

    modes = {m: m.training for m in model.modules()}
    handle = module.register_forward_hook(keep)
    model.eval()
    try:
        with torch.no_grad():
            yield outputs
    finally:
        handle.remove()
        for m, training in modes.items():
            m.training = training
