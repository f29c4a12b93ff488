"""The paper's formulas as functions: the layers call these, and so can any code.

>>> import torch, tensorprojection as tp
>>> U = tp.functional.polar(torch.randn(12, 6))
>>> tp.functional.project(torch.randn(300, 32, 12, 12), [None, U, U]).shape
torch.Size([300, 32, 6, 6])

Modes count from 1, as in the paper, so that mode ``k`` belongs to ``W_k``; TensorLy counts from 0.
`vec`, `unfold` and `fold` are Fortran-ordered, as in the paper and in Kolda & Bader (2009): the
index of the first mode changes fastest, unlike in TensorLy. The first ``batch_dims`` axes of a
tensor are batch axes: they stay where they are.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

import torch
from torch import Tensor

from .eps import EpsMode, check_eps
from .errors import ProjectionDeviceError, ProjectionValueError
from .ops.dtypes import check_floating, check_tensor
from .ops.layout import Matrices
from .ops.multilinear import multilinear
from .ops.polar import projections
from .ops.tracing import outside_jit_trace

__all__ = ["back_project", "fold", "mode_product", "polar", "project", "unfold", "vec"]


def polar(
    W: Tensor,
    eps: float | None = None,
    *,
    eps_mode: EpsMode = "absolute",
    dtype: torch.dtype | None = None,
) -> Tensor:
    """Return the projection matrix ``U = W (WᵀW + ε²I)^(-1/2)`` of Eq. 3.

    >>> W = torch.randn(12, 6)
    >>> U = polar(W)
    >>> bool(torch.allclose(U.T @ U, torch.eye(6), atol=1e-4))
    True

    Args:
        W: ``(..., p, q)`` with ``q <= p``; leading axes are batch axes.
        eps: the paper's ε (ε² is added). Default 1e-3 (absolute) or 1e-5 (relative).
        eps_mode: ``"absolute"`` adds ε², as the paper does; ``"relative"`` adds ε² times the mean
            square of W's singular values, tr(WᵀW)/q, so that U does not depend on W's scale.
        dtype: the type of U; default that of W. Whatever it is, U is cast to it at the end only.

    The singular values of U are ``σ / sqrt(σ² + ε²)`` for those of W, σ: U is orthonormal up to
    ε²/(σ² + ε²). Its derivatives of every order are exact, for repeated singular values too. A W
    with NaN or infinity gives NaN, and so does a zero W with a relative ε.

    On an accelerator U is computed with products of matrices only, and nothing synchronizes. A W of
    type float64 is decomposed on the host, and so is any W on a device without float64 (Apple's),
    where U is float32 at most.
    """
    eps = check_eps(eps, eps_mode)
    check_floating(W, "W")
    p, q = W.shape[-2:] if W.ndim >= 2 else (0, 0)
    if not 1 <= q <= p:
        raise ProjectionValueError(
            f"Expected W of shape (..., p, q) with 1 <= q <= p, got {tuple(W.shape)}."
        )
    U: Tensor = projections([W], [eps], eps_mode == "relative", dtype or W.dtype)[0]
    return U


def project(x: Tensor, Us: Matrices) -> Tensor:
    """Return ``x ×₁ U₁ᵀ ×₂ U₂ᵀ …`` over the last ``len(Us)`` axes of ``x`` (Eq. 1).

    >>> x = torch.ones(300, 32, 12, 12)
    >>> U = torch.linalg.qr(torch.ones(12, 6))[0]
    >>> project(x, [None, U, U]).shape
    torch.Size([300, 32, 6, 6])

    Args:
        x: any leading axes are batch axes. The result has its memory format.
        Us: one ``p_k × q_k`` matrix per mode, or None for a mode left alone.
    """
    _check_matrices(x, Us, transposed=False)
    return multilinear(x, Us, transposed=False)


def back_project(z: Tensor, Us: Matrices) -> Tensor:
    """Return ``z ×₁ U₁ ×₂ U₂ …`` over the last ``len(Us)`` axes of ``z`` (Eq. 13).

    The transpose of :func:`project`; for orthonormal U its right inverse.

    >>> U = torch.linalg.qr(torch.randn(12, 6))[0]
    >>> z = torch.randn(300, 6)
    >>> x = back_project(z, [U])
    >>> x.shape, bool(torch.allclose(project(x, [U]), z, atol=1e-5))
    (torch.Size([300, 12]), True)

    Args:
        z: any leading axes are batch axes. The result has its memory format.
        Us: one ``p_k × q_k`` matrix per mode, or None for a mode left alone.
    """
    _check_matrices(z, Us, transposed=True)
    return multilinear(z, Us, transposed=True)


def vec(x: Tensor, *, batch_dims: int = 0) -> Tensor:
    """Stack the entries of ``x`` into one vector, first mode fastest (appendix C).

    >>> vec(torch.tensor([[1, 3], [2, 4]]))
    tensor([1, 2, 3, 4])
    """
    _order(x, batch_dims)
    batch = list(range(batch_dims))
    modes = list(range(batch_dims, x.ndim))
    size = prod(x.shape[batch_dims:])
    return x.permute(*batch, *reversed(modes)).reshape(*x.shape[:batch_dims], size)


def unfold(x: Tensor, mode: int, *, batch_dims: int = 0) -> Tensor:
    """Return the mode-``mode`` unfolding ``X_(k)``, a matrix of ``p_k`` rows (appendix D.2.1).

    The columns run over the other modes, the first of them fastest.

    >>> unfold(torch.arange(24).reshape(2, 3, 4), 2).shape
    torch.Size([3, 8])
    """
    axis = _axis(x, mode, batch_dims)
    others = [a for a in range(batch_dims, x.ndim) if a != axis]
    batch = list(range(batch_dims))
    columns = prod(x.shape[a] for a in others)
    return x.permute(*batch, axis, *reversed(others)).reshape(
        *x.shape[:batch_dims], x.shape[axis], columns
    )


def fold(matrix: Tensor, mode: int, shape: Sequence[int]) -> Tensor:
    """Return the inverse of :func:`unfold`: a tensor of the given ``shape``, without batch axes.

    All axes of ``matrix`` but its last two are batch axes.

    >>> x = torch.arange(24).reshape(2, 3, 4)
    >>> torch.equal(fold(unfold(x, 3), 3, x.shape), x)
    True
    """
    shape = tuple(shape)
    if not 1 <= mode <= len(shape):
        raise ProjectionValueError(_mode_rule(mode, len(shape)))
    k = mode - 1
    others = [size for j, size in enumerate(shape) if j != k]
    if matrix.ndim < 2 or matrix.shape[-2:] != (shape[k], prod(others)):
        raise ProjectionValueError(
            f"Expected a matrix of shape (..., {shape[k]}, {prod(others)}) to fold along mode "
            f"{mode} into {shape}, got {tuple(matrix.shape)}."
        )
    b = matrix.ndim - 2
    tensor = matrix.reshape(*matrix.shape[:b], shape[k], *reversed(others))
    # Axis b holds the mode itself, axes b+1 … the other modes, last one first.
    other_axes = list(range(b + len(shape) - 1, b, -1))
    feature_axes = [*other_axes[:k], b, *other_axes[k:]]
    return tensor.permute(*range(b), *feature_axes)


def mode_product(x: Tensor, matrix: Tensor, mode: int, *, batch_dims: int = 0) -> Tensor:
    """Return the mode-k product ``x ×_k matrix`` (appendix D.1); ``matrix`` is ``p' × p_k``.

    >>> x = torch.ones(2, 3, 4)
    >>> mode_product(x, torch.ones(5, 3), 2).shape
    torch.Size([2, 5, 4])
    """
    axis = _axis(x, mode, batch_dims)
    check_floating(x, "the tensor")
    check_floating(matrix, "the matrix")
    if matrix.device != x.device:
        raise ProjectionDeviceError(
            f"Expected tensor and matrix on one device, got {x.device} and {matrix.device}."
        )
    if matrix.ndim != 2 or matrix.shape[1] != x.shape[axis]:
        raise ProjectionValueError(
            f"Expected a matrix with {x.shape[axis]} columns for mode {mode} of a tensor of shape "
            f"{tuple(x.shape)}, got {tuple(matrix.shape)}."
        )
    return torch.movedim(torch.movedim(x, axis, -1) @ matrix.mT, -1, axis)


def _order(x: Tensor, batch_dims: int) -> int:
    check_tensor(x, "the input")
    if not 0 <= batch_dims < max(x.ndim, 1):
        raise ProjectionValueError(
            f"Expected 0 <= batch_dims < {x.ndim} for a tensor of shape {tuple(x.shape)}, "
            f"got {batch_dims}: at least one axis has to be a mode."
        )
    return x.ndim - batch_dims


def _axis(x: Tensor, mode: int, batch_dims: int) -> int:
    order = _order(x, batch_dims)
    if not 1 <= mode <= order:
        raise ProjectionValueError(_mode_rule(mode, order))
    return batch_dims + mode - 1


def _mode_rule(mode: int, order: int) -> str:
    return (
        f"Expected a mode from 1 to {order}, got {mode}: "
        "modes count from 1, as in the paper, and mode k belongs to W_k."
    )


def _check_matrices(x: Tensor, Us: Matrices, *, transposed: bool) -> None:
    with outside_jit_trace():  # a comparison of sizes is not part of a trace
        check_floating(x, "the input")
        if not Us or x.ndim < len(Us):
            raise ProjectionValueError(
                f"Expected a tensor with at least {max(len(Us), 1)} axes, one per mode, "
                f"got shape {tuple(x.shape)} and {len(Us)} matrices."
            )
        for k, U in enumerate(Us):
            size = x.shape[x.ndim - len(Us) + k]
            if U is None:
                continue
            check_floating(U, f"U{k + 1}")
            if U.ndim != 2 or U.shape[1 if transposed else 0] != size or U.numel() == 0:
                expected = f"(p, {size})" if transposed else f"({size}, q)"
                raise ProjectionValueError(
                    f"Expected U{k + 1} of shape {expected} for an input of shape "
                    f"{tuple(x.shape)}, got {tuple(U.shape)}."
                )
            if U.device != x.device:
                raise ProjectionDeviceError(
                    f"Expected input and U{k + 1} on one device, got the input on {x.device} and "
                    f"U{k + 1} on {U.device}."
                )
