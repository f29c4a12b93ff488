"""A projection whose U's are constants: for deployment."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import keras

from ..errors import ProjectionValueError
from ..shapes import check_shape, not_floating, read_shape
from . import ops

Size = int | None  # None: not known, in a mode left alone


class Multilinear(keras.layers.Layer):  # type: ignore[misc]
    """Base of the layers: checks the input before Keras calls `call`."""

    in_shape: tuple[Size, ...] | None = None  # None until the layer is built

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        # Keras wraps an error from `call` into a message of its own; from here it does not.
        for x in args[:1] or [kwargs.get("inputs")]:
            if hasattr(x, "dtype") and hasattr(x, "shape"):
                self._check(x)
        return super().__call__(*args, **kwargs)

    def _check(self, x: Any) -> None:
        dtype = keras.backend.standardize_dtype(x.dtype)
        if not keras.backend.is_float_dtype(dtype):
            raise not_floating("the input", dtype)
        if self.in_shape is None:
            return  # `build` checks the shape
        check_shape(tuple(x.shape), self.in_shape)
        if len(x.shape) != len(self.in_shape) + 1:
            raise ProjectionValueError(
                f"Expected one batch axis and {len(self.in_shape)} modes, got an input of shape "
                f"{tuple(x.shape)}."
            )


@keras.saving.register_keras_serializable(package="tensorprojection")
class FrozenProjection(Multilinear):
    """The result of ``layer.freeze()``: the same map, with U's as weights that are not trained.

    >>> from tensorprojection.keras import TensorProjection
    >>> layer = TensorProjection((6, 6, None))
    >>> layer.build((None, 12, 12, 32))
    >>> frozen = layer.freeze()
    >>> frozen(keras.ops.ones((2, 12, 12, 32))).shape[1:] == (6, 6, 32)
    True
    >>> frozen.trainable_weights
    []

    Args:
        shapes: of the U's by mode, ``larger × smaller``; None for a mode left alone.
        transposed: True for the map of a transposed projection.
    """

    def __init__(
        self, shapes: Sequence[Sequence[int] | None], transposed: bool, **kwargs: Any
    ) -> None:
        super().__init__(trainable=kwargs.pop("trainable", False), **kwargs)
        self.shapes = [
            None if shape is None else read_shape("shapes", shape, none_allowed=False)
            for shape in shapes
        ]
        self.transposed = transposed
        self.in_shape = tuple(None if U is None else U[transposed] for U in self.shapes)
        self.Us = [
            None
            if shape is None
            else self.add_weight(
                name=f"U{k}", shape=shape, initializer="zeros", trainable=False, autocast=False
            )
            for k, shape in enumerate(self.shapes, start=1)
        ]

    def call(self, inputs: Any) -> Any:
        Us = [None if U is None else U.value for U in self.Us]
        return ops.multilinear(inputs, Us, transposed=self.transposed)

    def compute_output_shape(self, input_shape: Sequence[Size]) -> tuple[Size, ...]:
        sizes = zip(input_shape[1:], self.shapes, strict=True)
        return (
            input_shape[0],
            *(n if U is None else U[not self.transposed] for n, U in sizes),
        )

    def get_config(self) -> dict[str, Any]:
        return {**super().get_config(), "shapes": self.shapes, "transposed": self.transposed}
