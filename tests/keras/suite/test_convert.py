"""Conversion: PyTorch and every Keras backend give the same numbers, in both directions."""

import keras
import numpy as np
import pytest
from autodiff import gradient

import tensorprojection as tp
from tensorprojection.errors import ProjectionTypeError, ProjectionValueError
from tensorprojection.keras import TensorProjection, TransposeTensorProjection, from_torch, to_torch
from tensorprojection.keras.ops import multilinear, polar

torch = pytest.importorskip("torch")

LAYERS = [
    tp.TensorProjection((12, 10, 8), (6, 10, 4)),
    tp.TensorProjection((9, 7), (4, 3), eps=(0.1, 0.01), init="dct"),
    tp.TransposeTensorProjection((6, 5), (9, 5), eps_mode="relative"),
]


def array(x):
    return np.asarray(keras.ops.convert_to_numpy(x), np.float64)


@pytest.mark.parametrize("theirs", LAYERS, ids=repr)
def test_outputs_and_gradients_agree(rng, theirs):
    x = rng.normal(size=(5, *theirs.in_shape)).astype(np.float32)
    dz = rng.normal(size=(5, *theirs.out_shape)).astype(np.float32)
    layer = from_torch(theirs)
    right = theirs(torch.from_numpy(x)).detach().numpy()
    np.testing.assert_allclose(array(layer(x)), right, atol=1e-6)

    Ws = [W.detach().numpy() for W in theirs.parameters()]

    def loss(x, *values):
        found = iter(values)
        Us = [
            None if W is None else polar(next(found), eps, eps_mode=layer.eps_mode)
            for W, eps in zip(layer.Ws, layer.eps, strict=True)
        ]
        z = multilinear(x, Us, transposed=layer.transposed)
        return keras.ops.sum(keras.ops.multiply(z, dz))

    xt = torch.from_numpy(x).requires_grad_()
    z = theirs(xt)
    wanted = torch.autograd.grad(z, [xt, *theirs.parameters()], torch.from_numpy(dz))
    for found, g in zip(gradient(loss, x, *Ws), wanted, strict=True):
        g = g.double().numpy()
        np.testing.assert_allclose(found, g, atol=1e-5 * max(np.abs(g).max(), 1))


def test_on_torch_it_is_the_same_to_the_bit(rng, backend):
    if backend != "torch":
        pytest.skip("for the backend torch")
    theirs = LAYERS[0]
    x = torch.from_numpy(rng.normal(size=(5, *theirs.in_shape)).astype(np.float32))
    layer = from_torch(theirs)
    assert torch.equal(layer(x), theirs(x))


@pytest.mark.parametrize("theirs", LAYERS, ids=repr)
def test_there_and_back(theirs):
    again = to_torch(from_torch(theirs))
    assert type(again) is type(theirs)
    assert (again.in_shape, again.out_shape) == (theirs.in_shape, theirs.out_shape)
    assert (again.eps, again.eps_mode) == (theirs.eps, theirs.eps_mode)
    for W, V in zip(again.parameters(), theirs.parameters(), strict=True):
        assert torch.equal(W, V)


def test_channels_first_and_last(rng):
    layer = TensorProjection((6, 5, 20))
    x = rng.normal(size=(3, 12, 12, 32)).astype(np.float32)
    z = array(layer(x))
    theirs = to_torch(layer, channels_first=True)
    assert theirs.in_shape == (32, 12, 12)
    found = theirs(torch.from_numpy(np.moveaxis(x, -1, 1).copy())).detach().numpy()
    np.testing.assert_allclose(np.moveaxis(found, 1, -1), z, rtol=1e-6, atol=1e-6)
    again = from_torch(theirs, channels_last=True, name="again")
    assert again.name == "again"
    np.testing.assert_array_equal(array(again(x)), z)


def test_by_default_both_begin_with_the_same_poolings():
    layer = TensorProjection((6, 5, 20))
    layer.build((None, 12, 12, 32))
    theirs = tp.TensorProjection((32, 12, 12), (20, 6, 5))
    for W, V in ((layer.W1, theirs.W2), (layer.W2, theirs.W3)):
        np.testing.assert_array_equal(array(W.value), V.detach().numpy())


def test_other_things_are_refused():
    with pytest.raises(ProjectionTypeError, match="got Dense"):
        to_torch(keras.layers.Dense(3))
    with pytest.raises(ProjectionTypeError, match="got Linear"):
        from_torch(torch.nn.Linear(3, 2))
    with pytest.raises(ProjectionValueError, match="Call it once"):
        to_torch(TensorProjection((3, 2)))
    layer = TransposeTensorProjection((None, 4))
    layer.build((None, None, 2))
    with pytest.raises(ProjectionValueError, match="to be known"):
        to_torch(layer)
