"""The paper's studies (section 3), and what a study of one's own is made of."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .config import RunConfig
    from .data.images import ImageSet
    from .data.kinds import ImageKind
    from .inputs import Data, RunInputs
    from .study import Study
    from .trial.metrics import Metric

__all__ = ["Data", "ImageKind", "ImageSet", "Metric", "RunConfig", "RunInputs", "Study"]

_WHERE = {
    "Data": "inputs",
    "ImageKind": "data.kinds",
    "ImageSet": "data.images",
    "Metric": "trial.metrics",
    "RunConfig": "config",
    "RunInputs": "inputs",
    "Study": "study",
}


def __getattr__(name: str) -> Any:
    """Loaded when asked for: who reads results or an error needs no torch."""
    if name not in _WHERE:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f".{_WHERE[name]}", __name__), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
