"""The layers for Keras 3, on TensorFlow, JAX and PyTorch.

>>> import keras
>>> from tensorprojection.keras import TensorProjection
>>> model = keras.Sequential([
...     keras.Input((12, 12, 32)),
...     TensorProjection((6, 6, None)),  # in place of MaxPooling2D
... ])
>>> model.output_shape
(None, 6, 6, 32)

Torch is imported only if it is Keras's backend.
"""

try:
    import keras as _keras
except ModuleNotFoundError as error:
    if (error.name or "").partition(".")[0] != "keras":
        raise
    raise ImportError(
        "tensorprojection.keras needs keras: pip install 'tensorprojection[keras]'."
    ) from error

if tuple(map(int, _keras.__version__.split(".")[:2])) < (3, 9):
    raise ImportError(
        f"tensorprojection.keras needs keras 3.9 or later, got {_keras.__version__}: "
        "pip install 'tensorprojection[keras]'."
    )

from .convert import from_torch, to_torch
from .initializers import BlockInitializer, BlurInitializer, DctInitializer
from .layers import (
    FrozenProjection,
    TensorProjection,
    TensorProjectionLayer,
    TransposeTensorProjection,
    TransposeTensorProjectionLayer,
)

__all__ = [
    "BlockInitializer",
    "BlurInitializer",
    "DctInitializer",
    "FrozenProjection",
    "TensorProjection",
    "TensorProjectionLayer",
    "TransposeTensorProjection",
    "TransposeTensorProjectionLayer",
    "from_torch",
    "to_torch",
]
