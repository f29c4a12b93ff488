"""TensorProjection: a layer that shrinks a feature tensor along every axis at once.

Each axis is projected by an orthonormal matrix that is learned with the network. After Morimoto &
Huang, "TensorProjection Layer: A Tensor-Based Dimension Reduction Method in Deep Neural Networks",
arXiv 2004.04454.

>>> import tensorprojection as tp
>>> pool = tp.TensorProjection((32, 12, 12), (None, 6, 6))  # where MaxPool2d(2) stood
"""

import sys
from importlib import import_module
from types import ModuleType
from typing import TYPE_CHECKING, Any

from .errors import DivergedError, ProjectionError, ProjectionTypeError, ProjectionValueError

if TYPE_CHECKING:
    from . import functional, penalties
    from .capture import capture
    from .explain import Explanation, plan
    from .from_data import init_from_data
    from .frozen import FrozenProjection
    from .hope import HOPE
    from .layers import TensorProjection, TransposeTensorProjection
    from .lazy import LazyTensorProjection, LazyTransposeTensorProjection
    from .mpca import MPCA as MPCA
    from .spectra import plot_spectra, suggest_out_shape
    from .surgery.fold import fold
    from .surgery.replace import replace

__version__ = "0.1.0"

__all__ = [
    "HOPE",
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
    "capture",
    "fold",
    "functional",
    "init_from_data",
    "penalties",
    "plan",
    "plot_spectra",
    "replace",
    "suggest_out_shape",
]

# Names that are loaded when they are asked for, with their modules ("" for a module itself), so
# that `import tensorprojection` loads no framework.
_MODULES = {
    "HOPE": "hope",
    "MPCA": "mpca",  # not in __all__: a star import works without scikit-learn
    "Explanation": "explain",
    "FrozenProjection": "frozen",
    "LazyTensorProjection": "lazy",
    "LazyTransposeTensorProjection": "lazy",
    "TensorProjection": "layers",
    "TransposeTensorProjection": "layers",
    "capture": "capture",
    "fold": "surgery",
    "functional": "",
    "init_from_data": "from_data",
    "penalties": "",
    "plan": "explain",
    "plot_spectra": "spectra",
    "replace": "surgery",
    "suggest_out_shape": "spectra",
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


class _Root(ModuleType):
    """This module: `tp.capture` and `tp.plan` are functions, though modules have these names too.

    Importing such a module would put it in the function's place.
    """

    def __setattr__(self, name: str, value: Any) -> None:
        if not (isinstance(value, ModuleType) and _MODULES.get(name)):
            super().__setattr__(name, value)


sys.modules[__name__].__class__ = _Root
