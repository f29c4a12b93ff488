"""Each backend's own automatic differentiation behind one name."""

import keras
import numpy as np


def gradient(function, *arrays):
    """The gradients of a function of tensors to a number, as arrays of float64."""
    return gradient_of(function)(*arrays)


def gradient_of(function):
    """The same as a function of the arrays; JAX compiles it once."""
    if keras.backend.backend() == "jax":
        import jax

        differentiated = {}

        def by_jax(*arrays):
            n = len(arrays)
            if n not in differentiated:
                differentiated[n] = jax.jit(jax.grad(function, argnums=tuple(range(n))))
            return _float64(differentiated[n](*arrays))

        return by_jax

    def by_tape(*arrays):
        import tensorflow as tf

        xs = [tf.constant(x) for x in arrays]
        with tf.GradientTape() as tape:
            tape.watch(xs)
            value = function(*xs)
        return _float64(tape.gradient(value, xs))

    def by_torch(*arrays):
        import torch

        xs = [torch.tensor(x, requires_grad=True) for x in arrays]
        return _float64(torch.autograd.grad(function(*xs), xs))

    return by_tape if keras.backend.backend() == "tensorflow" else by_torch


def _float64(gradients):
    return [np.asarray(keras.ops.convert_to_numpy(g), np.float64) for g in gradients]


def hessian(function, array):
    """The second derivatives as a matrix, by differentiating backward twice."""
    return hessian_of(function)(array)


def hessian_of(function):
    """The same as a function of the array, and of other arguments; JAX compiles it once."""

    def by_tape(x, *others):
        import tensorflow as tf

        x = tf.constant(x)
        with tf.GradientTape() as outer:
            outer.watch(x)
            with tf.GradientTape() as inner:
                inner.watch(x)
                value = function(x, *others)
            first = inner.gradient(value, x)
        return outer.jacobian(first, x)

    def by_torch(x, *others):
        import torch

        return torch.autograd.functional.hessian(lambda x: function(x, *others), torch.tensor(x))

    match keras.backend.backend():
        case "jax":
            import jax

            second = jax.jit(jax.jacrev(jax.grad(function)))
        case "tensorflow":
            second = by_tape
        case _:
            second = by_torch

    def as_matrix(array, *others):
        (found,) = _float64([second(array, *others)])
        return found.reshape(array.size, -1)

    return as_matrix


def compiled(function):
    """The function as XLA (or torch's compiler, left out here) compiles it."""
    match keras.backend.backend():
        case "jax":
            import jax

            return jax.jit(function)
        case "tensorflow":
            import tensorflow as tf

            return tf.function(function, jit_compile=True)
        case _:
            return function
