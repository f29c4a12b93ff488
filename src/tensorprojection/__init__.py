"""TensorProjection: a layer that shrinks a feature tensor along every axis at once.

Each axis is projected by an orthonormal matrix that is learned with the network. After Morimoto &
Huang, "TensorProjection Layer: A Tensor-Based Dimension Reduction Method in Deep Neural Networks",
arXiv 2004.04454.

>>> import tensorprojection as tp
>>> pool = tp.TensorProjection((32, 12, 12), (None, 6, 6))  # in place of MaxPool2d(2)
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from .errors import ProjectionDeviceError as ProjectionDeviceError
from .errors import ProjectionError as ProjectionError
from .errors import ProjectionTypeError as ProjectionTypeError
from .errors import ProjectionValueError as ProjectionValueError

if TYPE_CHECKING:
    from . import functional as functional
    from . import init as init
    from . import penalties as penalties
    from .mpca.data import capture as capture
    from .mpca.estimator import MPCA as MPCA
    from .mpca.suggest import Suggestion as Suggestion
    from .mpca.suggest import init_from_data as init_from_data
    from .mpca.suggest import plot_spectra as plot_spectra
    from .mpca.suggest import suggest_out_shape as suggest_out_shape
    from .nn.explain import explain as explain
    from .nn.frozen import FrozenProjection as FrozenProjection
    from .nn.layers import TensorProjection as TensorProjection
    from .nn.layers import TransposeTensorProjection as TransposeTensorProjection
    from .nn.layers import parameter_groups as parameter_groups
    from .nn.lazy import LazyTensorProjection as LazyTensorProjection
    from .nn.lazy import LazyTransposeTensorProjection as LazyTransposeTensorProjection
    from .ops.kernels.library import kernels as kernels
    from .parametrize import Polar as Polar
    from .parametrize import orthogonal as orthogonal
    from .parametrize import orthogonality_error as orthogonality_error
    from .surgery.fold import fold_projections as fold_projections
    from .surgery.replace import replace as replace

__version__ = "0.1.0"

# The module of each name that is loaded on first use ("" for a module itself), so that
# `import tensorprojection` loads no framework.
_MODULES = {
    "FrozenProjection": "nn.frozen",
    "LazyTensorProjection": "nn.lazy",
    "LazyTransposeTensorProjection": "nn.lazy",
    "MPCA": "mpca.estimator",
    "Polar": "parametrize",
    "Suggestion": "mpca.suggest",
    "TensorProjection": "nn.layers",
    "TransposeTensorProjection": "nn.layers",
    "capture": "mpca.data",
    "explain": "nn.explain",
    "fold_projections": "surgery.fold",
    "functional": "",
    "init": "",
    "init_from_data": "mpca.suggest",
    "kernels": "ops.kernels.library",
    "orthogonal": "parametrize",
    "orthogonality_error": "parametrize",
    "parameter_groups": "nn.layers",
    "penalties": "",
    "plot_spectra": "mpca.suggest",
    "replace": "surgery.replace",
    "suggest_out_shape": "mpca.suggest",
}

_ERRORS = (ProjectionDeviceError, ProjectionError, ProjectionTypeError, ProjectionValueError)

# Without MPCA: a star import works without scikit-learn.
__all__ = [*(error.__name__ for error in _ERRORS), *(name for name in _MODULES if name != "MPCA")]

_EXTRAS = {"torch": ("torch", "torch"), "sklearn": ("scikit-learn", "sklearn")}


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    module = _MODULES[name]
    try:
        loaded = import_module(f".{module or name}", __name__)
    except ModuleNotFoundError as error:
        missing = (error.name or "").partition(".")[0]
        if missing not in _EXTRAS:
            raise
        package, extra = _EXTRAS[missing]
        raise ImportError(
            f"{__name__}.{name} needs {package}: pip install '{__name__}[{extra}]'."
        ) from None
    value = globals()[name] = getattr(loaded, name) if module else loaded
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *_MODULES})
