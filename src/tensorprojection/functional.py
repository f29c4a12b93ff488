"""The library's functions: what the layers are made of, usable on their own."""

from .modes import fold, mode_product, unfold, vec
from .polar import polar
from .project import back_project, project

__all__ = ["back_project", "fold", "mode_product", "polar", "project", "unfold", "vec"]
