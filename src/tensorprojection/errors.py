"""The library's own errors: each states the rule that was broken and shows what came in."""

from __future__ import annotations


class ProjectionError(Exception):
    """Base of every error this library raises on purpose."""


class ProjectionValueError(ProjectionError, ValueError):
    """A shape, size or number breaks a rule."""


class ProjectionTypeError(ProjectionError, TypeError):
    """A tensor's type, or an argument's, breaks a rule."""


class DivergedError(ProjectionError, ArithmeticError):
    """A parameter holds NaN or infinity (the training diverged), or has no scale to work with."""
