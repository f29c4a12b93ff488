"""The paper's U-Net for polyps in Keras: projections for the last pooling and first up-sampling.

    KERAS_BACKEND=jax python examples/keras/kvasir.py --form tpl

trains on phantoms, which are generated: pip install ".[keras,studies]". The paper
initializes with ``--init normal``.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from typing import Any

import keras
import numpy as np
from keras import layers, ops

from tensorprojection.keras import TensorProjection, TransposeTensorProjection
from tensorprojection.studies.data.phantoms import polyp_phantoms

FORMS = {"base": 2, "tpl": 2, "tpl-aggressive": 4}  # the factor of the fourth reduction


def network(
    form: str = "tpl", channels: int = 16, size: int = 128, init: str = "dct"
) -> keras.Model:
    """Return a network of the paper's section 3.3.2."""
    widths = [channels, 2 * channels, 4 * channels, 8 * channels]
    side, small = size // 8, size // 8 // FORMS[form]
    if form == "base":
        down, up = layers.MaxPooling2D(), layers.Conv2DTranspose(widths[-1], 2, strides=2)
    else:
        down = TensorProjection((small, small, None), kernel_initializer=init, name="down4")
        up = TransposeTensorProjection((side, side, None), kernel_initializer=init, name="up4")

    x = inputs = keras.Input((size, size, 3))
    skips = []
    for width in widths:
        x = encode(x, width)
        skips.append(x)
        x = down(x) if width == widths[-1] else layers.MaxPooling2D()(x)
    x = encode(x, widths[-1])
    for width in reversed(widths):
        x = up(x) if width == widths[-1] else layers.Conv2DTranspose(width, 2, strides=2)(x)
        x = layers.Concatenate()([x, skips.pop()])
        for _ in range(2):
            x = layers.Conv2D(width, 3, padding="same", activation="relu")(x)
            x = layers.BatchNormalization()(x)
    outputs = layers.Conv2D(1, 1, activation="sigmoid", name="output")(x)
    return keras.Model(inputs, outputs, name=f"kvasir_{form}")


def encode(x: Any, width: int) -> Any:
    for _ in range(2):
        x = layers.Conv2D(width, 3, padding="same", activation="relu")(x)
    return x


def dice_loss(masks: Any, found: Any) -> Any:
    """Return 1 − Dice over the whole batch, with the paper's smoothing of 1."""
    both = ops.sum(masks * found)
    return 1 - (2 * both + 1) / (ops.sum(masks) + ops.sum(found) + 1)


def images(n: int, seed: int, size: int) -> tuple[np.ndarray, np.ndarray]:
    """Return phantoms in 0 … 1, and their masks."""
    made = polyp_phantoms(n, seed, size)
    return made.images.astype(np.float32) / 255, made.masks[..., None].astype(np.float32)


def main(arguments: Sequence[str] | None = None) -> keras.callbacks.History:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--form", choices=tuple(FORMS), default="tpl")
    parser.add_argument("--init", choices=("dct", "auto", "normal"), default="dct")
    parser.add_argument("--size", type=int, default=128)
    parser.add_argument("--channels", type=int, default=16)
    parser.add_argument("--train", type=int, default=300)
    parser.add_argument("--test", type=int, default=100)
    parser.add_argument("--epochs", type=int, default=10)
    parser.add_argument("--batch", type=int, default=20)
    options = parser.parse_args(arguments)
    model = network(options.form, options.channels, options.size, options.init)
    iou = keras.metrics.BinaryIoU([1], threshold=0.5, name="iou")
    model.compile(keras.optimizers.Adam(1e-3), dice_loss, metrics=[iou])
    return model.fit(
        *images(options.train, 0, options.size),
        validation_data=images(options.test, 1, options.size),
        epochs=options.epochs,
        batch_size=options.batch,
        verbose=2,
    )


if __name__ == "__main__":
    main()
