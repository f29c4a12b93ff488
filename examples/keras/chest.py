"""The paper's chest X-ray classifier in Keras: a 1×1 convolution, or a TensorProjection.

    KERAS_BACKEND=jax python examples/keras/chest.py --form tpl

trains on phantoms, which are generated: pip install ".[keras,studies]". The frozen
DenseNet121 computes its features once; its ImageNet weights are downloaded by Keras. Without a
network connection, ``--weights none`` takes random ones.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence

import keras
import numpy as np
from keras import layers

from tensorprojection.keras import TensorProjection
from tensorprojection.studies.data.phantoms import chest_phantoms

FORMS = ("base", "tpl")


def head(form: str = "tpl", side: int = 5, channels: int = 1024) -> keras.Model:
    """Return the trained part of the paper's section 3.2.2, which takes DenseNet121's features."""
    reduce = {
        "base": layers.Conv2D(64, 1, name="conv"),
        "tpl": TensorProjection((None, None, 64), name="projection"),
    }[form]
    return keras.Sequential(
        [
            keras.Input((side, side, channels)),
            reduce,
            layers.Flatten(),
            layers.Dense(256, activation="relu", name="dense1"),
            layers.Dropout(0.5),
            layers.Dense(4, activation="softmax", name="dense2"),
        ],
        name=f"chest_{form}",
    )


def features(n: int, seed: int, size: int, backbone: keras.Model) -> tuple[np.ndarray, np.ndarray]:
    """Return the backbone's features of phantoms, and their classes."""
    made = chest_phantoms(n, seed, size)
    x = np.repeat(made.images[..., None].astype(np.float32), 3, axis=-1)
    x = keras.applications.densenet.preprocess_input(x)
    return backbone.predict(x, batch_size=16, verbose=0), made.labels


def main(arguments: Sequence[str] | None = None) -> keras.callbacks.History:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--form", choices=FORMS, default="tpl")
    parser.add_argument("--size", type=int, default=160)
    parser.add_argument("--weights", choices=("imagenet", "none"), default="imagenet")
    parser.add_argument("--train", type=int, default=400)
    parser.add_argument("--test", type=int, default=200)
    parser.add_argument("--epochs", type=int, default=20)
    parser.add_argument("--batch", type=int, default=64)
    parser.add_argument("--rate", type=float, default=1e-4)
    options = parser.parse_args(arguments)
    backbone = keras.applications.DenseNet121(
        include_top=False,
        weights=None if options.weights == "none" else options.weights,
        input_shape=(options.size, options.size, 3),
    )
    x, y = features(options.train, 0, options.size, backbone)
    model = head(options.form, *x.shape[2:])
    model.compile(
        keras.optimizers.Adam(options.rate), "sparse_categorical_crossentropy", metrics=["accuracy"]
    )
    return model.fit(
        x,
        y,
        validation_data=features(options.test, 1, options.size, backbone),
        epochs=options.epochs,
        batch_size=options.batch,
        verbose=2,
    )


if __name__ == "__main__":
    main()
