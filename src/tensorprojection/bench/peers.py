"""Other implementations of the same map: the textbook way, tensorly-torch's TCL, geotorch."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from .cases import Case

_EINSUMS = ("nchw,ck->nkhw", "nchw,hk->nckw", "nchw,wk->nchk")
_TILED = ("nchw,nck->nkhw", "nchw,nhk->nckw", "nchw,nwk->nchk")


def _sizes(case: Case) -> list[tuple[int, int] | None]:
    pairs = zip(case.source, case.target, strict=True)
    return [None if p == q else (max(p, q), min(p, q)) for p, q in pairs]


class Textbook(nn.Module):
    """The authors' way: M^(-1/2) by singular value decomposition, U tiled for every sample."""

    def __init__(self, case: Case) -> None:
        super().__init__()
        self.transposed = case.transposed
        self.Ws = nn.ParameterList(
            nn.Parameter(0.05 * torch.randn(s if s is not None else (0, 0))) for s in _sizes(case)
        )

    def forward(self, x: Tensor) -> Tensor:
        for W, formula in zip(self.Ws, _TILED, strict=True):
            if W.numel() == 0:
                continue
            M = W.mT @ W + 1e-6 * torch.eye(W.shape[1])
            A, s, _ = torch.linalg.svd(M)
            U = W @ (A / s.sqrt()) @ A.mT
            tiled = (U.mT if self.transposed else U).repeat(x.shape[0], 1, 1)
            x = torch.einsum(formula, x, tiled)
        return x


def _textbook(case: Case) -> nn.Module:
    return Textbook(case)


def _tcl(case: Case) -> nn.Module:
    import tltorch

    layer: nn.Module = tltorch.TCL(case.source, rank=case.target)
    return layer


class _Geotorch(nn.Module):
    """Matrices held on the Stiefel manifold by geotorch, then the contractions by einsum."""

    def __init__(self, case: Case) -> None:
        import geotorch

        super().__init__()
        self.transposed = case.transposed
        self.maps = nn.ModuleList(
            nn.Identity() if s is None else nn.Linear(s[1], s[0], bias=False) for s in _sizes(case)
        )
        for m in self.maps:
            if isinstance(m, nn.Linear):
                geotorch.orthogonal(m, "weight")

    def forward(self, x: Tensor) -> Tensor:
        for m, formula in zip(self.maps, _EINSUMS, strict=True):
            if isinstance(m, nn.Linear):
                U = m.weight
                x = torch.einsum(formula, x, U.mT if self.transposed else U)
        return x


PEERS: dict[str, Callable[[Case], Any]] = {
    "textbook": _textbook,
    "TCL": _tcl,
    "geotorch": _Geotorch,
}

PACKAGES = ("geotorch", "tltorch")  # that they import
