"""W -> U, and the roots of M that its derivatives need, by a fixed number of products.

Note [The Gram matrix formed anew]
    T is a polynomial of ``R = WᵀW + ε²I`` in units where its norm is 1, and grows to ``R^(-1/2)``.
    WᵀW has lost what is smaller than 1e-16 of its largest eigenvalue, the square of 1e-8 of W's
    largest singular value. After six steps W·T is well-conditioned, so its own Gram matrix has
    lost nothing, and the steps go on from that.

Note [A taller W]
    ``WᵀW + ε²I`` is the Gram matrix of W with the rows ``ε I`` below it. So ε needs no case of its
    own: all products are with that taller matrix, and U is the upper part of its polar factor.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from .quintics import QUINTICS

_FORMED_ANEW_AFTER = 6


class Factors(NamedTuple):
    """What W ``(b, p, q)`` gives, all in float64, in units where the norm of M is 1."""

    U: Tensor
    T: Tensor  # G times the root of M's norm
    H: Tensor  # M^(1/2) divided by the root of M's norm
    size: Tensor  # M's norm, (b, 1, 1): not finite where W is not; 0 where M is 0


def factors(tall: Tensor, p: int) -> Factors:
    """From W with the rows ``ε I`` below it, (b, p + q, q), which is overwritten.

    See Note [A taller W].
    """
    R = tall.mT @ tall
    size = torch.linalg.vector_norm(R, dim=(-2, -1), keepdim=True)
    R.div_(size)
    tall.div_(size.sqrt())
    T = inverse_root(R, tall)
    product = tall @ T
    H = product.mT @ tall
    return Factors(product[:, :p], T, (H + H.mT).mul_(0.5), size)


def inverse_root(R: Tensor, tall: Tensor) -> Tensor:
    """``R^(-1/2)`` of ``R = tallᵀ tall``, whose norm is at most 1."""
    steps = QUINTICS
    T = torch.eye(R.shape[-1], dtype=R.dtype, device=R.device).expand_as(R)
    for k, (a, b, c) in enumerate(steps, start=1):
        B = torch.baddbmm(R, R, R, beta=b, alpha=c)
        T = torch.baddbmm(T, T, B, beta=a)
        if k == _FORMED_ANEW_AFTER:  # see Note [The Gram matrix formed anew]
            product = tall @ T
            R = product.mT @ product
        elif k < len(steps):
            R = torch.baddbmm(R, R, B, beta=a)
            R = torch.baddbmm(R, R, B, beta=a)
    return T


def with_eps_below(W: Tensor, eps: float, relative: bool) -> Tensor:
    """W ``(b, p, q)`` in float64 with the rows ``ε I`` below it: see Note [A taller W]."""
    b, p, q = W.shape
    tall = torch.zeros((b, p + q, q), dtype=torch.float64, device=W.device)
    tall[:, :p].copy_(W)
    diagonal = tall[:, p:].diagonal(dim1=-2, dim2=-1)
    if relative:
        diagonal.copy_(mean_singular_value(tall[:, :p], q) * eps)
    else:
        diagonal.fill_(eps)
    return tall


def mean_singular_value(A: Tensor, q: int) -> Tensor:
    """The root of tr(AᵀA)/q, of shape (b, 1)."""
    total: Tensor = torch.linalg.vector_norm(A, dim=(-2, -1))
    return total.div_(q**0.5)[:, None]
