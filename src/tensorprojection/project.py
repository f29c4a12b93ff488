"""The multilinear map itself: Z = X ×₁ U₁ᵀ ×₂ U₂ᵀ … (Eq. 1) and its transpose (Eq. 13)."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

from torch import Tensor

from .dtypes import cast, check_floating, map_dtype, no_autocast
from .errors import ProjectionTypeError, ProjectionValueError


def project(x: Tensor, Us: Sequence[Tensor | None]) -> Tensor:
    """``x ×₁ U₁ᵀ ×₂ U₂ᵀ …`` over the last ``len(Us)`` axes of ``x`` (Eq. 1).

    >>> import torch
    >>> x = torch.ones(300, 32, 12, 12)
    >>> U = torch.linalg.qr(torch.ones(12, 6))[0]
    >>> project(x, [None, U, U]).shape
    torch.Size([300, 32, 6, 6])

    Args:
        x: any leading axes are batch axes. Its memory format is kept.
        Us: one ``p_k × q_k`` matrix a mode, or None for a mode left alone.
    """
    return _multilinear(x, Us, transposed=False)


def back_project(z: Tensor, Us: Sequence[Tensor | None]) -> Tensor:
    """``z ×₁ U₁ ×₂ U₂ …`` over the last ``len(Us)`` axes of ``z`` (Eq. 13).

    The transpose of :func:`project`; for orthonormal U its right inverse.
    """
    return _multilinear(z, Us, transposed=True)


def _multilinear(x: Tensor, Us: Sequence[Tensor | None], *, transposed: bool) -> Tensor:
    check_floating(x, "the input")
    _check(x, Us, transposed)
    matrices = [None if U is None else (U.mT if transposed else U) for U in Us]
    dtype = map_dtype(x)
    x = cast(x, dtype)
    matrices = [None if A is None else cast(A, dtype) for A in matrices]
    with no_autocast(x):
        return _apply(x, matrices)


def _apply(x: Tensor, matrices: list[Tensor | None]) -> Tensor:
    """x ×_k A_kᵀ in the order in which x lies in memory."""
    order = len(matrices)
    b = x.ndim - order
    axes = _memory_order(x, b)
    x = x.permute(axes)
    shrink = sorted((A.shape[1] / A.shape[0], k) for k, A in enumerate(matrices) if A is not None)
    for _, k in shrink:
        A = matrices[k]
        assert A is not None
        axis = axes.index(b + k)
        left, right = prod(x.shape[:axis]), prod(x.shape[axis + 1 :])
        shape = (*x.shape[:axis], A.shape[1], *x.shape[axis + 1 :])
        if right == 1:
            x = (x.reshape(left, A.shape[0]) @ A).reshape(shape)
        else:
            x = (A.mT @ x.reshape(left, A.shape[0], right)).reshape(shape)
    inverse = [axes.index(a) for a in range(x.ndim)]
    return x.permute(inverse)


def _memory_order(x: Tensor, b: int) -> list[int]:
    """The axes of x, batch axes first, feature axes from the outermost in memory."""
    strides = x.stride()
    features = sorted(range(b, x.ndim), key=lambda a: -strides[a])
    return [*range(b), *features]


def _check(x: Tensor, Us: Sequence[Tensor | None], transposed: bool) -> None:
    if not Us or x.ndim < len(Us):
        raise ProjectionValueError(
            f"Expected a tensor with at least {max(len(Us), 1)} axes, one a mode, "
            f"got shape {tuple(x.shape)} and {len(Us)} matrices."
        )
    for k, U in enumerate(Us):
        size = x.shape[x.ndim - len(Us) + k]
        if U is None:
            continue
        check_floating(U, f"U{k + 1}")
        if U.ndim != 2 or U.shape[1 if transposed else 0] != size:
            expected = f"(p, {size})" if transposed else f"({size}, q)"
            raise ProjectionValueError(
                f"Expected U{k + 1} of shape {expected} for an input of shape {tuple(x.shape)}, "
                f"got {tuple(U.shape)}."
            )
        if U.device != x.device:
            raise ProjectionTypeError(
                f"Expected input and U{k + 1} on one device, got the input on {x.device} and "
                f"U{k + 1} on {U.device}."
            )
