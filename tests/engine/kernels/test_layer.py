"""A layer's pass in one call is that of U and map one after the other, to the bit."""

import pytest
import torch

import tensorprojection as tp
from tensorprojection.engine.kernels import calls
from tensorprojection.engine.packed import unpack

from .by_kernels import run_forward, tiled

pytestmark = pytest.mark.usefixtures("kernels")

LAYERS = {
    "all modes": ((32, 12, 12), (20, 6, 6)),
    "the first left alone": ((32, 12, 12), (32, 6, 6)),
    "the middle left alone": ((9, 7, 5), (4, 7, 3)),
    "one mode": ((70,), (9,)),
    "four modes": ((6, 5, 4, 3), (3, 5, 2, 2)),
}
all_layers = pytest.mark.parametrize("sizes", LAYERS.values(), ids=LAYERS)


def make(sizes, transposed, eps_mode="absolute"):
    source, target = sizes[::-1] if transposed else sizes
    kind = tp.TransposeTensorProjection if transposed else tp.TensorProjection
    return kind(source, target, eps_mode=eps_mode), torch.randn(7, *source)


def step(layer, x):
    """The output, and the gradients of all that wants one."""
    wanted = [t for t in (x, *layer.parameters()) if t.requires_grad]
    z = layer(x)
    return [z, *torch.autograd.grad(z.square().sum(), wanted)]


def one_after_the_other(monkeypatch):
    monkeypatch.setattr(calls, "run_forward", lambda *_: None)


@pytest.mark.parametrize("eps_mode", ["absolute", "relative"])
@pytest.mark.parametrize("transposed", [False, True])
@all_layers
def test_the_same_bits(sizes, transposed, eps_mode, monkeypatch):
    layer, x = make(sizes, transposed, eps_mode)
    at_once = step(layer, x.requires_grad_())
    one_after_the_other(monkeypatch)
    for a, b in zip(at_once, step(layer, x), strict=True):
        assert torch.equal(a, b)


@pytest.mark.parametrize("transposed", [False, True])
@pytest.mark.parametrize(
    ("want_x", "frozen"),
    [(True, (0,)), (True, (1, 2)), (True, (0, 1, 2)), (False, ()), (False, (0,)), (False, (1, 2))],
    ids=str,
)
def test_what_is_not_wanted_changes_nothing(want_x, frozen, transposed, monkeypatch):
    layer, x = make(LAYERS["all modes"], transposed)
    for k, W in enumerate(layer.parameters()):
        W.requires_grad_(k not in frozen)
    at_once = step(layer, x.requires_grad_(want_x))
    one_after_the_other(monkeypatch)
    for a, b in zip(at_once, step(layer, x), strict=True):
        assert torch.equal(a, b)


def test_a_gradient_in_another_memory_format():
    layer, x = make(LAYERS["all modes"], transposed=False)
    wanted = [x.requires_grad_(), *layer.parameters()]
    grad = torch.randn(7, 20, 6, 1).expand(7, 20, 6, 6)
    plain = torch.autograd.grad(layer(x), wanted, grad.contiguous())
    for other in (grad, grad.to(memory_format=torch.channels_last)):
        for a, b in zip(plain, torch.autograd.grad(layer(x), wanted, other), strict=True):
            assert torch.equal(a, b)


@all_layers
def test_the_kept_Us_are_those_of_the_layer(sizes):
    layer, x = make(sizes, transposed=False)
    Ws = [None if W is None else W.detach() for W in layer.Ws]
    _, packed = run_forward(x, Ws, tuple(layer.eps), False, False)
    found = unpack(packed, Ws, tiled(x, Ws).modes)
    for k, (W, right) in enumerate(zip(Ws, layer.projections(), strict=True)):
        if W is None:
            assert right is None
            assert found[k] is None
            continue
        U, G, V, s = found[k]
        assert torch.equal(U, right)
        M = W.double().mT @ W.double() + layer.eps[k] ** 2 * torch.eye(len(s))
        torch.testing.assert_close((V * s.square()) @ V.mT, M)
        torch.testing.assert_close(G @ M @ G, torch.eye(len(s), dtype=torch.float64))


def test_a_W_that_asks_for_another_way_leaves_the_layer_right(reference):
    layer, x = make(((96, 12, 12), (64, 6, 6)), transposed=False)
    with torch.no_grad():
        layer.Ws[0].mul_(torch.logspace(6, -2, 64))  # too large, and too ill-conditioned
    Ws = [W.detach() for W in layer.Ws]
    assert run_forward(x, Ws, tuple(layer.eps), False, False) is None
    right = reference(layer, x)
    assert (layer(x).double() - right).norm() <= 3e-6 * right.norm()


@pytest.mark.parametrize("bad", [torch.nan, torch.inf])
def test_a_W_that_is_not_finite_is_an_error_that_names_it(bad):
    layer, x = make(LAYERS["all modes"], transposed=False)
    with torch.no_grad():
        layer.Ws[1][2, 3] = bad
    with pytest.raises(tp.DivergedError, match="W2"):
        layer(x)
