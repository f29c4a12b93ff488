"""The paper's section 3: its data, its models and its experiments."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from torch import nn


def load(folder: str | Path, model: str, trial: int | Literal["best"] = "best") -> nn.Module:
    """A network that a run has trained, in evaluation mode.

    ::

        network = tensorprojection.studies.load("runs/oct-small", model="tpl1", trial=2)
        logits = network(images)  # (N, 3, 96, 96) in [0, 1]; for chest: the frozen net's features

    Args:
        folder: of the run.
        model: the network's name, as ``tpl summary`` lists them.
        trial: its number, from 1, or "best": the one with the lowest validation loss.
    """
    from .kept.networks import load_network

    return load_network(Path(folder), model, trial).network
