"""The rules for ε."""

from __future__ import annotations

from typing import Literal, get_args

from .errors import ProjectionTypeError, ProjectionValueError

EpsMode = Literal["absolute", "relative"]

DEFAULT_EPS: dict[str, float] = {"absolute": 1e-3, "relative": 1e-5}


def check_eps(eps: float | None, eps_mode: EpsMode) -> float:
    """Return ε as a number whose square can be added; the default for None."""
    if eps_mode not in get_args(EpsMode):
        raise ProjectionValueError(f"Expected eps_mode 'absolute' or 'relative', got {eps_mode!r}.")
    if eps is None:
        return DEFAULT_EPS[eps_mode]
    if isinstance(eps, bool) or not isinstance(eps, (int, float)):
        raise ProjectionTypeError(f"Expected eps to be a number, got {type(eps).__name__}.")
    if not 0 < eps < float("inf"):
        raise ProjectionValueError(
            f"Expected a finite eps > 0, got {eps}: without it U is undefined where W loses rank."
        )
    if not 0 < float(eps) * float(eps) < float("inf"):
        raise ProjectionValueError(
            f"Expected an eps whose square is neither 0 nor infinite, got {eps}."
        )
    return float(eps)
