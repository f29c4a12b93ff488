"""The layers as a Keras user meets them."""

import json
import os
import subprocess
import sys
from functools import partial

import keras
import numpy as np
import oracle
import pytest

from tensorprojection import init_matrices
from tensorprojection.errors import ProjectionTypeError, ProjectionValueError
from tensorprojection.keras import (
    BlockInitializer,
    FrozenProjection,
    TensorProjection,
    TransposeTensorProjection,
)

LAYERS = [TensorProjection, TransposeTensorProjection]


def array(x):
    return np.asarray(keras.ops.convert_to_numpy(x), np.float64)


def project(x, Us, *, transposed=False):
    """Eq. 1 and Eq. 13, one `tensordot` per mode, in float64."""
    x = np.asarray(x, np.float64)
    for axis, U in enumerate(Us, start=1):
        if U is not None:
            x = np.moveaxis(np.tensordot(x, U if not transposed else U.T, axes=(axis, 0)), -1, axis)
    return x


def right_Us(layer, eps=1e-3):
    return [None if W is None else oracle.polar_by_svd(array(W.value), eps) for W in layer.Ws]


@pytest.mark.parametrize(
    ("in_shape", "out_shape"),
    [
        ((12,), (5,)),
        ((7, 6), (None, 2)),
        ((12, 10, 8), (6, 5, 4)),
        ((12, 10, 8), (6, 10, None)),
        ((4, 3, 5, 2), (2, None, 4, 1)),
    ],
)
@pytest.mark.parametrize("layer_type", LAYERS)
def test_the_map(rng, layer_type, in_shape, out_shape):
    transposed = layer_type is TransposeTensorProjection
    if transposed:
        full = tuple(p if q is None else q for p, q in zip(in_shape, out_shape, strict=True))
        out_shape = [None if q is None else p for p, q in zip(in_shape, out_shape, strict=True)]
        in_shape = full
    layer = layer_type(out_shape)
    x = rng.normal(size=(3, *in_shape)).astype(np.float32)
    z = layer(x)
    assert tuple(z.shape) == layer.compute_output_shape((3, *in_shape))
    right = project(x, right_Us(layer), transposed=transposed)
    np.testing.assert_allclose(array(z), right, atol=1e-6)


def test_a_mode_left_alone_has_no_weight():
    layer = TensorProjection((6, 12, None))
    layer.build((None, 12, 12, 32))
    assert [W.name for W in layer.weights] == ["W1"]
    assert layer.count_params() == 12 * 6
    assert layer.Ws[1:] == [None, None]


def test_a_mode_left_alone_may_have_any_size(rng):
    inputs = keras.Input((None, 8))
    model = keras.Model(inputs, TensorProjection((None, 3))(inputs))
    assert model.output_shape == (None, None, 3)
    for length in (2, 5):
        assert model(rng.normal(size=(4, length, 8)).astype(np.float32)).shape == (4, length, 3)
    inputs = keras.Input((8, None))
    model = keras.Model(inputs, TensorProjection((3, None))(inputs))
    assert model(rng.normal(size=(4, 8, 5)).astype(np.float32)).shape == (4, 3, 5)


# Initialization


def kinds(layer):
    return [type(initializer).__name__ for initializer in layer.kernel_initializer]


@pytest.mark.parametrize("layer_type", LAYERS)
@pytest.mark.parametrize("order", [1, 2, 3, 4])
def test_by_default_channels_begin_as_noise_and_the_other_modes_as_pooling(rng, layer_type, order):
    small, large = 10, 30
    layer = layer_type((large if layer_type is TransposeTensorProjection else small,) * order)
    layer.build((None, *[small if layer_type is TransposeTensorProjection else large] * order))
    pooled = order - 1 if order >= 3 else 0
    assert kinds(layer) == ["BlockInitializer"] * pooled + ["RandomNormal"] * (order - pooled)
    for W in layer.Ws[:pooled]:
        # Each of the 10 columns averages three neighbours, up to a factor.
        block = np.kron(np.eye(small), np.ones((3, 1)))
        assert np.corrcoef(array(W.value).ravel(), block.ravel())[0, 1] == pytest.approx(1)
    for W in layer.Ws[pooled:]:
        assert np.std(array(W.value)) == pytest.approx(0.05, rel=0.2)


@pytest.mark.parametrize("name", ["block", "blur", "dct"])
def test_poolings_have_the_numbers_of_every_framework(name):
    layer = TensorProjection((5, None), kernel_initializer=name)
    layer.build((None, 12, 3))
    np.testing.assert_array_equal(
        array(layer.W1.value), getattr(init_matrices, name)(12, 5).astype(np.float32)
    )


def test_blur_is_close_to_anti_aliased_pooling():
    U = init_matrices.blur(12, 6)
    np.testing.assert_allclose(U.T @ U, np.eye(6), atol=1e-12)
    windows = np.zeros((12, 6))
    for j in range(6):
        for place, weight in zip(range(2 * j - 1, 2 * j + 3), (1, 3, 3, 1), strict=True):
            windows[np.clip(place, 0, 11), j] += weight / 8
    # The polar factor is the only frame whose product with the windows is symmetric and positive.
    H = U.T @ windows
    np.testing.assert_allclose(H, H.T, atol=1e-12)
    assert np.linalg.eigvalsh(H).min() > 0


def test_random_initializations(rng):
    for initializer in ("normal", keras.initializers.RandomNormal(stddev=0.05)):
        layer = TensorProjection((30, 30, 30), kernel_initializer=initializer)
        layer.build((None, 100, 100, 100))
        Ws = [array(W.value) for W in layer.Ws]
        assert not np.allclose(Ws[0], Ws[1])
        assert [np.std(W) for W in Ws] == pytest.approx([0.05] * 3, rel=0.1)
    layer = TensorProjection((30,), kernel_initializer="orthogonal")
    layer.build((None, 100))
    W = array(layer.W1.value)
    np.testing.assert_allclose(W.T @ W, np.eye(30), atol=1e-5)


def test_one_initializer_per_mode():
    constant = keras.initializers.Constant(0.5)
    layer = TensorProjection((2, 2, 2), kernel_initializer=("dct", constant, BlockInitializer(3)))
    layer.build((None, 4, 4, 4))
    np.testing.assert_allclose(array(layer.W1.value), init_matrices.dct(4, 2), atol=1e-7)
    np.testing.assert_allclose(array(layer.W2.value), 0.5)
    block = [[1, 0], [1, 0], [0, 1], [0, 1]]
    np.testing.assert_allclose(array(layer.W3.value), 3 / 2**0.5 * np.array(block), rtol=1e-6)


# Penalties


def penalised_loss(layer, x):
    layer(x)
    (loss,) = layer.losses
    return float(array(loss))


@pytest.mark.parametrize("layer_type", LAYERS)
def test_total_variation(rng, layer_type):
    out_shape = (8, 9) if layer_type is TransposeTensorProjection else (3, 2)
    layer = layer_type(out_shape, regularization="total_variation", rate=0.3)
    x = rng.normal(size=(4, 6, 5)).astype(np.float32)
    loss = penalised_loss(layer, x)
    z = array(layer(x))
    by_sample = [np.sqrt(np.mean((sample - z.mean(0)) ** 2)) for sample in z]
    assert loss == pytest.approx(0.3 * np.log(np.mean(by_sample)), rel=1e-5)


def test_reconstruction_error(rng):
    layer = TensorProjection((3, None), regularization="reconstruction_error", rate=2.0)
    x = rng.normal(size=(4, 6, 5)).astype(np.float32)
    loss = penalised_loss(layer, x)
    Us = right_Us(layer)
    back = project(project(x, Us), Us, transposed=True)
    by_sample = [np.sqrt(np.mean((a - b) ** 2)) for a, b in zip(x, back, strict=True)]
    assert loss == pytest.approx(2 * np.log(np.mean(by_sample)), rel=1e-5)


def test_a_sample_at_the_mean_has_a_finite_gradient(rng):
    inputs = keras.Input((6, 5))
    layer = TensorProjection((3, 2), regularization="total_variation")
    model = keras.Model(inputs, layer(inputs))
    model.compile(keras.optimizers.SGD(0.1), "mse")
    v = rng.normal(size=(6, 5)).astype(np.float32)
    x = np.stack([v, -v, 0 * v])  # the third is the mean, to the last bit
    model.fit(x, np.zeros((3, 3, 2), np.float32), verbose=0)
    assert all(np.isfinite(array(w.value)).all() for w in layer.weights)


def test_kernel_regularizer(rng):
    layer = TensorProjection((3, 2), kernel_regularizer=keras.regularizers.L2(0.5))
    layer.build((None, 6, 5))
    total = sum(float(array(loss)) for loss in layer.losses)
    right = 0.5 * sum(np.sum(array(W.value) ** 2) for W in layer.Ws)
    assert total == pytest.approx(right, rel=1e-5)


# Saving


def sequential():
    return keras.Sequential(
        [
            keras.Input((6, 5)),
            TensorProjection((3, None), eps=(1e-2, 1e-3), kernel_initializer=("dct", "normal")),
            TransposeTensorProjection((6, 7), eps_mode="relative", kernel_regularizer="l2"),
        ]
    )


def functional():
    inputs = keras.Input((6, 5))
    small = TensorProjection((3, 2), regularization="total_variation", rate=0.2)(inputs)
    large = TransposeTensorProjection((6, 5), kernel_initializer="orthogonal")(small)
    return keras.Model(inputs, keras.layers.Add()([inputs, large]))


SUBCLASS = """
import keras
from tensorprojection.keras import TensorProjection

@keras.saving.register_keras_serializable(package="suite")
class Subclassed(keras.Model):
    def __init__(self, **kwargs):
        super().__init__(**kwargs)
        self.shrink = TensorProjection((3, 2), kernel_initializer="block")
        self.dense = keras.layers.Dense(2)

    def call(self, x):
        return self.dense(self.shrink(x))
"""


def subclassed():
    names = {}
    exec(SUBCLASS, names)
    return names["Subclassed"]()


def test_saved_models_predict_the_same_in_a_fresh_process(rng, tmp_path, monkeypatch, backend):
    """But for torch, whose import takes longest: what is saved and read is not the backend's."""
    x = rng.normal(size=(4, 6, 5)).astype(np.float32)
    np.save(tmp_path / "x.npy", x)
    right = {}
    for make in (sequential, functional, subclassed):
        model = make()
        right[make.__name__] = array(model(x))
        model.save(tmp_path / f"{make.__name__}.keras")
    code = f"""
import numpy as np
{SUBCLASS}
for name in {list(right)}:
    model = keras.models.load_model(name + ".keras")
    np.save(name + ".npy", keras.ops.convert_to_numpy(model(np.load("x.npy"))))
"""
    if backend == "torch":
        monkeypatch.chdir(tmp_path)
        exec(code, {})
    else:
        subprocess.run([sys.executable, "-c", code], cwd=tmp_path, env=os.environ, check=True)
    for name, z in right.items():
        np.testing.assert_allclose(np.load(tmp_path / f"{name}.npy"), z, atol=1e-6)


@pytest.mark.parametrize(
    "layer",
    [
        TensorProjection((3, None, 2), eps=0.1, kernel_initializer=("dct", "normal", "blur")),
        TransposeTensorProjection((9, 8), eps_mode="relative", kernel_regularizer="l1"),
        TensorProjection((3, None, 2)),
        TensorProjection((3, 2), kernel_initializer=BlockInitializer(gain=3)),
        TensorProjection((3,), regularization="reconstruction_error", rate=0.7, name="reduce"),
    ],
)
def test_config_round_trip(layer):
    config = json.loads(json.dumps(keras.saving.serialize_keras_object(layer)))
    again = keras.saving.deserialize_keras_object(config)
    assert type(again) is type(layer)
    assert again.get_config() == layer.get_config()
    assert kinds(again) == kinds(layer)


# Precision and compilers


@pytest.mark.parametrize("policy", ["mixed_bfloat16", "mixed_float16"])
def test_mixed_precision_keeps_U_in_float32(rng, policy):
    layer = TensorProjection((3, 2), dtype=policy)
    x = rng.normal(size=(4, 6, 5)).astype(np.float32)
    z = layer(x)
    half = policy.removeprefix("mixed_")
    assert keras.backend.standardize_dtype(z.dtype) == half
    assert {keras.backend.standardize_dtype(W.dtype) for W in layer.Ws} == {"float32"}
    for U, right in zip(layer.projections(), right_Us(layer), strict=True):
        assert keras.backend.standardize_dtype(U.dtype) == "float32"
        assert np.abs(array(U) - right).max() < 2e-6
    unit = 2**-8 if half == "bfloat16" else 2**-11
    np.testing.assert_allclose(array(z), project(x, right_Us(layer)), atol=8 * unit)


def train(rng, **options):
    model = keras.Sequential(
        [
            keras.Input((6, 5)),
            TensorProjection((3, 2)),
            keras.layers.Flatten(),
            keras.layers.Dense(1),
        ]
    )
    x = rng.normal(size=(8, 6, 5)).astype(np.float32)
    model.compile(keras.optimizers.Adam(0.01), "mse", **options)
    y = np.ones((8, 1), np.float32)
    return model.fit(x, y, epochs=20, batch_size=8, verbose=0).history["loss"]


def test_a_compiled_model_learns(rng, backend):
    # torch's compiler takes minutes for Keras's own layers; see the PyTorch layer's tests.
    compiled = backend != "torch"
    losses = train(rng, jit_compile=compiled)
    assert np.isfinite(losses).all()
    assert losses[-1] < 0.9 * losses[0]


# Wrong input


def message(error, function, *arguments):
    with pytest.raises(error) as caught:
        function(*arguments)
    return str(caught.value)


def wrong_calls():
    built = TensorProjection((3, 2))
    built.build((None, 6, 5))
    return {
        "grows": (
            ProjectionValueError,
            lambda: TensorProjection((7, 5)).build((None, 6, 5)),
            lambda tp, torch: tp.TensorProjection((6, 5), (7, 5)),
        ),
        "shrinks": (
            ProjectionValueError,
            lambda: TransposeTensorProjection((5, 5)).build((None, 6, 5)),
            lambda tp, torch: tp.TransposeTensorProjection((6, 5), (5, 5)),
        ),
        "another order": (
            ProjectionValueError,
            lambda: TensorProjection((3, 2)).build((None, 6, 5, 4)),
            lambda tp, torch: tp.TensorProjection((6, 5, 4), (3, 2)),
        ),
        "not a shape": (
            ProjectionTypeError,
            lambda: TensorProjection(3),
            lambda tp, torch: tp.TensorProjection((6,), 3),
        ),
        "size 0": (
            ProjectionValueError,
            lambda: TensorProjection((3, 0)),
            lambda tp, torch: tp.TensorProjection((6, 5), (3, 0)),
        ),
        "eps": (
            ProjectionValueError,
            lambda: TensorProjection((3, 2), eps=-1.0),
            lambda tp, torch: tp.TensorProjection((6, 5), (3, 2), eps=-1.0),
        ),
        "eps by mode": (
            ProjectionValueError,
            lambda: TensorProjection((3, 2), eps=(1, 1, 1)),
            lambda tp, torch: tp.TensorProjection((6, 5), (3, 2), eps=(1, 1, 1)),
        ),
        "eps_mode": (
            ProjectionValueError,
            lambda: TensorProjection((3, 2), eps_mode="both"),
            lambda tp, torch: tp.TensorProjection((6, 5), (3, 2), eps_mode="both"),
        ),
        "swapped": (
            ProjectionValueError,
            lambda: built(np.ones((4, 5, 6), np.float32)),
            lambda tp, torch: tp.TensorProjection((6, 5), (3, 2))(torch.ones(4, 5, 6)),
        ),
        "integers": (
            ProjectionTypeError,
            lambda: built(np.ones((4, 6, 5), np.int32)),
            lambda tp, torch: tp.TensorProjection((6, 5), (3, 2))(torch.ones(4, 6, 5).int()),
        ),
    }


@pytest.mark.parametrize("name", wrong_calls())
def test_errors_are_those_of_the_pytorch_layer(name):
    error, keras_call, torch_call = wrong_calls()[name]
    said = message(error, keras_call)
    assert "Expected" in said
    torch = pytest.importorskip("torch")
    import tensorprojection as tp

    right = message(error, torch_call, tp, torch).replace("torch.int32", "int32")
    assert said == right


def test_errors_of_symbolic_inputs():
    assert "swapped" in message(
        ProjectionValueError,
        lambda: [
            layer := TensorProjection((3, 2)),
            layer.build((None, 6, 5)),
            layer(keras.Input((5, 6))),
        ],
    )
    assert "int32" in message(
        ProjectionTypeError, lambda: TensorProjection((3, 2))(keras.Input((6, 5), dtype="int32"))
    )
    assert "known in mode 1" in message(
        ProjectionValueError, lambda: TensorProjection((3, 2))(keras.Input((None, 5)))
    )


def test_one_batch_axis():
    layer = TensorProjection((3, 2))
    layer.build((None, 6, 5))
    assert "one batch axis and 2 modes, got an input of shape (2, 4, 6, 5)" in message(
        ProjectionValueError, lambda: layer(np.ones((2, 4, 6, 5), np.float32))
    )


def test_unknown_names():
    said = message(ProjectionValueError, lambda: TensorProjection((3,), regularization="l2"))
    assert "'reconstruction_error', 'total_variation', got 'l2'" in said
    for wrong in ("cosine", ("dct", "cosine")):
        make = partial(TensorProjection, (3, 3), kernel_initializer=wrong)
        said = message(ProjectionValueError, make)
        assert "'auto'" in said
        assert "'dct'" in said
        assert "got 'cosine'" in said
    said = message(ProjectionTypeError, lambda: TensorProjection((3, 3), init="block"))
    assert said == ("TensorProjection has no argument 'init'. Use kernel_initializer='block'.")
    assert "gain > 0, got 0" in message(ProjectionValueError, BlockInitializer, 0)


# NaN propagates


@pytest.mark.parametrize("value", [np.nan, "zero"])
def test_a_W_with_nan_gives_nan(value):
    """And a zero W with a relative ε: eagerly, compiled, frozen and in training."""
    layer = TensorProjection((3, 2), eps_mode="relative" if value == "zero" else "absolute")
    model = keras.Sequential([keras.Input((6, 5)), layer])
    W = array(layer.W2.value)
    if value == "zero":
        W[:] = 0
    else:
        W[1, 1] = value
    layer.W2.assign(W)
    x = np.ones((2, 6, 5), np.float32)
    assert np.isnan(array(layer(x))).all()
    assert np.isnan(array(layer.freeze()(x))).all()
    assert np.isnan(model.predict(x, verbose=0)).all()
    model.compile(keras.optimizers.SGD(0.1), "mse")
    history = model.fit(x, np.ones((2, 3, 2), np.float32), verbose=0).history
    assert np.isnan(history["loss"]).all()
    assert all(np.isnan(array(W.value)).all() for W in layer.Ws)


def test_a_zero_W_is_harmless_with_an_absolute_eps():
    layer = TensorProjection((3, 2), kernel_initializer="zeros")
    assert not array(layer(np.ones((2, 6, 5), np.float32))).any()


# Frozen


@pytest.mark.parametrize("layer_type", LAYERS)
def test_frozen(rng, tmp_path, layer_type):
    out_shape = (8, None) if layer_type is TransposeTensorProjection else (3, None)
    layer = layer_type(out_shape)
    with pytest.raises(ProjectionValueError, match="Call it once"):
        layer.freeze()
    x = rng.normal(size=(4, 6, 5)).astype(np.float32)
    right = array(layer(x))
    frozen = layer.freeze()
    assert isinstance(frozen, FrozenProjection)
    assert frozen.trainable_weights == []
    np.testing.assert_allclose(array(frozen(x)), right, atol=1e-6)
    assert frozen.compute_output_shape((None, 6, 5)) == layer.compute_output_shape((None, 6, 5))
    model = keras.Sequential([keras.Input((6, 5)), frozen])
    model.save(tmp_path / "frozen.keras")
    again = keras.models.load_model(tmp_path / "frozen.keras")
    np.testing.assert_allclose(array(again(x)), right, atol=1e-6)
    with pytest.raises(ProjectionValueError, match="Expected an input of shape"):
        frozen(np.ones((4, 7, 5), np.float32))
