"""Changes to whole models: projections put in place of other layers, and folded away again."""

from .fold import FoldResult, fold, fold_projections
from .replace import ReplaceResult, replace
from .reports import FoldReport, Replacement, ReplaceReport, SkippedModule

__all__ = [
    "FoldReport",
    "FoldResult",
    "ReplaceReport",
    "ReplaceResult",
    "Replacement",
    "SkippedModule",
    "fold",
    "fold_projections",
    "replace",
]
