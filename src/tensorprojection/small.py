"""U and its derivative for a W so small that the calls cost more than the arithmetic.

Note [NumPy for small matrices]
    For a 12 × 6 matrix a call of torch takes some five times as long as one of NumPy, and U with
    its derivative is made of thirty. The steps are those of `polar_values` and
    `polar_grad_values` in polar.py, all in float64. From about q = 25 on, NumPy's LAPACK divides
    and conquers with threads of its own, and these fight with torch's for the cores: a layer of
    64 × 32 was four times slower for it.
"""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from .spectrum import GRAM_LIMIT

_ENTRIES, _COLUMNS = 1024, 24

Array = NDArray[np.float64]


def is_small(W: Tensor) -> bool:
    """Whether this is the way for W; float64 asks for more than a Gram matrix in float64 gives."""
    p, q = W.shape[-2:]
    small = W.numel() > 0 and p * q <= _ENTRIES and q <= _COLUMNS
    return small and W.device.type == "cpu" and W.dtype != torch.float64


def small_polar(
    W: Tensor, eps: float, relative: bool, dtype: torch.dtype
) -> tuple[Tensor, Tensor, Tensor, Tensor] | None:
    """U, G, V and s; None where W is too ill-conditioned for this way, or not finite."""
    A = _array(W)
    with np.errstate(all="ignore"):  # what is not finite is found below
        M = A.swapaxes(-1, -2) @ A
        diagonal = np.einsum("...ii->...i", M)  # a view
        diagonal += eps * eps * (diagonal.mean(-1, keepdims=True) if relative else 1.0)
        try:
            squares, V = np.linalg.eigh(M)
        except np.linalg.LinAlgError:
            return None
        low, high = squares[..., 0], squares[..., -1]
        # Written so that NaN is not within the limits.
        if not ((low > 0) & (high <= GRAM_LIMIT * low) & (high < np.inf)).all():
            return None
    s = np.sqrt(squares)
    G = (V / s[..., None, :]) @ V.swapaxes(-1, -2)
    U = torch.from_numpy(A @ G).to(dtype)
    return U, torch.from_numpy(G), torch.from_numpy(V), torch.from_numpy(s)


def small_polar_grad(
    W: Tensor, grad_U: Tensor, G: Tensor, V: Tensor, s: Tensor, eps: float, relative: bool
) -> Tensor:
    """dL/dW from dL/dU."""
    A, dU = _array(W), _array(grad_U)
    g, v, r = G.numpy(), V.numpy(), s.numpy()
    vt = v.swapaxes(-1, -2)
    C = g @ (A.swapaxes(-1, -2) @ dU) @ g
    X = v @ ((vt @ C @ v) / (r[..., :, None] + r[..., None, :])) @ vt
    S = X + X.swapaxes(-1, -2)
    if relative:
        q = S.shape[-1]
        trace = np.einsum("...ii->...", S)[..., None, None]
        S += (eps * eps / q) * trace * np.eye(q)
    return torch.from_numpy(dU @ g - A @ S).to(W.dtype)


def _array(W: Tensor) -> Array:
    return W.detach().to(torch.float64).numpy()
