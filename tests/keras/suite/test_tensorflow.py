"""What TensorFlow users do: strategies for several devices, and functions compiled by XLA."""

import keras
import numpy as np
import oracle
import pytest
from autodiff import compiled

from tensorprojection.keras import TensorProjection
from tensorprojection.keras.ops import polar

if keras.backend.backend() != "tensorflow":
    pytest.skip("for the backend tensorflow", allow_module_level=True)

import tensorflow as tf


def test_mirrored_strategy_trains_as_one_device_does(rng):
    x = rng.normal(size=(8, 6, 5)).astype(np.float32)
    y = rng.normal(size=(8, 1)).astype(np.float32)

    def train(strategy):
        keras.utils.set_random_seed(1)
        with strategy.scope():
            model = keras.Sequential(
                [
                    keras.Input((6, 5)),
                    TensorProjection((3, 2), kernel_initializer="dct"),
                    keras.layers.Flatten(),
                    keras.layers.Dense(1, kernel_initializer="ones"),
                ]
            )
            # Virtual devices share one that XLA knows, which refuses the other's variables.
            model.compile(keras.optimizers.SGD(0.01), "mse", jit_compile=False)
        model.fit(x, y, epochs=2, batch_size=8, shuffle=False, verbose=0)
        return [keras.ops.convert_to_numpy(w) for w in model.weights]

    strategy = tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"])
    assert strategy.num_replicas_in_sync == 2
    alone = train(tf.distribute.get_strategy())
    for one, two in zip(alone, train(strategy), strict=True):
        np.testing.assert_allclose(two, one, atol=1e-5)


def test_the_gradient_under_xla(rng):
    W = rng.normal(size=(9, 5)).astype(np.float32)
    dL_dU = rng.normal(size=W.shape).astype(np.float32)

    @compiled
    def gradient(W):
        with tf.GradientTape() as tape:
            tape.watch(W)
            loss = tf.reduce_sum(polar(W) * dL_dU)
        return tape.gradient(loss, W)

    right = oracle.polar_gradient(W.astype(float), 1e-3, dL_dU.astype(float))
    np.testing.assert_allclose(gradient(tf.constant(W)), right, atol=1e-5)


@pytest.mark.parametrize("q", [1, 2, 5, 8])
@pytest.mark.parametrize("kind", ["random", "zero", "of rank 1", "orthogonal"])
def test_rotations_make_columns_orthogonal(rng, q, kind):
    from tensorprojection.keras.polar_tensorflow import orthogonal_columns

    R = {
        "random": rng.normal(size=(q, q)),
        "zero": np.zeros((q, q)),
        "of rank 1": np.outer(rng.normal(size=q), rng.normal(size=q)),
        "orthogonal": np.linalg.qr(rng.normal(size=(q, q)))[0],
    }[kind]
    B, V = (x.numpy() for x in orthogonal_columns(tf.constant(R)))
    np.testing.assert_allclose(V.T @ V, np.eye(q), atol=1e-13)
    np.testing.assert_allclose(R @ V, B, atol=1e-13)
    off = B.T @ B - np.diag(np.sum(B * B, axis=0))
    assert np.abs(off).max() < 1e-12
