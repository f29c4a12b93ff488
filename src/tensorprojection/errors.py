"""The library's own errors: each states the rule that was broken and shows what came in."""

from __future__ import annotations


class ProjectionError(Exception):
    """Base of every error this library raises on purpose.

    >>> import tensorprojection as tp
    >>> try:
    ...     tp.TensorProjection((32, 12, 12), (32, 24, 24))
    ... except tp.ProjectionError as error:
    ...     print(error)
    Expected a projection to shrink every mode or leave it alone, got 12 -> 24 in mode 2 (...
    """


class ProjectionValueError(ProjectionError, ValueError):
    """A shape, size or number breaks a rule. It is a ValueError, too.

    >>> import torch, tensorprojection as tp
    >>> tp.TensorProjection((32, 12, 12), (32, 6, 6))(torch.randn(300, 12, 12, 32))
    Traceback (most recent call last):
        ...
    tensorprojection.errors.ProjectionValueError: Expected an input of shape (..., 32, 12, 12), ...
    """


class ProjectionTypeError(ProjectionError, TypeError):
    """A tensor's type, or an argument's, breaks a rule. It is a TypeError, too.

    >>> import torch, tensorprojection as tp
    >>> tp.TensorProjection((8,), (4,))(torch.ones(2, 8, dtype=torch.int64))
    Traceback (most recent call last):
        ...
    tensorprojection.errors.ProjectionTypeError: Expected ... tensor, got torch.int64.
    """


class ProjectionDeviceError(ProjectionError, RuntimeError):
    """Tensors are on different devices. It is a RuntimeError, too, as in torch.

    >>> import torch, tensorprojection as tp
    >>> tp.TensorProjection((8,), (4,))(torch.ones(2, 8, device="meta"))
    Traceback (most recent call last):
        ...
    tensorprojection.errors.ProjectionDeviceError: Expected the input and the layer on one ...
    """
