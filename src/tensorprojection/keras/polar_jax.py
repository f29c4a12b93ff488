"""W -> U on JAX, accurate in float32 without ``jax_enable_x64``, with derivatives of every order.

Note [An island of float64]
    The condition number of U is that of W. In float32 alone, U of a W with condition 10⁶ would not
    have a correct digit. The decomposition therefore runs in float64, switched on locally. Its
    results have the type of W, so that no differentiation rule ever sees a float64.

Note [Derivatives that float32 can hold]
    With W = U H and Y = Uᵀ dW, the differential of H = (WᵀW + ε²I)^(1/2) solves
    H dH + dH H = H Y + Yᵀ H, and dU = (dW - U dH) G with G = H^(-1). In the eigenbasis of H,
    dH = Z + Zᵀ with Z_ij = Y_ij s_i / (s_i + s_j). No factor exceeds 1, so that rounding errors are
    not multiplied by the condition of W, as they would be if H Y were formed. The denominators are
    sums: repeated singular values are not a special case.

Note [Closed under differentiation]
    Z is the solution of Z + G Z H = Y, which `jax.lax.custom_linear_solve` can differentiate in Y,
    G and H. The differentials of U, H and G need nothing but U, G and Z. So V and s may be
    constants that make Z cheap, and derivatives of every order are exact.
"""

from __future__ import annotations

from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

Array = Any


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class _Spectrum:
    """U and H = V diag(s) Vᵀ as constants. ``shift`` is ε²/q if ε is relative, else 0."""

    U: Array
    V: Array
    s: Array
    shift: float = field(metadata={"static": True})


# Compiled: called eagerly, too, it is one program and not one per operation.
@partial(jax.jit, static_argnames=("eps", "relative"))
def polar(W: Array, eps: float, relative: bool) -> Array:
    return _U(W, _decompose(jax.lax.stop_gradient(W), eps, relative))


def outside_trace() -> AbstractContextManager[Any]:
    return jax.ensure_compile_time_eval()  # type: ignore[no-any-return]


def is_traced(x: Any) -> bool:
    return isinstance(x, jax.core.Tracer)


def _decompose(W: Array, eps: float, relative: bool) -> _Spectrum:
    """See Note [An island of float64]."""
    q = W.shape[-1]
    with jax.enable_x64(True):
        A = jax.lax.convert_element_type(W, np.float64)
        trace = jnp.sum(A * A, axis=(-2, -1))[..., None]
        added = eps * eps * (trace / q if relative else jnp.ones_like(trace))
        Q, R = jnp.linalg.qr(A)
        P, sigma, Vt = jnp.linalg.svd(R, full_matrices=False)
        s = jnp.sqrt(sigma * sigma + added)
        # NaN propagates from a W that is not finite, and from a zero W with a relative ε.
        s = jnp.where((trace + added > 0) & (trace < np.inf), s, np.nan)
        U = _product(Q, P * (sigma / s)[..., None, :], Vt)
        U, V, s = (jax.lax.convert_element_type(x, W.dtype) for x in (U, Vt.mT, s))
    return _Spectrum(U, V, s, eps * eps / q if relative else 0.0)


def _product(first: Array, *others: Array) -> Array:
    for other in others:
        first = jax.lax.batch_matmul(first, other, jax.lax.Precision.HIGHEST)
    return first


@jax.custom_jvp  # type: ignore[untyped-decorator]
def _U(W: Array, S: _Spectrum) -> Array:
    return S.U


@jax.custom_jvp  # type: ignore[untyped-decorator]
def _H(W: Array, S: _Spectrum) -> Array:
    return _product(S.V * S.s[..., None, :], S.V.mT)


@jax.custom_jvp  # type: ignore[untyped-decorator]
def _G(W: Array, S: _Spectrum) -> Array:
    return _product(S.V / S.s[..., None, :], S.V.mT)


@_U.defjvp  # type: ignore[untyped-decorator]
def _(primals: Any, tangents: Any) -> Any:
    (W, S), dW = primals, tangents[0]
    U = _U(W, S)
    return U, _product(dW - _product(U, _dH(W, S, dW)), _G(W, S))


@_H.defjvp  # type: ignore[untyped-decorator]
def _(primals: Any, tangents: Any) -> Any:
    W, S = primals
    return _H(W, S), _dH(W, S, tangents[0])


@_G.defjvp  # type: ignore[untyped-decorator]
def _(primals: Any, tangents: Any) -> Any:
    W, S = primals
    G = _G(W, S)
    return G, -_product(G, _dH(W, S, tangents[0]), G)


def _dH(W: Array, S: _Spectrum, dW: Array) -> Array:
    """See Note [Derivatives that float32 can hold]."""
    U, H, G = _U(W, S), _H(W, S), _G(W, S)

    def solve(_: Any, Y: Array) -> Array:
        rows, columns = S.s[..., :, None], S.s[..., None, :]
        return _product(S.V, _product(S.V.mT, Y, S.V) * (rows / (rows + columns)), S.V.mT)

    Z = jax.lax.custom_linear_solve(
        lambda Z: Z + _product(G, Z, H), _product(U.mT, dW), solve, symmetric=True
    )
    dH = Z + Z.mT
    if S.shift == 0:
        return dH
    # A relative ε² grows with tr(WᵀW): H dH + dH H = 2 shift <W, dW> I has this solution.
    return dH + S.shift * jnp.sum(W * dW, axis=(-2, -1), keepdims=True) * G
