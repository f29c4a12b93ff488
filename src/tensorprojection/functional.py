"""The library's functions: what the layers are made of, usable on their own."""

from .algebra.modes import fold, mode_product, unfold, vec
from .algebra.multilinear import back_project, project
from .algebra.polar import polar

__all__ = ["back_project", "fold", "mode_product", "polar", "project", "unfold", "vec"]
