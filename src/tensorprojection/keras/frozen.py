"""A projection whose U's are constants: for deployment."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import keras

from ..shapes import check_shape, read_shape
from . import ops


@keras.saving.register_keras_serializable(package="tensorprojection")
class FrozenProjection(keras.layers.Layer):  # type: ignore[misc]
    """What ``layer.freeze()`` returns: the same map, with nothing to train and U's as weights.

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
        transposed: whether the map is that of a transposed projection.
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
        for k, shape in enumerate(self.shapes, start=1):
            U = None
            if shape is not None:
                U = self.add_weight(
                    name=f"U{k}", shape=shape, initializer="zeros", trainable=False, autocast=False
                )
            setattr(self, f"U{k}", U)

    @classmethod
    def of(cls, layer: Any, Us: Sequence[Any]) -> FrozenProjection:
        """From a layer and its U's as arrays."""
        frozen = cls(
            [None if U is None else U.shape for U in Us],
            layer.transposed,
            name=layer.name,
            dtype=layer.dtype_policy,
        )
        frozen.set_weights([U for U in Us if U is not None])
        return frozen

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        # Checked here, before Keras wraps what `call` raises into a message of its own.
        for x in args[:1]:
            if hasattr(x, "shape"):
                in_shape = tuple(None if U is None else U[self.transposed] for U in self.shapes)
                check_shape(tuple(x.shape), in_shape)
        return super().__call__(*args, **kwargs)

    def call(self, inputs: Any) -> Any:
        Us = [getattr(self, f"U{k}") for k in range(1, len(self.shapes) + 1)]
        Us = [None if U is None else U.value for U in Us]
        return ops.back_project(inputs, Us) if self.transposed else ops.project(inputs, Us)

    def compute_output_shape(self, input_shape: Sequence[int | None]) -> tuple[int | None, ...]:
        sizes = zip(input_shape[1:], self.shapes, strict=True)
        return (
            input_shape[0],
            *(n if U is None else U[not self.transposed] for n, U in sizes),
        )

    def get_config(self) -> dict[str, Any]:
        return {**super().get_config(), "shapes": self.shapes, "transposed": self.transposed}
