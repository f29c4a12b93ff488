"""Starts for W."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

# Keras's default for RandomNormal, which the paper's own layer uses.
PAPER_STD = 0.05


def normal_(W: Tensor) -> Tensor:
    """Normal noise of standard deviation 0.05: the paper's start."""
    return torch.nn.init.normal_(W, std=PAPER_STD)


def orthogonal_(W: Tensor) -> Tensor:
    """Orthonormal columns, uniformly distributed: U starts as W itself, up to ε."""
    if W.is_meta:
        return W
    with torch.no_grad():
        # QR in float64: W then is orthonormal to its own precision, and half types work too.
        A = torch.randn(W.shape, device=W.device).to("cpu", torch.float64)
        Q, R = torch.linalg.qr(A)
        # LAPACK leaves the columns' signs to the algorithm; fixing R's makes Q uniform.
        return W.copy_(Q * R.diagonal().sign())


INITS: dict[str, Callable[[Tensor], Tensor]] = {"normal": normal_, "orthogonal": orthogonal_}
