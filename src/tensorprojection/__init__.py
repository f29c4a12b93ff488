"""TensorProjection: a layer that shrinks a feature tensor along every axis at once.

Each axis is projected by an orthonormal matrix that is learned with the network. After Morimoto &
Huang, "TensorProjection Layer: A Tensor-Based Dimension Reduction Method in Deep Neural Networks",
arXiv 2004.04454.

>>> import tensorprojection as tp
>>> pool = tp.TensorProjection((32, 12, 12), (None, 6, 6))  # where MaxPool2d(2) stood
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from .errors import DivergedError, ProjectionError, ProjectionTypeError, ProjectionValueError

if TYPE_CHECKING:
    from . import functional, penalties
    from .engine.kernels.library import Kernels, kernels
    from .mpca.capture import capture
    from .mpca.energy import Suggestion, plot_spectra, suggest_out_shape
    from .mpca.estimator import MPCA as MPCA
    from .mpca.init_from_data import init_from_data
    from .nn.explain import Explanation, explain, plan
    from .nn.frozen import FrozenProjection
    from .nn.hope import HOPE
    from .nn.layers import TensorProjection, TransposeTensorProjection
    from .nn.lazy import LazyTensorProjection, LazyTransposeTensorProjection
    from .surgery.fold import fold, fold_projections
    from .surgery.replace import replace

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
    "Suggestion",
    "TensorProjection",
    "TransposeTensorProjection",
    "capture",
    "explain",
    "fold",
    "fold_projections",
    "functional",
    "init_from_data",
    "kernels",
    "penalties",
    "plan",
    "plot_spectra",
    "replace",
    "suggest_out_shape",
]

# Names that are loaded when they are asked for, with their modules ("" for a module itself), so
# that `import tensorprojection` loads no framework.
_MODULES = {
    "HOPE": "nn.hope",
    "MPCA": "mpca.estimator",  # not in __all__: a star import works without scikit-learn
    "Explanation": "nn.explain",
    "FrozenProjection": "nn.frozen",
    "Kernels": "engine.kernels.library",
    "LazyTensorProjection": "nn.lazy",
    "LazyTransposeTensorProjection": "nn.lazy",
    "Suggestion": "mpca.energy",
    "TensorProjection": "nn.layers",
    "TransposeTensorProjection": "nn.layers",
    "capture": "mpca.capture",
    "explain": "nn.explain",
    "fold": "surgery.fold",
    "fold_projections": "surgery.fold",
    "functional": "",
    "init_from_data": "mpca.init_from_data",
    "kernels": "engine.kernels.library",
    "penalties": "",
    "plan": "nn.explain",
    "plot_spectra": "mpca.energy",
    "replace": "surgery.replace",
    "suggest_out_shape": "mpca.energy",
}

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
        ) from error
    value = globals()[name] = getattr(loaded, name) if module else loaded
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *_MODULES})
