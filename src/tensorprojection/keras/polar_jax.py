"""W -> U on JAX, accurate in float32 without ``jax_enable_x64``, with derivatives of every order.

Note [An island of float64]
    U's condition number is that of W, so float32 arithmetic would leave U at a W of condition 10⁶
    without a correct digit. The decomposition alone therefore runs in float64, switched on locally.
    What goes in and what comes out (U, V and s) has W's type, so that nothing outside of the
    island, and no rule of differentiation, ever sees a float64.

Note [Derivatives that float32 can hold]
    With W = U H and Y = Uᵀ dW, the differential of H = (WᵀW + ε²I)^(1/2) solves
    H dH + dH H = H Y + Yᵀ H, and dU = (dW - U dH) G. In the eigenbasis of H the solution is
    dH_ij = (s_i Y_ij + s_j Y_ji) / (s_i + s_j): for the symmetric part of Y it is that part itself,
    and for the skew part K it is K_ij (s_i - s_j) / (s_i + s_j), which is called ``turn`` below.
    No factor exceeds 1, so that rounding is not multiplied by W's condition, as it would be if
    H Y were formed; and the denominators are sums: repeated singular values are no special case.

Note [Closed under differentiation]
    The derivatives of U, of G and of the two solutions of such equations, ``turn`` and
    ``lyapunov``, need nothing but these four. V and s are constants that make them cheap. The two
    that are linear in an argument are primitives of JAX's: a function with `jax.custom_jvp` is
    inlined where JAX linearises it in that argument, and a second derivative would then treat V and
    s as true constants.
"""

from __future__ import annotations

from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.extend.core import Primitive
from jax.interpreters import ad, batching, mlir

Array = Any


class _Spectrum(NamedTuple):
    """U, and H = V diag(s) Vᵀ; all constants. ``shift`` is ε²/q where eps is relative, else 0."""

    U: Array
    V: Array
    s: Array
    shift: float


def polar(W: Array, eps: float, relative: bool) -> Array:
    return _compiled(W, eps, relative)


def concrete(variable: Any) -> Any:
    with jax.ensure_compile_time_eval():
        return np.asarray(variable._value)


def is_traced(x: Any) -> bool:
    return isinstance(x, jax.core.Tracer)


@partial(jax.custom_jvp, nondiff_argnums=(1, 2))
def _polar(W: Array, eps: float, relative: bool) -> Array:
    return _decompose(W, eps, relative).U


@_polar.defjvp  # type: ignore[untyped-decorator]
def _(eps: float, relative: bool, primals: Any, tangents: Any) -> Any:
    (W,), (dW,) = primals, tangents
    S = _decompose(jax.lax.stop_gradient(W), eps, relative)
    return _U(W, S), _dU(W, dW, S)


# Outside of a compiled function as well it is one program, not one for each operation.
_compiled = jax.jit(_polar, static_argnums=(1, 2))


def _decompose(W: Array, eps: float, relative: bool) -> _Spectrum:
    """See Note [An island of float64]."""
    q = W.shape[-1]
    with jax.enable_x64(True):
        A = jax.lax.convert_element_type(W, np.float64)
        Q, R = jnp.linalg.qr(A)
        P, sigma, Vt = jnp.linalg.svd(R, full_matrices=False)
        added = jnp.float64(eps * eps)
        if relative:
            added = added * jnp.mean(sigma * sigma, axis=-1, keepdims=True)
        s = jnp.sqrt(sigma * sigma + added)
        U = _product(Q, P * (sigma / s)[..., None, :], Vt)
        U, V, s = (jax.lax.convert_element_type(x, W.dtype) for x in (U, Vt.mT, s))
    U, V, s = jax.lax.stop_gradient((U, V, s))
    return _Spectrum(U, V, s, eps * eps / q if relative else 0.0)


def _product(*factors: Array) -> Array:
    first, *others = factors
    for other in others:
        first = jnp.matmul(first, other, precision=jax.lax.Precision.HIGHEST)
    return first


# The four functions of Note [Closed under differentiation].


def _U(W: Array, S: _Spectrum) -> Array:
    return _U_of(W, S.U, S.V, S.s, S.shift)


@partial(jax.custom_jvp, nondiff_argnums=(4,))
def _U_of(W: Array, U: Array, V: Array, s: Array, shift: float) -> Array:
    return U


@_U_of.defjvp  # type: ignore[untyped-decorator]
def _(shift: float, primals: Any, tangents: Any) -> Any:
    W, U, V, s = primals
    S = _Spectrum(U, V, s, shift)
    return _U(W, S), _dU(W, tangents[0], S)


def _G(W: Array, S: _Spectrum) -> Array:
    return _G_of(W, S.U, S.V, S.s, S.shift)


@partial(jax.custom_jvp, nondiff_argnums=(4,))
def _G_of(W: Array, U: Array, V: Array, s: Array, shift: float) -> Array:
    return _product(V / s[..., None, :], V.mT)


@_G_of.defjvp  # type: ignore[untyped-decorator]
def _(shift: float, primals: Any, tangents: Any) -> Any:
    W, U, V, s = primals
    S = _Spectrum(U, V, s, shift)
    G = _G(W, S)
    return G, -_product(G, _dH(W, tangents[0], S), G)


def _turn(W: Array, K: Array, S: _Spectrum) -> Array:
    """The X with H X + X H = H K - K H."""
    X: Array = _solve_p.bind(W, K, S.U, S.V, S.s, shift=S.shift, turn=True)
    return X


def _lyapunov(W: Array, C: Array, S: _Spectrum) -> Array:
    """The X with H X + X H = C."""
    X: Array = _solve_p.bind(W, C, S.U, S.V, S.s, shift=S.shift, turn=False)
    return X


def _dH(W: Array, dW: Array, S: _Spectrum) -> Array:
    """See Note [Derivatives that float32 can hold]."""
    Y = _product(_U(W, S).mT, dW)
    dH = (Y + Y.mT) / 2 + _turn(W, (Y - Y.mT) / 2, S)
    if S.shift == 0:
        return dH
    # A relative ε² grows with tr(WᵀW): H dH + dH H = 2 shift <W, dW> I has this solution.
    return dH + S.shift * jnp.sum(W * dW, axis=(-2, -1), keepdims=True) * _G(W, S)


def _dU(W: Array, dW: Array, S: _Spectrum) -> Array:
    return _product(dW - _product(_U(W, S), _dH(W, dW, S)), _G(W, S))


# Both solutions as one primitive: linear and self-adjoint in C, and differentiable in W.

_solve_p = Primitive("tensorprojection_solve")


def _solve(W: Array, C: Array, U: Array, V: Array, s: Array, *, shift: float, turn: bool) -> Array:
    rows, columns = s[..., :, None], s[..., None, :]
    factor = (rows - columns if turn else 1) / (rows + columns)
    return _product(V, _product(V.mT, C, V) * factor, V.mT)


def _solve_jvp(primals: Any, tangents: Any, *, shift: float, turn: bool) -> Any:
    W, C, U, V, s = primals
    dW, dC = tangents[:2]
    S = _Spectrum(U, V, s, shift)
    X = _solve_p.bind(*primals, shift=shift, turn=turn)
    dX = jnp.zeros_like(X)
    if type(dC) is not ad.Zero:
        dX = _solve_p.bind(W, dC, U, V, s, shift=shift, turn=turn)
    if type(dW) is not ad.Zero:
        # By differentiating the equation that X solves.
        dH = _dH(W, dW, S)
        if turn:
            right = _product(dH, C - X) - _product(C + X, dH)
        else:
            right = -_product(dH, X) - _product(X, dH)
        dX = dX + _lyapunov(W, right, S)
    return X, dX


def _solve_transpose(
    grad: Any, W: Array, C: Any, U: Array, V: Array, s: Array, *, shift: float, turn: bool
) -> Any:
    if type(grad) is not ad.Zero:
        grad = _solve_p.bind(W, grad, U, V, s, shift=shift, turn=turn)
    return None, grad, None, None, None


def _solve_batched(args: Any, axes: Any, **options: Any) -> Any:
    size = next(x.shape[axis] for x, axis in zip(args, axes, strict=True) if axis is not None)
    batched = [
        jnp.broadcast_to(x, (size, *x.shape)) if axis is None else jnp.moveaxis(x, axis, 0)
        for x, axis in zip(args, axes, strict=True)
    ]
    return _solve_p.bind(*batched, **options), 0


_solve_p.def_impl(jax.jit(_solve, static_argnames=("shift", "turn")))
_solve_p.def_abstract_eval(lambda W, C, U, V, s, **_: C)
mlir.register_lowering(_solve_p, mlir.lower_fun(_solve, multiple_results=False))
ad.primitive_jvps[_solve_p] = _solve_jvp
ad.primitive_transposes[_solve_p] = _solve_transpose
batching.primitive_batchers[_solve_p] = _solve_batched
