"""U from W, and the multilinear map, on Keras's backend.

=============  =======================================  ==============================
backend        U = W (WᵀW + ε²I)^(-1/2)                 the map
=============  =======================================  ==============================
``torch``      the PyTorch layer's own node of autograd, and its kernels
``jax``        `polar_jax`: an island of float64        one `matmul` per mode
``tensorflow`` `polar_tensorflow`: float64              one `matmul` per mode
=============  =======================================  ==============================
"""

from __future__ import annotations

from collections.abc import Sequence
from importlib import import_module
from math import prod
from typing import Any

import keras
import numpy as np

from ..eps import EpsMode, check_eps
from ..errors import DivergedError, ProjectionError, ProjectionValueError

Matrices = Sequence[Any]

if keras.backend.backend() not in ("jax", "tensorflow", "torch"):
    raise ProjectionError(
        "Expected Keras's backend to be 'jax', 'tensorflow' or 'torch', "
        f"got {keras.backend.backend()!r}."
    )
_backend: Any = import_module(f".polar_{keras.backend.backend()}", __package__)


def polar(W: Any, eps: float | None = None, *, eps_mode: EpsMode = "absolute") -> Any:
    """The projection matrix ``U = W (WᵀW + ε²I)^(-1/2)``, with exact derivatives.

    W is ``p × q`` with ``q <= p``; U has W's type, and is float32 where that is a half type.
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


def project(x: Any, Us: Matrices) -> Any:
    """``x ×₁ U₁ᵀ ×₂ U₂ᵀ …`` over the last ``len(Us)`` axes of ``x``; None leaves a mode alone."""
    return _multilinear(x, Us, transposed=False)


def back_project(z: Any, Us: Matrices) -> Any:
    """``z ×₁ U₁ ×₂ U₂ …`` over the last ``len(Us)`` axes of ``z``: the transpose."""
    return _multilinear(z, Us, transposed=True)


def project_by_weights(
    x: Any, Ws: Matrices, eps: Sequence[float], eps_mode: EpsMode, *, transposed: bool
) -> Any:
    """The layer's output from its input and its W's, one per mode or None."""
    if keras.backend.backend() == "torch":
        return _backend.project_by_weights(x, Ws, eps, eps_mode, transposed=transposed)
    Us = [
        None if W is None else polar(W, e, eps_mode=eps_mode) for W, e in zip(Ws, eps, strict=True)
    ]
    return _multilinear(x, Us, transposed=transposed)


def concrete(variable: Any) -> Any:
    """A variable's numbers as a NumPy array, also while a function is traced."""
    return _backend.concrete(variable)


def is_traced(x: Any) -> bool:
    """Whether x stands for a value in a graph that is being built."""
    traced: bool = _backend.is_traced(x)
    return traced


def is_symbolic(x: Any) -> bool:
    """Whether x has no numbers: in a graph that is being built, or in Keras's own."""
    return bool(keras.backend.is_keras_tensor(x)) or is_traced(x)


def check_weight(name: str, variable: Any, eps_mode: EpsMode) -> None:
    """Names a W that has diverged, where it has numbers that can be looked at."""
    if variable is None or keras.backend.backend() == "torch":  # whose own node does it
        return
    W = variable.value
    if is_traced(W) or not getattr(W, "is_fully_addressable", True):  # JAX, on several machines
        return
    numbers = keras.ops.convert_to_numpy(W)
    if not np.isfinite(numbers).all():
        raise DivergedError.not_finite(name)
    if eps_mode == "relative" and not numbers.any():
        raise DivergedError.no_scale(name)


def _multilinear(x: Any, Us: Matrices, *, transposed: bool) -> Any:
    Us = [None if U is None else keras.ops.cast(U, x.dtype) for U in Us]
    if keras.backend.backend() == "torch":
        return _backend.multilinear(x, Us, transposed=transposed)
    first = len(x.shape) - len(Us)
    steps = []
    for axis, U in enumerate(Us, start=first):
        if U is not None:
            A = keras.ops.transpose(U) if transposed else U
            steps.append((A.shape[1] / A.shape[0], axis, A))
    # What shrinks most goes first.
    for _, axis, A in sorted(steps, key=lambda step: step[:2]):
        x = _mode_product(x, A, axis)
    return x


def _mode_product(x: Any, A: Any, axis: int) -> Any:
    """x multiplied by A along one axis: its size goes from A's rows to A's columns."""
    before, after = tuple(x.shape[:axis]), tuple(x.shape[axis + 1 :])
    if not after:
        return keras.ops.matmul(x, A)
    if None in before[1:] or None in after:  # a mode left alone whose size is not known
        return keras.ops.moveaxis(keras.ops.tensordot(x, A, axes=(axis, 0)), -1, axis)
    # The axes after it are taken together; no axis changes its place in memory.
    flat = keras.ops.reshape(x, (-1, A.shape[0], prod(after)))
    out = keras.ops.matmul(keras.ops.transpose(A), flat)
    return keras.ops.reshape(out, (-1, *before[1:], A.shape[1], *after))
