"""U from W, and the multilinear map, on Keras's backend.

=============  =======================================  ==============================
backend        U = W (WᵀW + ε²I)^(-1/2)                 the map
=============  =======================================  ==============================
``torch``      `polar_torch`: the PyTorch layer's own functions and kernels
``jax``        `polar_jax`: an island of float64        one `matmul` per mode
``tensorflow`` `polar_tensorflow`: float64              one `matmul` per mode
=============  =======================================  ==============================
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from contextlib import AbstractContextManager
from importlib import import_module
from math import prod
from typing import Any

import keras

from ..eps import EpsMode, check_eps
from ..errors import ProjectionError, ProjectionValueError

Matrices = Sequence[Any]

if keras.backend.backend() not in ("jax", "tensorflow", "torch"):
    raise ProjectionError(
        "Expected Keras's backend to be 'jax', 'tensorflow' or 'torch', "
        f"got {keras.backend.backend()!r}."
    )
_backend: Any = import_module(f".polar_{keras.backend.backend()}", __package__)


def polar(W: Any, eps: float | None = None, *, eps_mode: EpsMode = "absolute") -> Any:
    """Return the projection matrix ``U = W (WᵀW + ε²I)^(-1/2)``, with exact derivatives.

    W is ``p × q`` with ``q <= p``. U has the type of W, and is float32 if W has a half type. A W
    with NaN or infinity gives NaN, and so does a zero W with a relative ε.
    """
    eps = check_eps(eps, eps_mode)
    p, q = W.shape[-2:] if len(W.shape) >= 2 else (0, 0)
    if not 1 <= q <= p:
        raise ProjectionValueError(
            f"Expected W of shape (..., p, q) with 1 <= q <= p, got {tuple(W.shape)}."
        )
    W = keras.ops.convert_to_tensor(W)
    if keras.backend.standardize_dtype(W.dtype) in ("float16", "bfloat16"):
        W = keras.ops.cast(W, "float32")
    return _backend.polar(W, eps, relative=eps_mode == "relative")


def multilinear(x: Any, Us: Matrices, *, transposed: bool) -> Any:
    """Return ``x ×₁ U₁ᵀ ×₂ U₂ᵀ …`` or, transposed, ``x ×₁ U₁ ×₂ U₂ …`` over the last axes of x.

    None leaves a mode alone.
    """
    Us = [None if U is None else keras.ops.convert_to_tensor(U) for U in Us]
    if keras.backend.backend() == "torch":
        return _backend.multilinear(x, Us, transposed=transposed)
    first = len(x.shape) - len(Us)
    steps = []
    for axis, U in enumerate(Us, start=first):
        if U is not None:
            A = keras.ops.cast(keras.ops.transpose(U) if transposed else U, x.dtype)
            steps.append((A.shape[1] / A.shape[0], axis, A))
    # The mode that shrinks most goes first.
    for _, axis, A in sorted(steps, key=lambda step: step[:2]):
        x = _mode_product(x, A, axis)
    return x


def _mode_product(x: Any, A: Any, axis: int) -> Any:
    """Multiply x by A along one axis, whose size goes from A's rows to A's columns."""
    before, after = tuple(x.shape[:axis]), tuple(x.shape[axis + 1 :])
    if not after:
        return keras.ops.matmul(x, A)
    if None in before[1:] or None in after:  # a mode left alone whose size is not known
        return keras.ops.moveaxis(keras.ops.tensordot(x, A, axes=(axis, 0)), -1, axis)
    # The axes after it are taken together; no axis changes its place in memory.
    flat = keras.ops.reshape(x, (-1, A.shape[0], prod(after)))
    out = keras.ops.matmul(keras.ops.transpose(A), flat)
    return keras.ops.reshape(out, (-1, *before[1:], A.shape[1], *after))


def is_exporting(x: Any) -> bool:
    """Return True inside ``model.export``.

    Keras does not pass this on to a layer, but its exporters are among the callers. If Keras
    renames them, an exported graph contains the decomposition and gives the same results.
    """
    if not _backend.is_traced(x):
        return False
    frame = sys._getframe(1)
    while frame is not None:
        module = frame.f_globals.get("__name__", "")
        if module.startswith("keras.src.") and "export" in module:
            return True
        frame = frame.f_back  # type: ignore[assignment]
    return False


def outside_trace() -> AbstractContextManager[Any]:
    """Compute with the values of variables, also while a function is traced."""
    context: AbstractContextManager[Any] = _backend.outside_trace()
    return context
