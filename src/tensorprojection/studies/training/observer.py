"""Collects what the report shows beside the curves, while a network is validated.

It changes nothing of the training: it sees outputs that are computed anyway, and draws no random
numbers.
"""

from __future__ import annotations

import io
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from tensorprojection import FrozenProjection, TensorProjection, TransposeTensorProjection

from ..inputs import Data, Rows
from ..observed import Array, parse_observed

Projection = TensorProjection | TransposeTensorProjection | FrozenProjection

# U's of spatial modes are saved for every epoch if they have no more rows and entries than these.
LONGEST, SMALL = 512, 64 * 64


class Observer:
    """Observes one job. It is made with the initial network, before a checkpoint is restored.

    Args:
        network: the job's.
        before: the file that :meth:`collect` made of the epochs before, if there are any.
    """

    def __init__(self, network: nn.Module, before: bytes | None = None) -> None:
        found = None if before is None else parse_observed(before)
        self.before = {} if found is None else dict(found.arrays)
        self.layers = {
            name: layer for name, layer in network.named_modules() if isinstance(layer, Projection)
        }
        self.start = {f"start/{name}": U for name, U in _matrices(self.layers).items()}
        self.confusion: Array | None = None
        self.energy: dict[str, list[float]] = {}
        self.dice: list[float] = []
        self.found: list[Array] = []

    @contextmanager
    def looking(self) -> Iterator[None]:
        """Measure the layers' energy while a validation goes on."""
        self.confusion, self.dice, self.found = None, [], []
        self.energy = {
            name: [0.0, 0.0]
            for name, layer in self.layers.items()
            if not layer.transposed  # a transposed one keeps all energy
        }
        with ExitStack() as looking:
            for name in self.energy:
                hook = self.layers[name].register_forward_hook(self._measure(name))
                looking.callback(hook.remove)
            yield

    def _measure(self, name: str) -> Callable[[nn.Module, Any, Tensor], None]:
        def hook(layer: nn.Module, inputs: tuple[Tensor, ...], output: Tensor) -> None:
            self.energy[name][0] += inputs[0].float().square().sum().item()
            self.energy[name][1] += output.float().square().sum().item()

        return hook

    def update(self, output: Tensor, target: Tensor) -> None:
        """Add a batch of the validation."""
        if target.ndim == 1:  # classes
            classes = output.shape[1]
            at = target.cpu() * classes + output.argmax(dim=1).cpu()
            counts = torch.bincount(at, minlength=classes**2).reshape(classes, classes).numpy()
            self.confusion = counts if self.confusion is None else self.confusion + counts
            return
        found, there = (output > 0).cpu(), (target > 0).cpu()  # masks
        both, either = (found & there).flatten(1).sum(1), (found | there).flatten(1).sum(1)
        score = torch.where(either > 0, 2 * both / (both + either).clamp(min=1), 1.0)
        self.dice += score.tolist()
        self.found += list(found[:, 0].numpy())

    def collect(self, epoch: int, data: Data, validation: Rows) -> bytes:
        """Return a file of what was observed up to this epoch."""
        now: dict[str, Array] = {"epochs": np.array([epoch])}
        if self.confusion is not None:
            now["confusion"] = self.confusion[None].astype(np.int64)
        for name, (before, after) in self.energy.items():
            now[f"energy/{name}"] = np.array([after / before if before else np.nan])
        for name, layer in self.layers.items():
            if not isinstance(layer, FrozenProjection):
                now[f"orthogonality/{name}"] = np.array([float(layer.orthogonality_error())])
        Us = _matrices(self.layers)
        now |= {f"by_epoch/{name}": U[None] for name, U in Us.items() if _is_shown(name, U)}
        self.before = _appended(self.before, now, epoch)
        arrays = self.before | self.start
        arrays |= {f"U/{name}": U for name, U in Us.items()}
        if self.dice:
            arrays |= self._gallery(data, validation)
        buffer = io.BytesIO()
        np.savez_compressed(buffer, **arrays)  # type: ignore[arg-type]
        return buffer.getvalue()

    def _gallery(self, data: Data, validation: Rows) -> dict[str, Array]:
        """The images with the best, the median and the worst Dice score of their own."""
        order = np.argsort(self.dice, kind="stable")
        chosen = [int(order[-1]), int(order[len(order) // 2]), int(order[0])]
        x, y = data.batch(validation[chosen])
        return {
            "images": (x * 255).round().to(torch.uint8).permute(0, 2, 3, 1).numpy(),
            "masks": y[:, 0].to(torch.bool).numpy(),
            "predictions": np.stack([self.found[k] for k in chosen]),
            "dice": np.array([self.dice[k] for k in chosen]),
        }


def _is_shown(name: str, U: Array) -> bool:
    """Return True if the report shows it by epoch: mode 1 is the channels, in no order."""
    return not name.endswith("/1") and len(U) <= LONGEST and U.size <= SMALL


def _appended(before: dict[str, Array], now: dict[str, Array], epoch: int) -> dict[str, Array]:
    """Return what was observed by epoch before this one, and now.

    Epochs from this one on are of a process that was killed before its checkpoint was written.
    """
    if not set(now) <= set(before):  # the first epoch, or a file of other layers
        return now
    earlier = before["epochs"] < epoch
    return {name: np.concatenate([before[name][earlier], now[name]]) for name in now}


def _matrices(layers: dict[str, Projection]) -> dict[str, Array]:
    """Return all U's, as LAYER/K, in half precision, which is enough for pictures."""
    found: dict[str, Array] = {}
    for name, layer in layers.items():
        if isinstance(layer, FrozenProjection):
            Us = [getattr(layer, f"U{k}") for k in range(1, len(layer.in_shape) + 1)]
        else:
            with torch.no_grad():
                Us = layer.projections()
        for k, U in enumerate(Us, start=1):
            if U is not None:
                found[f"{name}/{k}"] = U.detach().cpu().to(torch.float16).numpy()
    return found
