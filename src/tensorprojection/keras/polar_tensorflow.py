"""W -> U on TensorFlow, in float64 inside, with derivatives of every order.

Only H = (WᵀW + ε²I)^(1/2), its inverse G and the solution of a Lyapunov equation have gradients of
their own. These gradients need H, G and such solutions only, so V and s may be constants
and no gradient goes through a decomposition. TensorFlow differentiates the rest, U = W G.
"""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import Any, NamedTuple

import tensorflow as tf

try:
    from tensorflow.python.ops.control_flow_util import GraphOrParentsInXlaContext
except ImportError:  # not a public name; without it XLA's own, less exact decomposition serves

    def GraphOrParentsInXlaContext(graph: Any) -> bool:
        return False


Tensor = Any


@tf.autograph.experimental.do_not_convert  # type: ignore[untyped-decorator]
def polar(W: Tensor, eps: float, relative: bool) -> Tensor:
    A = tf.cast(W, tf.float64)
    S = _decompose(tf.stop_gradient(A), eps, relative)
    return tf.cast(tf.matmul(A, _inverse(_root(A, S), S)), W.dtype)


def outside_trace() -> AbstractContextManager[Any]:
    return tf.init_scope()  # type: ignore[no-any-return]


def is_traced(x: Any) -> bool:
    return not tf.executing_eagerly()


class _Spectrum(NamedTuple):
    """H = V diag(s) Vᵀ as constants. ``shift`` is ε²/q if ε is relative, else 0."""

    V: Tensor
    s: Tensor
    shift: float


def _decompose(A: Tensor, eps: float, relative: bool) -> _Spectrum:
    q = A.shape[-1]
    trace = tf.reduce_sum(A * A)
    added = eps * eps * (trace / q if relative else tf.ones_like(trace))
    # NaN propagates from a W that is not finite, and from a zero W with a relative ε. The
    # decompositions expect finite numbers.
    valid = (trace + added > 0) & (trace < float("inf"))
    _, R = tf.linalg.qr(tf.where(valid, A, tf.zeros_like(A)))
    # XLA's singular values have errors of about 1e-5 and take ten seconds to compile.
    if not tf.executing_eagerly() and GraphOrParentsInXlaContext(tf.compat.v1.get_default_graph()):
        B, V = orthogonal_columns(R)
        squares = tf.reduce_sum(B * B, axis=0)
    else:
        sigma, _, V = tf.linalg.svd(R)
        squares = sigma * sigma
    s = tf.where(valid, tf.sqrt(squares + added), float("nan"))
    return _Spectrum(tf.stop_gradient(V), tf.stop_gradient(s), eps * eps / q if relative else 0.0)


def _root(W: Tensor, S: _Spectrum) -> Tensor:
    """Return H, the square root of M = WᵀW + ε²I."""

    @tf.custom_gradient  # type: ignore[untyped-decorator]
    def function(W: Tensor) -> Any:
        H = tf.matmul(S.V * S.s, S.V, transpose_b=True)

        def gradient(dH: Tensor) -> Tensor:
            dM = _lyapunov(_root(W, S), dH, S)
            total = dM + tf.transpose(dM)
            if S.shift != 0:  # a relative ε² grows with tr(WᵀW)
                total += 2 * S.shift * tf.linalg.trace(dM) * tf.eye(W.shape[-1], dtype=W.dtype)
            return tf.matmul(W, total)

        return H, gradient

    return function(W)


def _inverse(H: Tensor, S: _Spectrum) -> Tensor:
    """Return G, the inverse of H."""

    @tf.custom_gradient  # type: ignore[untyped-decorator]
    def function(H: Tensor) -> Any:
        def gradient(dG: Tensor) -> Tensor:
            G = _inverse(H, S)
            return -tf.matmul(G, tf.matmul(dG, G))

        return tf.matmul(S.V / S.s, S.V, transpose_b=True), gradient

    return function(H)


def _lyapunov(H: Tensor, C: Tensor, S: _Spectrum) -> Tensor:
    """Return the X with H X + X H = C."""

    @tf.custom_gradient  # type: ignore[untyped-decorator]
    def function(H: Tensor, C: Tensor) -> Any:
        inside = tf.matmul(S.V, tf.matmul(C, S.V), transpose_a=True)
        inside /= S.s[:, None] + S.s[None, :]

        def gradient(dX: Tensor) -> Any:
            X, Z = _lyapunov(H, C, S), _lyapunov(H, dX, S)
            dH = -tf.matmul(Z, X, transpose_b=True) - tf.matmul(X, Z, transpose_a=True)
            return dH, Z

        return tf.matmul(S.V, tf.matmul(inside, S.V, transpose_b=True)), gradient

    return function(H, C)


# One-sided Jacobi rotations (Hestenes): the decomposition for XLA. Half of the columns are rotated
# against the other half at once. Then all columns but the first move on by one place, as in a
# round-robin tournament, so that each pair meets once per sweep.

_SWEEPS = 30  # at most; about ten suffice
_EXACT = 1e-9  # the largest cosine before a sweep's last rotations, which square it
_NEGLIGIBLE = 1e-13  # of R's norm: a column that is shorter has no direction


def orthogonal_columns(R: Tensor) -> tuple[Tensor, Tensor]:
    """Return R V with orthogonal columns, in any order, and the orthogonal V, for a square R."""
    q = int(R.shape[-1])
    n = q + q % 2  # a column of zeros is added to an odd number
    stacked = tf.pad(tf.concat([R, tf.eye(q, dtype=R.dtype)], axis=0), [[0, 0], [0, n - q]])
    negligible = _NEGLIGIBLE * tf.norm(R)
    places = [0, n - 1, *range(1, n - 1)]

    def rotate(step: Tensor, stacked: Tensor, worst: Tensor) -> Any:
        left, right = stacked[:, : n // 2], tf.reverse(stacked[:, n // 2 :], [1])
        a = tf.reduce_sum(left[:q] ** 2, axis=0)
        b = tf.reduce_sum(right[:q] ** 2, axis=0)
        c = tf.reduce_sum(left[:q] * right[:q], axis=0)
        lengths = tf.sqrt(a + negligible**2) * tf.sqrt(b + negligible**2)
        cosine = tf.math.divide_no_nan(tf.abs(c), lengths)
        # The smaller of the two angles that make the pair orthogonal.
        zeta = tf.math.divide_no_nan(b - a, 2 * c)
        sign = tf.where(zeta < 0, -tf.ones_like(zeta), tf.ones_like(zeta))
        tangent = sign / (tf.abs(zeta) + tf.sqrt(1 + zeta * zeta))
        tangent = tf.where(cosine > 0, tangent, tf.zeros_like(tangent))
        cos = tf.math.rsqrt(1 + tangent * tangent)
        sin = cos * tangent
        turned = [cos * left - sin * right, tf.reverse(sin * left + cos * right, [1])]
        moved = tf.gather(tf.concat(turned, axis=1), places, axis=1)
        return step + 1, moved, tf.maximum(worst, tf.reduce_max(cosine))

    def sweep(count: Tensor, stacked: Tensor, worst: Tensor) -> Any:
        _, stacked, worst = tf.while_loop(
            lambda step, *_: step < n - 1,
            rotate,
            (tf.constant(0), stacked, tf.zeros((), R.dtype)),
        )
        return count + 1, stacked, worst

    if n > 1:
        _, stacked, _ = tf.while_loop(
            lambda count, stacked, worst: (count < _SWEEPS) & (worst > _EXACT),
            sweep,
            (tf.constant(0), stacked, tf.ones((), R.dtype)),
        )
    # A whole sweep brings every column back to its place, so the column of zeros is the last.
    return stacked[:q, :q], stacked[q:, :q]
