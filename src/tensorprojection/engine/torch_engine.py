"""A layer by torch's own operations: for every type, device and memory format.

Note [Float64 inside]
    Forming WᵀW squares W's condition number, so in float32 the Gram matrix of a W of condition 10³
    has lost all digits of its smallest direction. M is small; it and all that follows from it are
    float64, and only the finished U is cast. The products of tall matrices are float32 where W is
    well-conditioned enough for that to cost nothing.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from . import torch_steps as contract
from .eigensystem import decompose, float32_suffices, gram
from .interface import LayerOptions, Polar, SavedForBackward
from .layout import Layout, Matrices, layout_of
from .packed import pack, unpack


class TorchEngine:
    """See :class:`engine.Engine`."""

    def layout(self, x: Tensor, Us: Matrices) -> Layout:
        return layout_of(x, Us, tiles=False)

    def layout_of_layer(self, x: Tensor, Ws: Matrices) -> Layout:
        """The layout whose order of modes is that of what a layer with these W's saves."""
        return layout_of(x, Ws, tiles=False)

    def map(self, x: Tensor, Us: Matrices, transposed: bool, like: Tensor) -> Tensor:
        layout = layout_of(like, Us, tiles=False)
        As = layout.matrices(Us)
        if transposed:
            result = contract.grow(layout.small(x), As, layout.plan)
        else:
            result = contract.shrink(layout.large(x), As, layout.plan)
        return layout.logical(result, large=transposed)

    def gradients(
        self, x: Tensor, grad: Tensor, Us: Matrices, transposed: bool, want_x: bool
    ) -> tuple[Tensor | None, list[Tensor | None]]:
        layout = layout_of(x, Us, tiles=False)
        X, Z = (grad, x) if transposed else (x, grad)
        grown, shrunk, grad_As = contract.pair(
            layout.large(X),
            layout.small(Z),
            layout.matrices(Us),
            layout.plan,
            want_grown=want_x and not transposed,
            want_shrunk=want_x and transposed,
        )
        result = shrunk if transposed else grown
        by_mode: list[Tensor | None] = [None] * len(Us)
        for k, g in zip(layout.modes, grad_As, strict=True):
            if k is not None and g is not None:
                by_mode[k] = g.contiguous()
        grad_x = None if result is None else layout.logical(result, large=not transposed)
        return grad_x, by_mode

    def polar(self, W: Tensor, eps: float, relative: bool, dtype: torch.dtype, name: str) -> Polar:
        A = W.to(torch.float64)
        M = gram(A)
        diagonal = M.diagonal(dim1=-2, dim2=-1)
        shift = eps * eps * (diagonal.mean(-1, keepdim=True) if relative else 1.0)
        diagonal.add_(shift)
        V, s, G, AV = decompose(M, A, shift, exact=W.dtype == torch.float64, name=name)
        if AV is not None:
            return Polar(((AV / s[..., None, :]) @ V.mT).to(dtype), G, V, s)
        if W.dtype == torch.float32 and dtype != torch.float64 and float32_suffices(s):
            A = W
        return Polar((A @ G.to(A.dtype)).to(dtype), G, V, s)

    def polar_grad(
        self, W: Tensor, grad_U: Tensor, found: Polar, eps: float, relative: bool
    ) -> Tensor:
        _, G, V, s = found
        A = W if W.dtype == torch.float32 and float32_suffices(s) else W.to(G.dtype)
        G, V, s = G.to(A.dtype), V.to(A.dtype), s.to(A.dtype)
        grad_U = grad_U.to(A.dtype)
        grad_G = A.mT @ grad_U
        S = through_gram(-lyapunov(G @ grad_G @ G, V, s), eps, relative)
        return (grad_U @ G).add_(A @ S).to(W.dtype)

    def forward(
        self, x: Tensor, Ws: Matrices, options: LayerOptions
    ) -> tuple[Tensor, SavedForBackward]:
        found = [
            None if W is None else self.polar(W, eps, options.relative, x.dtype, name)
            for W, eps, name in zip(Ws, options.eps, options.names, strict=True)
        ]
        Us = [None if polar is None else polar.U for polar in found]
        layout = self.layout_of_layer(x, Ws)
        packed = pack(found, layout.modes, x)
        return self.map(x, Us, options.transposed, x), SavedForBackward(packed, layout)

    def backward(
        self,
        x: Tensor,
        grad: Tensor,
        Ws: Matrices,
        saved: SavedForBackward,
        options: LayerOptions,
        wanted: Sequence[bool],
    ) -> list[Tensor | None]:
        Us_in_one, spectra = saved.tensors
        layout: Layout = saved.context
        found = unpack((Us_in_one, spectra), Ws, layout.modes)
        Us = [None if polar is None else polar.U for polar in found]
        grad_Ws: list[Tensor | None] = [None] * len(Ws)
        if not any(wanted[1:]):
            return [self.map(grad, Us, not options.transposed, x), *grad_Ws]
        grad_x, grad_Us = self.gradients(x, grad, Us, options.transposed, wanted[0])
        for k, (W, polar, dU) in enumerate(zip(Ws, found, grad_Us, strict=True)):
            if wanted[k + 1] and W is not None and polar is not None and dU is not None:
                grad_Ws[k] = self.polar_grad(W, dU, polar, options.eps[k], options.relative)
        return [grad_x, *grad_Ws]


TORCH = TorchEngine()


def lyapunov(C: Tensor, V: Tensor, s: Tensor) -> Tensor:
    """The X with H X + X H = C, where H = V diag(s) Vᵀ."""
    return V @ ((V.mT @ C @ V) / (s[..., :, None] + s[..., None, :])) @ V.mT


def through_gram(grad_M: Tensor, eps: float, relative: bool) -> Tensor:
    """The S with dL/dW = W S where L depends on W through M (Eq. 12, and the relative shift)."""
    S = grad_M + grad_M.mT
    if not relative:
        return S
    q = S.shape[-1]
    eye = torch.eye(q, dtype=S.dtype, device=S.device)
    return S + (eps * eps / q) * trace(S) * eye


def trace(M: Tensor) -> Tensor:
    return M.diagonal(dim1=-2, dim2=-1).sum(-1)[..., None, None]
