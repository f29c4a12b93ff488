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

    @classmethod
    def not_finite(cls, name: str) -> DivergedError:
        return cls(
            f"{name} contains NaN or infinity: the training has most likely diverged. "
            "Look at the loss and the gradients of the steps before this one."
        )

    @classmethod
    def no_scale(cls, name: str) -> DivergedError:
        return cls(
            f"{name} is all zeros, or so small that its square and what eps adds to it vanish. "
            f"With eps_mode='relative' the scale of {name} is the unit of eps, so it needs one: "
            "start from other values, or use eps_mode='absolute' with an eps that counts."
        )
