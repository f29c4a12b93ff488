"""TensorProjection: a layer that shrinks a feature tensor along every axis at once.

Each axis is projected by an orthonormal matrix that is learned with the network. After Morimoto &
Huang, "TensorProjection Layer: A Tensor-Based Dimension Reduction Method in Deep Neural Networks",
arXiv 2004.04454.

>>> import tensorprojection as tp
>>> pool = tp.TensorProjection((32, 12, 12), (None, 6, 6))  # where MaxPool2d(2) stood
"""

from typing import TYPE_CHECKING, Any

from . import stopping  # noqa: F401  # isort: skip  # first: torch takes seconds; see there
from . import functional, penalties
from .capture import capture
from .compiled.library import Kernels, kernels
from .errors import DivergedError, ProjectionError, ProjectionTypeError, ProjectionValueError
from .explain import Explanation, plan
from .from_data import init_from_data
from .frozen import FrozenProjection
from .hope import HOPE
from .layers import TensorProjection, TransposeTensorProjection
from .lazy import LazyTensorProjection, LazyTransposeTensorProjection
from .spectra import plot_spectra, suggest_out_shape
from .surgery import fold, replace

if TYPE_CHECKING:
    from .mpca import MPCA as MPCA

__version__ = "0.1.0"

__all__ = [
    "HOPE",
    "DivergedError",
    "Explanation",
    "FrozenProjection",
    "Kernels",
    "LazyTensorProjection",
    "LazyTransposeTensorProjection",
    "ProjectionError",
    "ProjectionTypeError",
    "ProjectionValueError",
    "TensorProjection",
    "TransposeTensorProjection",
    "capture",
    "fold",
    "functional",
    "init_from_data",
    "kernels",
    "penalties",
    "plan",
    "plot_spectra",
    "replace",
    "suggest_out_shape",
]


def __getattr__(name: str) -> Any:
    # MPCA is loaded when it is asked for: it alone needs scikit-learn. For the same reason it is
    # not in __all__, so that a star import works without.
    if name != "MPCA":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    try:
        from .mpca import MPCA
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] != "sklearn":
            raise
        raise ImportError(
            "tensorprojection.MPCA needs scikit-learn: pip install 'tensorprojection[sklearn]'."
        ) from error
    return MPCA


def __dir__() -> list[str]:
    return sorted([*globals(), "MPCA"])
