"""Penalties to add to a loss: HOPE's, and the two of the paper's authors."""

from .algebra.penalties import hope, reconstruction_error, spread, unit_columns

__all__ = ["hope", "reconstruction_error", "spread", "unit_columns"]
