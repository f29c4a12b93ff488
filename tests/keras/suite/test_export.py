"""Exported models: the same predictions, and no decomposition in the graph."""

import os
import subprocess
import sys

import keras
import numpy as np
import pytest

from tensorprojection.keras import TensorProjection, TransposeTensorProjection

# From JAX and TensorFlow it needs TensorFlow, and takes its time.
pytestmark = [] if keras.backend.backend() == "torch" else [pytest.mark.heavy]

# What a graph would hold that computes U: by TensorFlow, by JAX, by ONNX.
TRACES = ("svd", "qr", "eig", "cholesky", "while", "lapack", "gesdd")


@pytest.fixture
def model():
    inputs = keras.Input((6, 5, 4))
    small = TensorProjection((3, None, 2))(inputs)
    outputs = TransposeTensorProjection((6, None, 4))(small)
    return keras.Model(inputs, keras.layers.Dense(3)(outputs))


@pytest.fixture
def x(rng):
    return rng.normal(size=(2, 6, 5, 4)).astype(np.float32)


def array(z):
    return np.asarray(keras.ops.convert_to_numpy(z))


def assert_still_learns(model, x):
    """U is constant in the exported graph, not in the model."""
    before = model.predict(x, verbose=0)
    W1 = model.layers[1].W1
    W1.assign(keras.ops.negative(W1.value))
    assert np.abs(model.predict(x, verbose=0) - before).max() > 1e-3


def test_saved_model(model, x, tmp_path, backend):
    pytest.importorskip("tensorflow", reason="an export to SavedModel needs tensorflow")
    if backend == "torch":
        pytest.skip("Keras exports a SavedModel from torch by litert-torch only")
    right = array(model(x))
    model.export(tmp_path / "saved", format="tf_saved_model", verbose=False)
    np.save(tmp_path / "x.npy", x)
    # In a process that knows neither Keras nor this package.
    code = """
import numpy as np, tensorflow as tf
saved = tf.saved_model.load("saved")
np.save("z.npy", saved.serve(np.load("x.npy")).numpy())
graph = saved.signatures["serving_default"].graph.as_graph_def()
nodes = [*graph.node, *(node for f in graph.library.function for node in f.node_def)]
print("\\n".join(sorted({node.op for node in nodes})))
for node in nodes:
    if b"lapack" in node.attr["module"].s:  # what JAX calls for a decomposition
        print("lapack")
"""
    done = subprocess.run(
        [sys.executable, "-c", code],
        cwd=tmp_path,
        env=os.environ,
        check=False,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    np.testing.assert_allclose(np.load(tmp_path / "z.npy"), right, atol=1e-5)
    assert not [trace for trace in TRACES if trace in done.stdout.lower()], done.stdout
    assert_still_learns(model, x)


def test_onnx(model, x, tmp_path, backend):
    onnx = pytest.importorskip("onnx")
    runtime = pytest.importorskip("onnxruntime")
    needed = {"tensorflow": "tf2onnx", "jax": "jax2onnx", "torch": "onnxscript"}[backend]
    pytest.importorskip(needed, reason=f"Keras exports to ONNX by {needed}", exc_type=ImportError)
    right = array(model(x))
    path = tmp_path / "model.onnx"
    signature = [keras.InputSpec(shape=x.shape, dtype="float32", name="x")]
    model.export(path, format="onnx", verbose=False, input_signature=signature)
    session = runtime.InferenceSession(path, providers=["CPUExecutionProvider"])
    (found,) = session.run(None, {session.get_inputs()[0].name: x})
    np.testing.assert_allclose(found, right, atol=1e-5)
    kinds = {node.op_type.lower() for node in onnx.load(path).graph.node}
    assert not [trace for trace in (*TRACES, "loop") if any(trace in kind for kind in kinds)], kinds
    assert_still_learns(model, x)
