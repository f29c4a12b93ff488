"""Initializers of W, with the names of the PyTorch layer's ``init``."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar

import keras

from .. import init_matrices
from ..errors import ProjectionValueError
from ..shapes import per_mode


class _PoolingInitializer(keras.initializers.Initializer):  # type: ignore[misc]
    """A matrix that is not random: the layer begins as a pooling and learns from there."""

    matrix: ClassVar[staticmethod[[int, int], init_matrices.Array]]

    def __init__(self, gain: float = 1.0) -> None:
        if not 0 < gain < float("inf"):
            raise ProjectionValueError(f"Expected a finite gain > 0, got {gain!r}.")
        self.gain = float(gain)

    def __call__(self, shape: tuple[int, int], dtype: Any = None) -> Any:
        W = self.gain * self.matrix(*shape)
        return keras.ops.convert_to_tensor(W, dtype or keras.config.floatx())

    def get_config(self) -> dict[str, Any]:
        return {"gain": self.gain}


@keras.saving.register_keras_serializable(package="tensorprojection")
class BlockInitializer(_PoolingInitializer):
    """Average pooling, up to a factor: indicators of contiguous blocks.

    >>> W = BlockInitializer()((4, 2))
    >>> keras.ops.convert_to_numpy(W)[:, 0].astype(float).round(3).tolist()
    [0.707, 0.707, 0.0, 0.0]

    Args:
        gain: factor of the matrix. U does not depend on it; the larger W is, the more slowly the
            optimizer turns U.
    """

    matrix = staticmethod(init_matrices.block)


@keras.saving.register_keras_serializable(package="tensorprojection")
class BlurInitializer(_PoolingInitializer):
    """The orthonormal matrix closest to anti-aliased pooling, times ``gain``: local and smooth.

    >>> W = BlurInitializer()((4, 2))
    >>> keras.ops.convert_to_numpy(W)[:, 0].astype(float).round(3).tolist()
    [0.801, 0.577, 0.13, -0.094]
    """

    matrix = staticmethod(init_matrices.blur)


@keras.saving.register_keras_serializable(package="tensorprojection")
class DctInitializer(_PoolingInitializer):
    """Spectral pooling, times ``gain``: the lowest cosine frequencies.

    >>> W = DctInitializer()((4, 2))
    >>> keras.ops.convert_to_numpy(W)[:, 0].tolist()
    [0.5, 0.5, 0.5, 0.5]
    """

    matrix = staticmethod(init_matrices.dct)


# "auto" is this for every mode but the last, the channels, and "normal" for those. The PyTorch
# layer does the same: Note [What auto is] in init.py has the comparison behind the choice.
AUTO = BlockInitializer(gain=3.0)

INITIALIZERS: dict[str, Callable[[], Any]] = {
    "normal": lambda: keras.initializers.RandomNormal(stddev=0.05),  # the paper's
    "orthogonal": keras.initializers.Orthogonal,
    "block": BlockInitializer,
    "blur": BlurInitializer,
    "dct": DctInitializer,
}


def by_mode(initializer: Any, order: int) -> tuple[Any, ...]:
    """Return one initializer per mode, from one for all modes or one per mode."""
    pools = [order >= 3] * (order - 1) + [False]
    given = per_mode("kernel_initializer", initializer, order)
    return tuple(
        (AUTO if pool else INITIALIZERS["normal"]()) if one == "auto" else _get(one)
        for one, pool in zip(given, pools, strict=True)
    )


def _get(initializer: Any) -> Any:
    if isinstance(initializer, str) and initializer in INITIALIZERS:
        return INITIALIZERS[initializer]()
    try:
        found = keras.initializers.get(initializer)
    except ValueError:
        raise ProjectionValueError(
            f"Expected kernel_initializer to be 'auto', {', '.join(map(repr, INITIALIZERS))} or a "
            f"Keras initializer, for all modes or one per mode, got {initializer!r}."
        ) from None
    # A copy per mode: one random initializer would draw the same values for every mode.
    return found.clone() if hasattr(found, "clone") else found
