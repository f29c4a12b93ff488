"""W -> U on TensorFlow, in float64 inside, with derivatives of every order.

The formulas are those of polar_jax.py, read backward: see Notes [Derivatives that float32 can
hold] and [Closed under differentiation] there. In float64 they need no primitive of their own.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import tensorflow as tf

from .jacobi import orthogonal_columns

try:
    from tensorflow.python.ops.control_flow_util import GraphOrParentsInXlaContext
except ImportError:  # not a public name; without it XLA's own, less exact decomposition serves

    def GraphOrParentsInXlaContext(graph: Any) -> bool:
        return False


Tensor = Any


class _Spectrum(NamedTuple):
    """U, and H = V diag(s) Vᵀ; all constants. ``shift`` is ε²/q where eps is relative, else 0."""

    U: Tensor
    V: Tensor
    s: Tensor
    shift: float


@tf.autograph.experimental.do_not_convert  # type: ignore[untyped-decorator]
def polar(W: Tensor, eps: float, relative: bool) -> Tensor:
    A = tf.cast(W, tf.float64)
    return tf.cast(_U(A, _decompose(A, eps, relative)), W.dtype)


def concrete(variable: Any) -> Any:
    with tf.init_scope():
        return variable._value.numpy()


def is_traced(x: Any) -> bool:
    return not tf.executing_eagerly()


def _decompose(A: Tensor, eps: float, relative: bool) -> _Spectrum:
    q = A.shape[-1]
    A = tf.stop_gradient(A)
    Q, R = tf.linalg.qr(A)
    B, V = _columns(R)
    squares = tf.reduce_sum(B * B, axis=0)
    s = tf.sqrt(squares + eps * eps * (tf.reduce_mean(squares) if relative else 1.0))
    U = tf.matmul(Q, tf.matmul(B / s, V, transpose_b=True))
    U, V, s = map(tf.stop_gradient, (U, V, s))
    return _Spectrum(U, V, s, eps * eps / q if relative else 0.0)


def _columns(R: Tensor) -> tuple[Tensor, Tensor]:
    """R V with orthogonal columns, and V."""
    # XLA's singular values are exact to some 1e-5 only, and take ten seconds to compile.
    if not tf.executing_eagerly() and GraphOrParentsInXlaContext(tf.compat.v1.get_default_graph()):
        return orthogonal_columns(R)
    sigma, P, V = tf.linalg.svd(R)
    return P * sigma, V


# The four functions that are closed under differentiation.


def _U(W: Tensor, S: _Spectrum) -> Tensor:
    @tf.custom_gradient  # type: ignore[untyped-decorator]
    def function(W: Tensor) -> Any:
        def gradient(dU: Tensor) -> Tensor:
            # The derivative of U is symmetric: U is the gradient of tr(H).
            U, G = _U(W, S), _G(W, S)
            Y = tf.matmul(U, dU, transpose_a=True)
            T = tf.transpose(Y)
            dW = tf.matmul(dU - tf.matmul(U, (Y + T) / 2 + _turn(W, (Y - T) / 2, S)), G)
            if S.shift == 0:
                return dW
            return dW - S.shift * tf.reduce_sum(tf.matmul(U, tf.matmul(G, G)) * dU) * W

        return tf.identity(S.U), gradient

    return function(W)


def _G(W: Tensor, S: _Spectrum) -> Tensor:
    @tf.custom_gradient  # type: ignore[untyped-decorator]
    def function(W: Tensor) -> Any:
        def gradient(dG: Tensor) -> Tensor:
            G = _G(W, S)
            return _through_H(W, -tf.matmul(G, tf.matmul(dG, G)), S)

        return tf.matmul(S.V / S.s, S.V, transpose_b=True), gradient

    return function(W)


def _turn(W: Tensor, K: Tensor, S: _Spectrum) -> Tensor:
    """The X with H X + X H = H K - K H."""

    @tf.custom_gradient  # type: ignore[untyped-decorator]
    def function(W: Tensor, K: Tensor) -> Any:
        rows, columns = S.s[:, None], S.s[None, :]

        def gradient(dX: Tensor) -> Any:
            X, Z = _turn(W, K, S), _lyapunov(W, dX, S)
            dH = tf.matmul(Z, K - X, transpose_b=True) - tf.matmul(K + X, Z, transpose_a=True)
            return _through_H(W, dH, S), _turn(W, dX, S)

        return _in_eigenbasis(K, (rows - columns) / (rows + columns), S), gradient

    return function(W, K)


def _lyapunov(W: Tensor, C: Tensor, S: _Spectrum) -> Tensor:
    """The X with H X + X H = C."""

    @tf.custom_gradient  # type: ignore[untyped-decorator]
    def function(W: Tensor, C: Tensor) -> Any:
        def gradient(dX: Tensor) -> Any:
            X, Z = _lyapunov(W, C, S), _lyapunov(W, dX, S)
            dH = -tf.matmul(Z, X, transpose_b=True) - tf.matmul(X, Z, transpose_a=True)
            return _through_H(W, dH, S), Z

        return _in_eigenbasis(C, 1 / (S.s[:, None] + S.s[None, :]), S), gradient

    return function(W, C)


def _in_eigenbasis(C: Tensor, factor: Tensor, S: _Spectrum) -> Tensor:
    inside = tf.matmul(S.V, tf.matmul(C, S.V), transpose_a=True) * factor
    return tf.matmul(S.V, tf.matmul(inside, S.V, transpose_b=True))


def _through_H(W: Tensor, dH: Tensor, S: _Spectrum) -> Tensor:
    """dL/dW where L depends on W through H, the root of M = WᵀW + ε²I."""
    dM = _lyapunov(W, dH, S)
    through = dM + tf.transpose(dM)
    if S.shift != 0:
        through += 2 * S.shift * tf.linalg.trace(dM) * tf.eye(tf.shape(dM)[0], dtype=dM.dtype)
    return tf.matmul(W, through)
