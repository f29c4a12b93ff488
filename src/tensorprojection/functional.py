"""The library's functions: what the layers are made of, usable on their own.

>>> import torch, tensorprojection as tp
>>> U = tp.functional.polar(torch.randn(12, 6))
>>> tp.functional.project(torch.randn(300, 32, 12, 12), [None, U, U]).shape
torch.Size([300, 32, 6, 6])
"""

from .algebra.modes import fold, mode_product, unfold, vec
from .algebra.multilinear import back_project, project
from .algebra.polar import polar

__all__ = ["back_project", "fold", "mode_product", "polar", "project", "unfold", "vec"]
