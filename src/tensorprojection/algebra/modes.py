"""vec, unfolding, folding and the mode product, for any order (paper, appendices C and D).

Everything is Fortran-ordered, as in the paper and in Kolda & Bader (2009): the index of the first
mode changes fastest. Modes count from 1, as in the paper, so that mode ``k`` belongs to ``W_k``.

The first ``batch_dims`` axes of a tensor are batch axes: they stay where they are.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

import torch
from torch import Tensor

from ..engine.dtypes import check_floating, check_tensor
from ..errors import ProjectionTypeError, ProjectionValueError


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
    """The mode-``mode`` unfolding ``X_(k)``, a matrix of ``p_k`` rows (appendix D.2.1).

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
    """The inverse of :func:`unfold`: a tensor of the given ``shape`` (without batch axes).

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
    """The mode-k product ``x ×_k matrix`` (appendix D.1); ``matrix`` is ``p' × p_k``.

    >>> x = torch.ones(2, 3, 4)
    >>> mode_product(x, torch.ones(5, 3), 2).shape
    torch.Size([2, 5, 4])
    """
    axis = _axis(x, mode, batch_dims)
    check_floating(x, "the tensor")
    check_floating(matrix, "the matrix")
    if matrix.device != x.device:
        raise ProjectionTypeError(
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
