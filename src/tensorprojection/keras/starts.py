"""Starts of W as Keras initializers, by the names of the PyTorch layer's ``init``."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import keras

from .. import start_values
from ..errors import ProjectionValueError

# Keras's default for RandomNormal, which the paper's own layer uses.
PAPER_STD = 0.05


class _Start(keras.initializers.Initializer):  # type: ignore[misc]
    """A start that is a matrix of numbers, the same for every framework."""

    @staticmethod
    def values(p: int, q: int) -> start_values.Array:
        raise NotImplementedError

    def __call__(self, shape: tuple[int, int], dtype: Any = None) -> Any:
        return keras.ops.convert_to_tensor(self.values(*shape), dtype or keras.config.floatx())

    def get_config(self) -> dict[str, Any]:
        return {}


@keras.saving.register_keras_serializable(package="tensorprojection")
class BlockStart(_Start):
    """Average pooling, up to a factor: indicators of contiguous blocks.

    >>> BlockStart().values(4, 2)[:, 0].round(3).tolist()
    [0.707, 0.707, 0.0, 0.0]
    """

    values = staticmethod(start_values.block)


@keras.saving.register_keras_serializable(package="tensorprojection")
class BlurStart(_Start):
    """The orthonormal frame closest to anti-aliased pooling: local and smooth.

    >>> BlurStart().values(4, 2)[:, 0].round(3).tolist()
    [0.801, 0.577, 0.13, -0.094]
    """

    values = staticmethod(start_values.blur)


@keras.saving.register_keras_serializable(package="tensorprojection")
class DCTStart(_Start):
    """Spectral pooling: the lowest cosine frequencies.

    >>> DCTStart().values(4, 2)[:, 0].round(3).tolist()
    [0.5, 0.5, 0.5, 0.5]
    """

    values = staticmethod(start_values.dct)


STARTS: dict[str, Callable[[], Any]] = {
    "normal": lambda: keras.initializers.RandomNormal(stddev=PAPER_STD),
    "orthogonal": keras.initializers.Orthogonal,
    "block": BlockStart,
    "blur": BlurStart,
    "dct": DCTStart,
}


def get_start(start: Any) -> Any:
    """An initializer from one of the names above, or whatever Keras takes for one."""
    if isinstance(start, str) and start in STARTS:
        return STARTS[start]()
    try:
        return keras.initializers.get(start)
    except ValueError as error:
        raise ProjectionValueError(
            f"Expected kernel_initializer to be one of {', '.join(map(repr, STARTS))}, or an "
            f"initializer that Keras knows, got {start!r}."
        ) from error
