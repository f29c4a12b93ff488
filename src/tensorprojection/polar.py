"""W -> U = W (WᵀW + ε²I)^(-1/2), with exact derivatives of every order (paper 2.2 and 2.3).

The paper's letters: ``M = WᵀW + ε²I``, ``G = M^(-1/2)``, ``U = W G``; ``H = M^(1/2)`` as in the
correction of Eq. 11. ``V`` and ``s`` are M's eigenvectors and the roots of its eigenvalues, so
that ``H = V diag(s) Vᵀ``.

Note [The corrected Eq. 11]
    The paper's Eq. 11, dG = -1/2 M^(-3/4) dM M^(-3/4), holds only where dM commutes with M. From
    H H = M follows H dH + dH H = dM, a Lyapunov equation, and from G = H^(-1) follows
    dG = -G dH G. In the eigenbasis of M that reads dG_ij = -dM_ij / (s_i s_j (s_i + s_j)). The
    denominators are sums: repeated singular values of W are no special case, as they are for
    automatic differentiation through `eigh` or `svd`, whose 1/(λ_i - λ_j) gives NaN there.

Note [Two functions closed under differentiation]
    The derivative of G needs only `_Lyapunov`, and the derivative of `_Lyapunov` only itself. Both
    take M as the variable they depend on, and V and s as constants that merely make the solution
    cheap. So every order of derivative, backward or forward, is exact, and none goes through a
    derivative of the decomposition.

Note [Float64 inside]
    Forming WᵀW squares W's condition number, so in float32 the Gram matrix of a W of condition 10³
    has lost all digits of its smallest direction. M is small; it and all that follows from it are
    float64, and only the finished U is cast. Where even float64 is not enough (and for a float64
    W), V and s come from the singular value decomposition of W itself.

Note [The decomposition runs on the host]
    For a q × q matrix of this size LAPACK is faster than a GPU's solver, which moreover may return
    garbage, silently, for a NaN. The copy of M to the host is the one synchronisation (`eigh` on
    the device would cost one too), and the checks for NaN and for the condition are free there.
"""

from __future__ import annotations

from typing import Any, Literal, get_args

import torch
from torch import Tensor
from torch.autograd import forward_ad

from .dtypes import cast, check_floating, no_autocast
from .errors import DivergedError, ProjectionError, ProjectionTypeError, ProjectionValueError

EpsMode = Literal["absolute", "relative"]

DEFAULT_EPS: dict[str, float] = {"absolute": 1e-3, "relative": 1e-5}

# Beyond this ratio of M's eigenvalues the Gram matrix in float64 no longer gives V and s to
# float32's precision: its error in the smallest direction is about 2e-16 times the ratio.
_GRAM_LIMIT = 5e7


def polar(
    W: Tensor,
    eps: float | None = None,
    *,
    eps_mode: EpsMode = "absolute",
    dtype: torch.dtype | None = None,
    name: str = "W",
) -> Tensor:
    """The projection matrix ``U = W (WᵀW + ε²I)^(-1/2)`` of Eq. 3.

    >>> W = torch.randn(12, 6)
    >>> U = polar(W)
    >>> bool(torch.allclose(U.T @ U, torch.eye(6), atol=1e-4))
    True

    Args:
        W: ``(..., p, q)`` with ``q <= p``; leading axes are batch axes.
        eps: the paper's ε (ε² is added). Default 1e-3 (absolute) or 1e-5 (relative).
        eps_mode: ``"absolute"`` adds ε², as the paper does; ``"relative"`` adds ε² times the mean
            square of W's singular values, tr(WᵀW)/q, so that U does not depend on W's scale.
        dtype: the type of U; default that of W. U is computed in float64 and cast at the end.
        name: what an error calls W.

    The singular values of U are ``σ / sqrt(σ² + ε²)`` for those of W, σ: U is orthonormal up to
    ε²/(σ² + ε²).
    """
    eps = check_eps(eps, eps_mode)
    check_floating(W, name)
    p, q = W.shape[-2:] if W.ndim >= 2 else (0, 0)
    if not 1 <= q <= p:
        raise ProjectionValueError(
            f"Expected {name} of shape (..., p, q) with 1 <= q <= p, got {tuple(W.shape)}."
        )
    with no_autocast(W):
        A = cast(W, _work_dtype(W))
        gram = A.mT @ A
        shift = _shift(gram, eps, eps_mode)
        M = gram + shift * torch.eye(q, dtype=A.dtype, device=A.device)
        G = _inverse_sqrt(M, A, shift, exact=W.dtype == torch.float64, name=name)
        U = A @ G
        return cast(U, dtype or W.dtype)


def check_eps(eps: float | None, eps_mode: EpsMode) -> float:
    if eps_mode not in get_args(EpsMode):
        raise ProjectionValueError(f"Expected eps_mode 'absolute' or 'relative', got {eps_mode!r}.")
    if eps is None:
        return DEFAULT_EPS[eps_mode]
    if isinstance(eps, bool) or not isinstance(eps, int | float):
        raise ProjectionTypeError(f"Expected eps to be a number, got {type(eps).__name__}.")
    if not 0 < eps < float("inf"):
        raise ProjectionValueError(
            f"Expected a finite eps > 0, got {eps}: without it U is undefined where W loses rank."
        )
    return float(eps)


def _work_dtype(W: Tensor) -> torch.dtype:
    # Apple's GPU has no float64.
    return torch.float32 if W.device.type == "mps" else torch.float64


def _shift(gram: Tensor, eps: float, eps_mode: EpsMode) -> Tensor:
    """What is added to the diagonal of WᵀW: shape (..., 1, 1)."""
    if eps_mode == "absolute":
        return gram.new_full((1, 1), eps * eps)
    mean_square = gram.diagonal(dim1=-2, dim2=-1).mean(-1)
    return eps * eps * mean_square[..., None, None]


def _inverse_sqrt(M: Tensor, A: Tensor, shift: Tensor, *, exact: bool, name: str) -> Tensor:
    # Dynamo refuses a Function that defines jvp, so it gets the one without; and for forward mode
    # it would drop the rule in silence and give a wrong tangent (pytorch/pytorch#192985).
    if torch.compiler.is_compiling() and forward_ad._current_level >= 0:
        raise ProjectionError(
            "torch.func.jvp inside torch.compile is not supported here: call jvp outside of the "
            "compiled function."
        )
    function: Any = _InverseSqrt if torch.compiler.is_compiling() else _InverseSqrtForward
    G: Tensor = function.apply(M, A, shift, exact, name)[0]
    return G


def _lyapunov(M: Tensor, C: Tensor, V: Tensor, s: Tensor) -> Tensor:
    function: Any = _Lyapunov if torch.compiler.is_compiling() else _LyapunovForward
    X: Tensor = function.apply(M, C, V, s)
    return X


class _InverseSqrt(torch.autograd.Function):
    """M -> G = M^(-1/2); see Note [The corrected Eq. 11]. Also returns V and s, constants."""

    @staticmethod
    def forward(
        M: Tensor, A: Tensor, shift: Tensor, exact: bool, name: str
    ) -> tuple[Tensor, Tensor, Tensor]:
        V, s = _spectrum(M, A, shift, exact, name)
        return (V / s[..., None, :]) @ V.mT, V, s

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        G, V, s = output
        ctx.mark_non_differentiable(V, s)
        ctx.save_for_backward(inputs[0], G, V, s)
        ctx.save_for_forward(inputs[0], G, V, s)

    @staticmethod
    def backward(ctx: Any, grad_G: Tensor, _V: Any, _s: Any) -> Any:
        M, G, V, s = ctx.saved_tensors
        return -_lyapunov(M, G @ grad_G @ G, V, s), None, None, None, None


class _InverseSqrtForward(_InverseSqrt):
    """With the rules for forward mode and vmap."""

    @staticmethod
    def jvp(ctx: Any, dM: Tensor | None, *_: Any) -> Any:
        M, G, V, s = ctx.saved_tensors
        dG = torch.zeros_like(G) if dM is None else -_lyapunov(M, G @ dM @ G, V, s)
        return dG, None, None

    @staticmethod
    def vmap(info: Any, in_dims: Any, M: Tensor, A: Tensor, shift: Tensor, *rest: Any) -> Any:
        batched = [
            x.movedim(d, 0) if d is not None else x
            for x, d in zip((M, A, shift), in_dims[:3], strict=True)
        ]
        function: Any = _InverseSqrtForward
        out = function.apply(*batched, *rest)
        return out, tuple(None if in_dims[0] is None else 0 for _ in out)


class _Lyapunov(torch.autograd.Function):
    """The X with H X + X H = C, where H = M^(1/2) = V diag(s) Vᵀ."""

    generate_vmap_rule = True

    @staticmethod
    def forward(M: Tensor, C: Tensor, V: Tensor, s: Tensor) -> Tensor:
        return V @ ((V.mT @ C @ V) / (s[..., :, None] + s[..., None, :])) @ V.mT

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Tensor) -> None:
        M, _, V, s = inputs
        ctx.save_for_backward(M, output, V, s)
        ctx.save_for_forward(M, output, V, s)

    @staticmethod
    def backward(ctx: Any, grad_X: Tensor) -> Any:
        # dX solves H dX + dX H = dC - dH X - X dH, and dH solves H dH + dH H = dM; the solution
        # is self-adjoint in its right-hand side.
        M, X, V, s = ctx.saved_tensors
        grad_C = _lyapunov(M, grad_X, V, s)
        grad_M = None
        if ctx.needs_input_grad[0]:
            grad_M = -_lyapunov(M, grad_C @ X.mT + X.mT @ grad_C, V, s)
        return grad_M, grad_C, None, None


class _LyapunovForward(_Lyapunov):
    """With the rule for forward mode."""

    @staticmethod
    def jvp(ctx: Any, dM: Tensor | None, dC: Tensor | None, *_: Any) -> Tensor:
        M, X, V, s = ctx.saved_tensors
        right = torch.zeros_like(X) if dC is None else dC
        if dM is not None:
            dH = _lyapunov(M, dM, V, s)
            right = right - dH @ X - X @ dH
        return _lyapunov(M, right, V, s)


def _spectrum(M: Tensor, A: Tensor, shift: Tensor, exact: bool, name: str) -> tuple[Tensor, Tensor]:
    # The operator is opaque to compilers and knows shapes on its own; a plain call is quicker.
    if torch.compiler.is_compiling() or M.is_meta or type(M) is not Tensor:
        V, s = _spectrum_op(M, A, shift, exact, name)
        return V, s
    return _decompose(M, A, shift, exact, name)


def _decompose(
    M: Tensor, A: Tensor, shift: Tensor, exact: bool, name: str
) -> tuple[Tensor, Tensor]:
    """V and s with M = V diag(s²) Vᵀ; see Note [The decomposition runs on the host]."""
    if M.numel() == 0:
        return M.clone(), M.new_empty(M.shape[:-1])
    host = M.to("cpu", torch.float64)
    if not exact:
        try:
            squares, V = torch.linalg.eigh(host)
        except RuntimeError:
            pass  # NaN, most likely; what it is gets sorted out below
        else:
            if bool((squares[..., -1] <= _GRAM_LIMIT * squares[..., 0]).all()):
                return V.to(M), squares.sqrt().to(M)
    _check_scale(host, A, name)
    _, sigma, Vh = torch.linalg.svd(A.to("cpu", torch.float64), full_matrices=False)
    s = (sigma.square() + shift.to("cpu", torch.float64)[..., 0]).sqrt()
    return Vh.mT.to(M), s.to(M)


def _check_scale(M: Tensor, A: Tensor, name: str) -> None:
    if not bool(torch.isfinite(M).all()):
        finite = bool(torch.isfinite(A).all())
        raise DivergedError(
            f"{name} is too large for its square to be represented."
            if finite
            else f"{name} contains NaN or infinity: the training has most likely diverged. "
            "Look at the loss and the gradients of the steps before this one."
        )
    if not bool((M.diagonal(dim1=-2, dim2=-1).sum(-1) > 0).all()):
        raise DivergedError(
            f"{name} is all zeros: with eps_mode='relative' the scale of {name} is the unit of "
            "eps, so it must have one. Start from other values, or use eps_mode='absolute'."
        )


@torch.library.custom_op("tensorprojection::spectrum", mutates_args=())
def _spectrum_op(
    M: Tensor, A: Tensor, shift: Tensor, exact: bool, name: str
) -> tuple[Tensor, Tensor]:
    V, s = _decompose(M, A, shift, exact, name)
    return V.contiguous(), s.contiguous()


@_spectrum_op.register_fake
def _(M: Tensor, A: Tensor, shift: Tensor, exact: bool, name: str) -> tuple[Tensor, Tensor]:
    return torch.empty_like(M), M.new_empty(M.shape[:-1])
