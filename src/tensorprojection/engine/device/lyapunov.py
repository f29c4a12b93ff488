"""The X with H X + X H = C, by products and one batch of inverses.

Note [Shifts and doublings]
    For any p > 0, X solves ``X = K X K + 2p (H + p)⁻¹ C (H + p)⁻¹`` with the contraction
    ``K = (H - p)(H + p)⁻¹``. Four such shifts, one after the other, give ``X = K X K + X₁`` with
    the product of four contractions as K; for the best shifts its norm is at most 0.6. The sum
    ``X₁ + K X₁ K + K² X₁ K² + …`` doubles its terms at every step: five steps give 32 terms, and
    what is left out, 0.6^64, is beyond float64. (Four would leave 3e-8.)
"""

from __future__ import annotations

from functools import cache
from math import sqrt

import torch
from torch import Tensor

from .quintics import SMALLEST

_DOUBLINGS = 5


@cache
def shifts(low: float = SMALLEST, high: float = 1.0, halvings: int = 2) -> tuple[float, ...]:
    """The best 2^halvings shifts for eigenvalues in [low, high] (Wachspress, 1963).

    x -> (x + low high / x) / 2 folds the interval onto [√(low high), (low + high)/2], where half as
    many are needed; each of those comes from two.
    """
    middle = sqrt(low * high)
    if halvings == 0:
        return (middle,)
    found: list[float] = []
    for p in shifts(middle, (low + high) / 2, halvings - 1):
        root = sqrt(p * p - low * high)
        found += [p + root, low * high / (p + root)]
    return tuple(found)


def solve(H: Tensor, C: Tensor) -> Tensor:
    """X of H X + X H = C for symmetric H with eigenvalues in [SMALLEST, 1]; both (b, q, q)."""
    # Functions only, nothing in place: torch.func maps this as it stands.
    eye = torch.eye(H.shape[-1], dtype=H.dtype, device=H.device)
    ps = shifts()
    inverses, _ = torch.linalg.inv_ex(torch.stack([torch.add(H, eye, alpha=p) for p in ps]))
    L = inverses[0]
    Ls = [L]
    K = torch.sub(eye, L, alpha=2 * ps[0])
    for p, inverse in zip(ps[1:], inverses[1:], strict=True):
        L = inverse @ K
        Ls.append(L)
        K = torch.sub(K, L, alpha=2 * p)
    stacked = torch.stack(Ls)
    terms = stacked @ C @ stacked.mT
    X = 2 * ps[0] * terms[0]
    for p, term in zip(ps[1:], terms[1:], strict=True):
        X = torch.add(X, term, alpha=2 * p)
    for _ in range(_DOUBLINGS - 1):
        X = torch.baddbmm(X, K @ X, K.mT)
        K = K @ K
    return torch.baddbmm(X, K @ X, K.mT)
