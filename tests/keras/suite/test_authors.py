"""The authors' names and signatures: in their code only the import changes."""

import keras
import numpy as np
import pytest

from tensorprojection.errors import ProjectionValueError
from tensorprojection.keras import (
    TensorProjection,
    TensorProjectionLayer,
    TransposeTensorProjection,
    TransposeTensorProjectionLayer,
)


def array(x):
    return np.asarray(keras.ops.convert_to_numpy(x), np.float64)


def test_their_signature(rng):
    layer = TensorProjectionLayer(6, 5, 32, "total_variation", 0.2, name="tpl")
    x = rng.normal(size=(4, 12, 12, 32)).astype(np.float32)
    z = layer(x)
    assert tuple(z.shape) == (4, 6, 5, 32)
    assert [(W.name, W.shape) for W in layer.weights] == [("W1", (12, 6)), ("W2", (12, 5))]
    assert (layer.q1, layer.q2, layer.q3, layer.rate) == (6, 5, 32, 0.2)
    assert len(layer.losses) == 1
    # The paper's initialization: normal noise of standard deviation 0.05 in every mode.
    for W in layer.weights:
        assert np.std(array(W.value)) == pytest.approx(0.05, rel=0.3)


@pytest.mark.parametrize(
    ("theirs", "ours", "q", "in_shape", "out_shape"),
    [
        (TensorProjectionLayer, TensorProjection, (6, 5, 32), (12, 12, 32), (6, 5, None)),
        # A mode that would not get smaller is left alone, as theirs does.
        (TensorProjectionLayer, TensorProjection, (6, 99, 4), (12, 10, 8), (6, None, 4)),
        (
            TransposeTensorProjectionLayer,
            TransposeTensorProjection,
            (12, 4, 8),
            (6, 5, 8),
            (12, None, None),
        ),
    ],
)
def test_they_compute_what_our_layers_do(rng, theirs, ours, q, in_shape, out_shape):
    x = rng.normal(size=(3, *in_shape)).astype(np.float32)
    one, other = theirs(*q), ours(out_shape)
    assert {type(i).__name__ for i in one.kernel_initializer} == {"RandomNormal"}
    inputs = keras.Input(in_shape)
    assert one(inputs).shape == other(inputs).shape
    other.set_weights(one.get_weights())
    np.testing.assert_array_equal(array(one(x)), array(other(x)))
    assert len(other.weights) == sum(r is not None for r in out_shape)


def layer_of_that_shape():
    """A layer of that name with weights as theirs has: W1 to W3, none for a mode left alone."""

    class TensorProjectionLayer(keras.layers.Layer):
        def build(self, input_shape):
            for k, (p, q) in enumerate(zip(input_shape[1:], (3, 5, 2), strict=True), start=1):
                if q < p:
                    self.add_weight(name=f"W{k}", shape=(p, q), initializer="normal")

        def call(self, x):
            return x

    return TensorProjectionLayer()


def test_weights_of_layers_of_that_shape_load(tmp_path):
    inputs = keras.Input((6, 5, 4))
    theirs = layer_of_that_shape()
    keras.Model(inputs, theirs(inputs)).save_weights(tmp_path / "their.weights.h5")
    ours = TensorProjectionLayer(3, 5, 2)
    keras.Model(inputs, ours(inputs)).load_weights(tmp_path / "their.weights.h5")
    assert [W.name for W in ours.weights] == [W.name for W in theirs.weights] == ["W1", "W3"]
    for mine, saved in zip(ours.weights, theirs.weights, strict=True):
        np.testing.assert_array_equal(array(mine.value), array(saved.value))


def test_saved_models_load(rng, tmp_path):
    inputs = keras.Input((6, 6, 4))
    small = TensorProjectionLayer(3, 3, 9, regularization="reconstruction_error")(inputs)
    model = keras.Model(inputs, TransposeTensorProjectionLayer(6, 6, 1)(small))
    model.save(tmp_path / "model.keras")
    again = keras.models.load_model(tmp_path / "model.keras")
    x = rng.normal(size=(2, 6, 6, 4)).astype(np.float32)
    np.testing.assert_allclose(array(again(x)), array(model(x)), atol=1e-6)
    config = again.layers[1].get_config()
    right = {"q1": 3, "q2": 3, "q3": 9, "regularization": "reconstruction_error", "rate": 0.1}
    assert right.items() <= config.items()


def test_the_name_for_no_penalty():
    assert TensorProjectionLayer(3, 3, 3).get_config()["regularization"] == "None"
    with pytest.raises(ProjectionValueError, match="got 'none'"):
        TensorProjectionLayer(3, 3, 3, regularization="none")
