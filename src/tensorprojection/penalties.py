"""Penalties: plain functions that return a scalar, to be added to a loss.

>>> import torch, tensorprojection as tp
>>> tp.penalties.hope(torch.eye(3)).item()
0.0

========================  ======================  ============================================
function                  added to the loss       effect on training
========================  ======================  ============================================
``hope``                  ``+ beta * hope(U)``    makes U's columns orthogonal
``reconstruction_error``  ``+ rate * …``          turns the projection to where the inputs vary
``spread``                ``+ rate * spread(z)``  pulls the samples together; ``-`` drives them
                                                  apart
========================  ======================  ============================================

The authors' own layer has the last two as ``reconstruction_error`` and ``total_variation``. The
paper does not describe them. The authors take the logarithm, whose gradient does not depend on the
features' scale, and which has no lower bound::

    loss = loss + rate * penalties.reconstruction_error(layer, x).log()
    loss = loss + rate * penalties.spread(layer(x)).log()  # "total_variation"
"""

from __future__ import annotations

from math import prod, sqrt
from typing import Any

import torch
from torch import Tensor

from .errors import ProjectionTypeError, ProjectionValueError
from .ops.dtypes import check_floating, no_autocast

__all__ = ["hope", "reconstruction_error", "spread", "unit_columns"]


def hope(U: Tensor) -> Tensor:
    r"""Return HOPE's :math:`D(U) = \sum_{i<j} |u_i^\top u_j| / (\|u_i\| \|u_j\|)`.

    D is 0 for orthogonal columns and q(q − 1)/2 for parallel ones. So it is *added* to a loss,
    ``loss + beta * hope(U)``; the paper prints −βD(U), which would reward parallel columns.

    >>> U = torch.tensor([[1.0, 1.0], [0.0, 1.0]], requires_grad=True)
    >>> hope(U).item()  # one pair, at 45 degrees
    0.7071...
    >>> for _ in range(200):
    ...     (gradient,) = torch.autograd.grad(hope(U), U)
    ...     U.data -= 0.005 * gradient
    >>> 0 <= hope(U).item() < 0.01
    True

    The gradient is a subgradient if D is not differentiable: 0 for an orthogonal pair and for a
    column of zeros, whose cosines count as 0. At exactly parallel columns, D's maximum, the
    gradient is 0 as well: D alone does not separate them.

    Args:
        U: a matrix, ``p × q``. Its columns may have any length.
    """
    check_floating(U, "U")
    if U.ndim != 2:
        raise ProjectionValueError(f"Expected U to be a matrix, p × q, got {tuple(U.shape)}.")
    with no_autocast(U):
        unit = unit_columns(U)
        return (unit.mT @ unit).abs().triu(diagonal=1).sum()


def reconstruction_error(layer: Any, x: Tensor) -> Tensor:
    r"""Return the mean over samples of the RMS of X − X̂, where X̂ is the back-projection of Z.

    .. math::
        \frac1n \sum_i \sqrt{\tfrac1P \|\mathcal X_i - \hat{\mathcal X}_i\|^2}, \qquad
        \hat{\mathcal X} = \mathcal Z \times_1 U_1 \times_2 U_2 \cdots, \quad
        P = p_1 p_2 \cdots

    >>> import tensorprojection as tp
    >>> layer = tp.TensorProjection((8, 6), (2, 2))
    >>> loss = reconstruction_error(layer, torch.randn(32, 8, 6))
    >>> loss.backward()

    A sample that is reconstructed without any error has the gradient 0.

    Args:
        layer: a :class:`TensorProjection`.
        x: its input; all axes before the layer's modes count samples. Gradients reach x too, and
            with it the layers before: ``x.detach()`` confines the penalty to this layer.
    """
    if not callable(getattr(layer, "reconstruct", None)):
        raise ProjectionTypeError(
            "Expected a layer that can reconstruct its input, a TensorProjection, "
            f"got {type(layer).__name__}."
        )
    difference = x - layer.reconstruct(x)
    return _mean_rms(difference, batch_dims=x.ndim - layer.order)


def spread(z: Tensor) -> Tensor:
    r"""Return the mean over samples of the RMS deviation from their mean.

    This is the authors' ``total_variation`` without the logarithm.

    .. math::
        \frac1n \sum_i \sqrt{\tfrac1Q \|\mathcal Z_i - \bar{\mathcal Z}\|^2}, \qquad
        \bar{\mathcal Z} = \tfrac1n \sum_i \mathcal Z_i, \quad Q = q_1 q_2 \cdots

    With a positive rate, as the authors use it, the projection turns *away* from what varies in its
    input, the opposite of a principal component. With a negative rate it turns towards it.

    >>> z = torch.tensor([[0.0, 0.0], [2.0, 2.0]])
    >>> spread(z).item()
    1.0

    A sample at the mean has the gradient 0, and so has a batch of one.

    Args:
        z: axis 0 counts the samples, all others are features.
    """
    check_floating(z, "z")
    if z.ndim < 2:
        raise ProjectionValueError(
            "Expected z to have an axis of samples and at least one of features, "
            f"got {tuple(z.shape)}."
        )
    return _mean_rms(z - z.mean(0), batch_dims=1)


def unit_columns(U: Tensor) -> Tensor:
    """Return U with columns of length 1; a column of zeros stays zero and has the gradient 0.

    >>> unit_columns(torch.tensor([[3.0, 0.0], [4.0, 0.0]]))
    tensor([[0.6000, 0.0000],
            [0.8000, 0.0000]])
    """
    scaled, _ = _of_size_one(U, dim=0)
    norms = torch.linalg.vector_norm(scaled, dim=0)
    return scaled / torch.where(norms > 0, norms, torch.inf)


def _mean_rms(x: Tensor, batch_dims: int) -> Tensor:
    scaled, sizes = _of_size_one(x.flatten(batch_dims), dim=-1)
    # The norm rather than the root of a mean of squares: its gradient at 0 is 0, the root's is NaN.
    by_sample: Tensor = torch.linalg.vector_norm(scaled, dim=-1) * sizes
    return by_sample.mean() / sqrt(prod(x.shape[batch_dims:]))


def _of_size_one(x: Tensor, dim: int) -> tuple[Tensor, Tensor]:
    """Return x divided by its largest entry along an axis, and these entries; 1 in place of 0.

    In float32 the square of 1e20 overflows and that of 1e-30 vanishes. The result does not depend
    on the scale, so the scale is detached.
    """
    sizes = x.detach().abs().amax(dim)
    sizes = torch.where(sizes > 0, sizes, 1.0)
    return x / sizes.unsqueeze(dim), sizes
