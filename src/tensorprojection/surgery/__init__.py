"""Changes to whole models: projections put in place of other layers, and folded away again."""

from .fold import Folded, FoldReport, fold, fold_projections
from .replace import Change, Replaced, ReplaceReport, Skipped, replace

__all__ = [
    "Change",
    "FoldReport",
    "Folded",
    "ReplaceReport",
    "Replaced",
    "Skipped",
    "fold",
    "fold_projections",
    "replace",
]
