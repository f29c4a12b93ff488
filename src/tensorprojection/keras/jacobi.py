"""One-sided Jacobi rotations (Hestenes) in TensorFlow: the decomposition for XLA.

Half of the columns are rotated against the other half at once; then all but the first move on by
one place, as players do in a tournament, so that each pair meets once in a sweep.
"""

from __future__ import annotations

from typing import Any

import tensorflow as tf

_SWEEPS = 30  # at most; about ten suffice
_EXACT = 1e-9  # the largest cosine before a sweep's last rotations, which square it
_NEGLIGIBLE = 1e-13  # of R's norm: a column that is shorter has no direction

Tensor = Any


def orthogonal_columns(R: Tensor) -> tuple[Tensor, Tensor]:
    """R V with orthogonal columns, and the orthogonal V, for a square R; in no order."""
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
