"""TensorProjection: a layer that shrinks a feature tensor along every axis at once.

Each axis is projected by an orthonormal matrix that is learned with the network. After Morimoto &
Huang, "TensorProjection Layer: A Tensor-Based Dimension Reduction Method in Deep Neural Networks",
arXiv 2004.04454.

>>> import tensorprojection as tp
>>> pool = tp.TensorProjection((32, 12, 12), (None, 6, 6))  # where MaxPool2d(2) stood
"""

from . import functional
from .errors import DivergedError, ProjectionError, ProjectionTypeError, ProjectionValueError
from .explain import Explanation, plan
from .frozen import FrozenProjection
from .layers import TensorProjection, TransposeTensorProjection
from .lazy import LazyTensorProjection, LazyTransposeTensorProjection

__version__ = "0.1.0"

__all__ = [
    "DivergedError",
    "Explanation",
    "FrozenProjection",
    "LazyTensorProjection",
    "LazyTransposeTensorProjection",
    "ProjectionError",
    "ProjectionTypeError",
    "ProjectionValueError",
    "TensorProjection",
    "TransposeTensorProjection",
    "functional",
    "plan",
]
