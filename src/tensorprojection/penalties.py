"""Penalties to add to a loss: HOPE's, and the two of the paper's authors.

>>> import torch, tensorprojection as tp
>>> tp.penalties.hope(torch.eye(3)).item()  # columns at right angles
0.0
"""

from .algebra.penalties import hope, reconstruction_error, spread, unit_columns

__all__ = ["hope", "reconstruction_error", "spread", "unit_columns"]
