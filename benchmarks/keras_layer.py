"""Measure the Keras layer: its error, the authors' method, and a training step of the OCT network.

    KERAS_BACKEND=jax python benchmarks/keras_layer.py accuracy         # U against float64
    KERAS_BACKEND=tensorflow python benchmarks/keras_layer.py gradient  # and the matrix square root
    KERAS_BACKEND=torch python benchmarks/keras_layer.py training       # and with MaxPooling2D

Times are medians of alternating rounds, so that other load on the machine affects both.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from statistics import median, quantiles
from time import perf_counter
from typing import Any

import keras
import numpy as np

from tensorprojection.keras import TensorProjection
from tensorprojection.keras.ops import polar

SHAPES = ((12, 6), (32, 20), (8, 7), (32, 31), (1024, 64))


def right_polar(W: np.ndarray, eps: float) -> np.ndarray:
    P, sigma, Qt = np.linalg.svd(W.astype(np.float64), full_matrices=False)
    return (P * (sigma / np.sqrt(sigma**2 + eps**2))) @ Qt


def compiled(function: Callable[..., Any]) -> Callable[..., Any]:
    match keras.backend.backend():
        case "jax":
            import jax

            return jax.jit(function)
        case "tensorflow":
            import tensorflow as tf

            return tf.function(function, jit_compile=True)
    return function


def accuracy() -> None:
    """Print the largest error of an entry of U over scales from 1e-3 to 1e3."""
    rng = np.random.default_rng(0)
    conditions = (1.0, 1e2, 1e4, 1e6)
    print("W".ljust(12), *(f"condition {c:.0e}".rjust(16) for c in conditions))
    function = compiled(polar)
    for p, q in SHAPES:
        errors = []
        for condition in conditions:
            worst = 0.0
            for scale in (1e-3, 1e-1, 1.0, 1e1, 1e3):
                P, _ = np.linalg.qr(rng.normal(size=(p, q)))
                V, _ = np.linalg.qr(rng.normal(size=(q, q)))
                W = ((P * np.geomspace(scale, scale / condition, q)) @ V).astype(np.float32)
                U = keras.ops.convert_to_numpy(function(keras.ops.convert_to_tensor(W)))
                worst = max(worst, float(np.abs(U - right_polar(W, 1e-3)).max()))
            errors.append(worst)
        print(f"{p} x {q}".ljust(12), *(f"{error:16.1e}" for error in errors))


def by_square_root(W: Any) -> Any:
    """Return U, computed with TensorFlow's matrix square root and inverse."""
    import tensorflow as tf

    M = tf.matmul(W, W, transpose_a=True) + 1e-6 * tf.eye(W.shape[1])
    return tf.matmul(W, tf.linalg.inv(tf.linalg.sqrtm(M)))


def gradient(rounds: int) -> None:
    """Time U and its gradient on TensorFlow, with the authors' method and with this layer."""
    import tensorflow as tf

    def step(function: Callable[[Any], Any]) -> Callable[[Any, Any], Any]:
        @tf.function
        def run(W: Any, dU: Any) -> Any:
            with tf.GradientTape() as tape:
                tape.watch(W)
                loss = tf.reduce_sum(function(W) * dU)
            return tape.gradient(loss, W)

        return run

    rng = np.random.default_rng(0)
    print("W".ljust(12), "square root".rjust(14), "this layer".rjust(14), "ratio".rjust(10))
    for p, q in ((12, 6), (32, 20), (1024, 64)):
        W, dU = (tf.constant(rng.normal(size=(p, q)), tf.float32) for _ in range(2))
        root_step, our_step = step(by_square_root), step(polar)
        steps = {
            "root": lambda run=root_step, W=W, dU=dU: run(W, dU).numpy(),
            "ours": lambda run=our_step, W=W, dU=dU: run(W, dU).numpy(),
        }
        times = measure(steps, rounds)
        root, ours = median(times["root"]), median(times["ours"])
        print(f"{p} x {q}".ljust(12), f"{root * 1e3:11.2f} ms", f"{ours * 1e3:11.2f} ms", end=" ")
        print(f"{root / ours:10.0f}")


def oct_network(reduce: Any) -> Any:
    """Return the paper's OCT network with the given fourth reduction."""
    network = keras.Sequential([keras.Input((96, 96, 3))])
    for k in range(4):
        network.add(keras.layers.Conv2D(32, 3, padding="same", activation="relu"))
        network.add(keras.layers.MaxPooling2D() if k < 3 else reduce)
    network.add(keras.layers.Flatten())
    network.add(keras.layers.Dense(256, activation="relu"))
    network.add(keras.layers.Dense(4, activation="softmax"))
    network.compile("adam", "sparse_categorical_crossentropy", jit_compile="auto")
    return network


def training(rounds: int, batch: int) -> None:
    """Time a training step of the OCT network with this layer / with MaxPooling2D."""
    rng = np.random.default_rng(0)
    x = rng.random((batch, 96, 96, 3), dtype=np.float32)
    y = rng.integers(0, 4, batch)
    reductions = {"MaxPooling2D": keras.layers.MaxPooling2D(), "ours": TensorProjection((6, 6, 32))}
    networks = {name: oct_network(layer) for name, layer in reductions.items()}
    steps = {
        name: lambda network=network: network.train_on_batch(x, y)
        for name, network in networks.items()
    }
    times = measure(steps, rounds)
    ratios = [a / b for a, b in zip(times["ours"], times["MaxPooling2D"], strict=True)]
    low, _, high = quantiles(ratios, n=4)
    print(f"backend {keras.backend.backend()}, batch {batch}, {rounds} rounds")
    for name, seconds in times.items():
        print(f"  {name:12} {median(seconds) * 1e3:8.1f} ms")
    print(f"  ratio {median(ratios):.3f} (quartiles {low:.3f} … {high:.3f})")


def measure(steps: dict[str, Callable[[], Any]], rounds: int) -> dict[str, list[float]]:
    """Return the seconds of each step in alternating rounds, after two rounds of warm-up."""
    times: dict[str, list[float]] = {name: [] for name in steps}
    for r in range(-2, rounds):
        order = list(steps) if r % 2 else list(reversed(steps))
        for name in order:
            start = perf_counter()
            steps[name]()
            if r >= 0:
                times[name].append(perf_counter() - start)
    return times


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("what", choices=("accuracy", "gradient", "training"))
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--batch", type=int, default=100)
    options = parser.parse_args()
    if options.what == "accuracy":
        accuracy()
    elif options.what == "gradient":
        if keras.backend.backend() != "tensorflow":
            sys.exit("The matrix square root is TensorFlow's: KERAS_BACKEND=tensorflow")
        gradient(options.rounds)
    else:
        training(options.rounds, options.batch)


if __name__ == "__main__":
    main()
