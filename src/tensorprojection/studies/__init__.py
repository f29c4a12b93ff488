"""The paper's studies (section 3), and what a user's own study is made of."""

from __future__ import annotations

from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    from torch import nn

    from .config import RunConfig
    from .data.augment import Augmentation
    from .data.images import ImageKind, ImageSet
    from .inputs import Copies, Data, Frozen, RunInputs
    from .registry import import_study
    from .study import Study
    from .training.metrics import Metric

__all__ = [
    "Augmentation",
    "Copies",
    "Data",
    "Frozen",
    "ImageKind",
    "ImageSet",
    "Metric",
    "RunConfig",
    "RunInputs",
    "Study",
    "import_study",
    "load",
]

_WHERE = {
    "Augmentation": "data.augment",
    "Copies": "inputs",
    "Data": "inputs",
    "Frozen": "inputs",
    "ImageKind": "data.images",
    "ImageSet": "data.images",
    "Metric": "training.metrics",
    "RunConfig": "config",
    "RunInputs": "inputs",
    "Study": "study",
    "import_study": "registry",
}


def load(
    folder: str | Path,
    model: str,
    trial: int | Literal["best"] = "best",
    study: Study[Any] | None = None,
) -> nn.Module:
    """Return a network that a run has saved, in evaluation mode.

    ::

        network = tensorprojection.studies.load("runs/oct-small", model="tpl1", trial=2)
        logits = network(images)  # (N, 3, 96, 96) in [0, 1]; for chest: the frozen net's features

    >>> load("runs/of-nobody", model="tpl1")
    Traceback (most recent call last):
        ...
    tensorprojection.studies.errors.StudyError: Expected the folder of a run, got runs/of-nobody...

    Args:
        folder: of the run.
        model: the network's name, as ``tpl summary`` lists them.
        trial: its number, from 1, or "best": the one with the lowest validation loss.
        study: the run's, as :func:`import_study` returns it, if it is a user's own. Code that a
            folder names is never run.
    """
    from .trained import load_network

    return load_network(Path(folder), model, trial, study).network


def __getattr__(name: str) -> Any:
    """Loaded when asked for: reading results needs no torch."""
    if name not in _WHERE:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f".{_WHERE[name]}", __name__), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
