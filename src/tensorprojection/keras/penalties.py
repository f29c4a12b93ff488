"""The activity penalties of the paper's authors: see `tensorprojection.penalties` for PyTorch's.

A layer adds ``rate * log(penalty)`` to the model's loss.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import keras

from ..errors import ProjectionValueError
from . import ops


def reconstruction_error(layer: Any, x: Any, z: Any) -> Any:
    """The root mean square of X - X̂, by sample, averaged over the samples.

    X̂ is the back-projection of Z: what the layer's subspace holds of X.
    """
    x, z = (keras.ops.cast(t, layer.variable_dtype) for t in (x, z))
    back = ops.project if layer.transposed else ops.back_project
    return _mean_rms(x - back(z, layer.projections()))


def spread(layer: Any, x: Any, z: Any) -> Any:
    """How far the samples of Z lie from their mean: a root mean square by sample, averaged."""
    z = keras.ops.cast(z, layer.variable_dtype)
    return _mean_rms(z - keras.ops.mean(z, axis=0, keepdims=True))


PENALTIES: dict[str, Callable[[Any, Any, Any], Any]] = {
    "reconstruction_error": reconstruction_error,
    "total_variation": spread,
}


def check_penalty(name: str | None, layer: str) -> str | None:
    if name is not None and name not in PENALTIES:
        raise ProjectionValueError(
            f"Expected the regularization of a {layer} to be None or one of "
            f"{', '.join(map(repr, PENALTIES))}, got {name!r}."
        )
    return name


def _mean_rms(x: Any) -> Any:
    squares = keras.ops.mean(keras.ops.square(x), axis=tuple(range(1, len(x.shape))))
    # The root's gradient at 0 is infinite; here it is 0, as in PyTorch's `vector_norm`.
    positive = squares > 0
    roots = keras.ops.sqrt(keras.ops.where(positive, squares, keras.ops.ones_like(squares)))
    return keras.ops.mean(keras.ops.where(positive, roots, keras.ops.zeros_like(squares)))
