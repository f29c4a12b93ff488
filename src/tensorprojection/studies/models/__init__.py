"""The networks of the paper's section 3."""

from .oct_cnn import HEADS, oct_cnn

__all__ = ["HEADS", "oct_cnn"]
