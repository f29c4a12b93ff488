"""The paper's OCT networks in Keras: the fourth MaxPooling2D, or a TensorProjection in its place.

    KERAS_BACKEND=jax python examples/keras/oct.py --form tpl1

trains on phantoms, which are generated: pip install ".[keras,studies]". The paper
initializes with ``--init normal``, which overfits sooner.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence

import keras
import numpy as np
from keras import layers

from tensorprojection.keras import TensorProjection
from tensorprojection.studies.data.phantoms import oct_phantoms

FORMS = ("base", "tpl1", "tpl2")


def network(
    form: str = "tpl1", size: int = 96, channels: int = 3, init: str = "auto"
) -> keras.Model:
    """Return a network of the paper's section 3.1.2; tpl2 reduces the channels too."""
    half = size // 16
    options = {"kernel_initializer": init, "name": "projection4"}
    reduce = {
        "base": layers.MaxPooling2D(name="pool4"),
        "tpl1": TensorProjection((half, half, None), **options),
        "tpl2": TensorProjection((half, half, 20), **options),
    }[form]
    model = keras.Sequential([keras.Input((size, size, channels))], name=f"oct_{form}")
    for k in range(1, 5):
        model.add(layers.Conv2D(32, 3, padding="same", activation="relu", name=f"conv{k}"))
        model.add(layers.MaxPooling2D(name=f"pool{k}") if k < 4 else reduce)
    model.add(layers.Flatten())
    model.add(layers.Dense(256, activation="relu", name="dense1"))
    model.add(layers.Dense(4, activation="softmax", name="dense2"))
    return model


def images(n: int, seed: int, size: int) -> tuple[np.ndarray, np.ndarray]:
    """Return phantoms in 0 … 1, grey in all three channels, and their classes."""
    made = oct_phantoms(n, seed, size)
    x = made.images[..., None].astype(np.float32) / 255
    return np.repeat(x, 3, axis=-1), made.labels


def main(arguments: Sequence[str] | None = None) -> keras.callbacks.History:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--form", choices=FORMS, default="tpl1")
    parser.add_argument("--init", choices=("auto", "normal"), default="auto")
    parser.add_argument("--size", type=int, default=96)
    parser.add_argument("--train", type=int, default=1200)
    parser.add_argument("--test", type=int, default=400)
    parser.add_argument("--epochs", type=int, default=10)
    parser.add_argument("--batch", type=int, default=50)
    options = parser.parse_args(arguments)
    model = network(options.form, options.size, init=options.init)
    model.compile(
        keras.optimizers.Adam(1e-3), "sparse_categorical_crossentropy", metrics=["accuracy"]
    )
    return model.fit(
        *images(options.train, 0, options.size),
        validation_data=images(options.test, 1, options.size),
        epochs=options.epochs,
        batch_size=options.batch,
        verbose=2,
    )


if __name__ == "__main__":
    main()
