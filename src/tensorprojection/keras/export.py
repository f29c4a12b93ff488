"""An exported model has U's as constants, and no decomposition in its graph."""

from __future__ import annotations

import sys
from typing import Any

import numpy as np

from . import ops


def is_exporting(x: Any) -> bool:
    """Whether ``model.export`` is under way.

    Keras does not tell a layer, but its exporters are then among the callers. If they are ever
    renamed, an exported graph holds the decomposition and gives the same results.
    """
    if not ops.is_traced(x):
        return False
    frame = sys._getframe(1)
    while frame is not None:
        module = frame.f_globals.get("__name__", "")
        if module.startswith("keras.src.") and "export" in module:
            return True
        frame = frame.f_back  # type: ignore[assignment]
    return False


def constants(layer: Any) -> list[Any]:
    """The layer's U's as NumPy arrays, None for a mode left alone."""
    return [
        None if W is None else polar(ops.concrete(W), e, relative=layer.eps_mode == "relative")
        for W, e in zip(layer.Ws, layer.eps, strict=True)
    ]


def polar(W: Any, eps: float, *, relative: bool) -> Any:
    """U = W (WᵀW + ε²I)^(-1/2) of a NumPy array, in float64 inside."""
    P, sigma, Vt = np.linalg.svd(np.asarray(W, dtype=np.float64), full_matrices=False)
    squares = sigma**2
    s = np.sqrt(squares + eps * eps * (squares.mean() if relative else 1.0))
    return ((P * (sigma / s)) @ Vt).astype(W.dtype if W.dtype == np.float64 else np.float32)
