"""The layers with the names and signatures of the paper's authors: only the import changes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import keras

from .layers import TensorProjection, TransposeTensorProjection, _Projection


class _Authors(_Projection):
    """``q1, q2, q3, regularization='None', rate=0.1``, and the paper's initialization of W."""

    def __init__(
        self,
        q1: int,
        q2: int,
        q3: int,
        regularization: str = "None",
        rate: float = 0.1,
        kernel_initializer: Any = "normal",
        **kwargs: Any,
    ) -> None:
        self.q1, self.q2, self.q3 = q1, q2, q3
        penalty = None if regularization == "None" else regularization
        super().__init__(
            (q1, q2, q3),
            kernel_initializer=kernel_initializer,
            regularization=penalty,
            rate=rate,
            **kwargs,
        )

    def _full_shape(self, in_shape: Sequence[int | None]) -> tuple[int | None, ...]:
        # The authors' layer leaves a mode alone if it would not get smaller (transposed: larger).
        if len(in_shape) == self.order:
            beyond = max if self.transposed else min
            self.out_shape = tuple(
                q if p is None else beyond(p, q)
                for p, q in zip(in_shape, (self.q1, self.q2, self.q3), strict=True)
            )
        return super()._full_shape(in_shape)

    def get_config(self) -> dict[str, Any]:
        config = super().get_config()
        del config["out_shape"]
        penalty = config.pop("regularization")
        sizes = {"q1": self.q1, "q2": self.q2, "q3": self.q3}
        return {**config, **sizes, "regularization": penalty or "None"}


@keras.saving.register_keras_serializable(package="tensorprojection")
class TensorProjectionLayer(_Authors, TensorProjection):
    """:class:`TensorProjection` of order three, with the signature of the authors' layer.

    >>> layer = TensorProjectionLayer(6, 6, 32)
    >>> _ = layer.build((None, 12, 12, 32))
    >>> [W.name for W in layer.weights]  # 32 channels stay
    ['W1', 'W2']
    """


@keras.saving.register_keras_serializable(package="tensorprojection")
class TransposeTensorProjectionLayer(_Authors, TransposeTensorProjection):
    """:class:`TransposeTensorProjection` of order three, with the signature of the authors' layer.

    >>> layer = TransposeTensorProjectionLayer(16, 16, 128)
    >>> layer(keras.ops.ones((2, 8, 8, 128))).shape[1:] == (16, 16, 128)
    True
    """
