"""What the page of a run shows of a network beside its rows: its errors and its U's.

Its file is beside the rows, as ``trials/001/tpl1.observed.npz``. It is of the last epoch so far:

==========================  =================================================================
epoch                       the number of the epoch
start/LAYER/K, U/LAYER/K    U of mode K before the first epoch, and after this one
confusion_matrix            (classes, classes): true class by row, predicted by column
class_names                 the names of the classes
images, masks, predictions  the validation images with the best, the median and the worst Dice
dice                        their Dice scores
==========================  =================================================================
"""

from __future__ import annotations

import io
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from tensorprojection import FrozenProjection, TensorProjection, TransposeTensorProjection

from ..data.read import open_regular
from ..inputs import Data, Rows

Array = NDArray[Any]
Observed = Mapping[str, Array]


class Observer:
    """Collects the predictions of one validation from outputs that are computed anyway."""

    def __init__(self) -> None:
        self.confusion: Array | int = 0
        self.dice: list[float] = []
        self.found: list[Array] = []

    def update(self, output: Tensor, target: Tensor) -> None:
        """Add a batch of the validation."""
        if target.ndim == 1:  # classes
            classes = output.shape[1]
            at = target.cpu() * classes + output.argmax(dim=1).cpu()
            counts = torch.bincount(at, minlength=classes**2).reshape(classes, classes)
            self.confusion = self.confusion + counts.numpy()
            return
        found, there = (output > 0).cpu(), (target > 0).cpu()  # masks
        both, either = (found & there).flatten(1).sum(1), (found | there).flatten(1).sum(1)
        score = torch.where(either > 0, 2 * both / (both + either).clamp(min=1), 1.0)
        self.dice += score.tolist()
        self.found += list(found[:, 0].numpy())

    def arrays(self, data: Data, validation: Rows, class_names: Sequence[str]) -> Observed:
        """Return the confusion matrix, or the images with the best, median and worst Dice."""
        if not self.dice:
            return {
                "confusion_matrix": np.asarray(self.confusion),
                "class_names": np.array(class_names, np.str_),
            }
        order = np.argsort(self.dice, kind="stable")
        chosen = [int(order[-1]), int(order[len(order) // 2]), int(order[0])]
        x, y = data.batch(validation[chosen])
        return {
            "images": (x * 255).round().to(torch.uint8).permute(0, 2, 3, 1).numpy(),
            "masks": y[:, 0].to(torch.bool).numpy(),
            "predictions": np.stack([self.found[k] for k in chosen]),
            "dice": np.array([self.dice[k] for k in chosen]),
        }


def matrices(network: nn.Module, kind: str) -> Observed:
    """Return all U's as KIND/LAYER/K, in half precision, which is enough for pictures."""
    found = {}
    for name, layer in network.named_modules():
        if isinstance(layer, FrozenProjection):
            Us = [getattr(layer, f"U{k}") for k in range(1, len(layer.in_shape) + 1)]
        elif isinstance(layer, TensorProjection | TransposeTensorProjection):
            with torch.no_grad():
                Us = layer.projections()
        else:
            continue
        for k, U in enumerate(Us, start=1):
            if U is not None:
                found[f"{kind}/{name}/{k}"] = U.detach().cpu().to(torch.float16).numpy()
    return found


def encode_observed(epoch: int, arrays: Observed) -> bytes:
    """Return the file of these arrays."""
    buffer = io.BytesIO()
    np.savez_compressed(buffer, epoch=np.array(epoch), **arrays)  # type: ignore[arg-type]
    return buffer.getvalue()


def read_observed(path: Path) -> Observed | None:
    """Return the arrays of that file; None if it is missing or corrupted."""
    try:
        with open_regular(path) as content, np.load(content, allow_pickle=False) as file:
            arrays = {name: file[name] for name in file.files}
    except Exception:  # zipfile, zlib and NumPy raise many kinds
        return None
    return arrays if "epoch" in arrays else None
