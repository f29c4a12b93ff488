"""What JAX users do: its transforms over the function and the layer, and data parallelism."""

import subprocess
import sys

import keras
import numpy as np
import oracle
import pytest

from tensorprojection.keras import TensorProjection
from tensorprojection.keras.ops import polar

if keras.backend.backend() != "jax":
    pytest.skip("for the backend jax", allow_module_level=True)

import jax
import jax.numpy as jnp


def test_torch_is_not_loaded_where_it_is_installed():
    pytest.importorskip("torch")
    code = "import sys, tensorprojection.keras; print('torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"


def test_float64_stays_on_its_island(rng):
    """Nothing outside is float64, and the user's own switch stays off."""
    W = rng.normal(size=(12, 6)).astype(np.float32)
    jaxpr = jax.make_jaxpr(jax.grad(lambda W: polar(W).sum()))(W)
    assert all(v.aval.dtype == np.float32 for v in [*jaxpr.jaxpr.invars, *jaxpr.jaxpr.outvars])
    assert polar(jnp.asarray(W)).dtype == np.float32
    assert jnp.zeros(1, dtype=float).dtype == np.float32


@pytest.mark.heavy
def test_forward_and_backward_mode_agree_to_third_order(rng):
    W = rng.normal(size=(4, 2)).astype(np.float32)
    weight, along = rng.normal(size=(2, *W.shape)).astype(np.float32)

    def loss(W):
        return jnp.sum(jnp.sin(polar(W, 0.1)) * weight)

    def forward(f):
        return lambda W: jax.jvp(f, (W,), (along,))[1]

    def backward(f):
        return lambda W: jnp.vdot(jax.grad(f)(W), along)

    third = jax.jit(forward(forward(forward(loss))))(W)
    np.testing.assert_allclose(jax.jit(backward(backward(backward(loss))))(W), third, rtol=1e-4)
    np.testing.assert_allclose(jax.jit(forward(backward(forward(loss))))(W), third, rtol=1e-4)


def test_vmap_over_matrices(rng):
    Ws = rng.normal(size=(3, 7, 4)).astype(np.float32)
    dL_dU = rng.normal(size=(7, 4)).astype(np.float32)
    found = jax.jit(jax.vmap(jax.grad(lambda W: jnp.sum(polar(W) * dL_dU))))(Ws)
    for W, g in zip(Ws, found, strict=True):
        right = oracle.polar_gradient(W.astype(float), 1e-3, dL_dU.astype(float))
        np.testing.assert_allclose(g, right, atol=1e-5)


def test_transforms_of_the_stateless_call(rng):
    layer = TensorProjection((3, 2))
    layer.build((None, 6, 5))
    x = rng.normal(size=(4, 6, 5)).astype(np.float32)
    Ws = [W.value for W in layer.trainable_variables]

    def loss(Ws, x):
        z, _ = layer.stateless_call(Ws, [], x[None])
        return jnp.sum(z**2)

    gradient = jax.jit(jax.grad(loss))
    by_sample = jax.jit(jax.vmap(jax.grad(loss), in_axes=(None, 0)))(Ws, x)
    for k in range(2):
        alone = jnp.stack([gradient(Ws, sample)[k] for sample in x])
        np.testing.assert_allclose(by_sample[k], alone, rtol=1e-4, atol=1e-5)
    # Several layers at once, as an ensemble has them.
    many = [jnp.stack([W, 2 * W]) for W in Ws]
    losses = jax.jit(jax.vmap(loss, in_axes=(0, None)))(many, x[0])
    np.testing.assert_allclose(losses[0], loss(Ws, x[0]), rtol=1e-5)


def test_data_parallel_trains_as_one_device_does(rng):
    assert jax.device_count() == 2
    x = rng.normal(size=(8, 6, 5)).astype(np.float32)
    y = rng.normal(size=(8, 1)).astype(np.float32)

    def train():
        keras.utils.set_random_seed(1)
        model = keras.Sequential(
            [
                keras.Input((6, 5)),
                TensorProjection((3, 2)),
                keras.layers.Flatten(),
                keras.layers.Dense(1),
            ]
        )
        model.compile(keras.optimizers.SGD(0.1), "mse")
        model.fit(x, y, epochs=2, batch_size=8, shuffle=False, verbose=0)
        return [keras.ops.convert_to_numpy(w) for w in model.weights], model

    alone, _ = train()
    keras.distribution.set_distribution(keras.distribution.DataParallel())
    try:
        together, model = train()
        assert len(model.layers[0].W1.value.sharding.device_set) == 2
    finally:
        keras.distribution.set_distribution(None)
    for one, two in zip(alone, together, strict=True):
        np.testing.assert_allclose(two, one, atol=1e-5)
