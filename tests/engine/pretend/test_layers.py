"""Layers run on the device without a wait, in few launches; without float64, with the host's help.

"Ordinary" tensors are what the library takes for such; here those of the device are among them.
"""

import pytest
import torch
from accelerator import NAME, Accelerator, PretendTensor, Waited, host
from late import Late

import tensorprojection as tp
from tensorprojection import DivergedError
from tensorprojection.algebra.starts import INITS
from tensorprojection.engine import dispatch, dtypes, tracing
from tensorprojection.engine.device import engine as device_engine
from tensorprojection.engine.device import factors
from tensorprojection.engine.device.engine import DeviceEngine
from tensorprojection.engine.device.flag import DeviceFlag
from tensorprojection.nn import layers as layers_file
from tensorprojection.surgery import compare, merge

LAYERS = {
    "OCT-2": lambda **kw: tp.TensorProjection((32, 12, 12), (20, 6, 6), **kw),
    "OCT-1": lambda **kw: tp.TensorProjection((32, 12, 12), (32, 6, 6), **kw),
    "chest": lambda **kw: tp.TensorProjection((1024, 5, 5), (64, 5, 5), **kw),
    "U-Net up": lambda **kw: tp.TransposeTensorProjection((16, 8, 8), (16, 16, 16), **kw),
}
FORMATS = [torch.contiguous_format, torch.channels_last]


class Nowhere:
    """For a flag whose copies never arrive."""

    def start(self, norms):
        return None


@pytest.fixture(autouse=True)
def ordinary(monkeypatch):
    monkeypatch.setattr(tracing, "_ORDINARY", (*tracing._ORDINARY, PretendTensor))


def make(name, **options):
    layer = LAYERS[name](**options)
    layer._flag = DeviceFlag(Nowhere())
    return layer


def inputs(layer, memory_format=torch.contiguous_format, dtype=torch.float32):
    x = torch.randn(4, *layer.in_shape).to(dtype, memory_format=memory_format)
    grad = torch.randn(4, *layer.out_shape).to(dtype)
    return x, grad


def step(layer, x, grad):
    z = layer(x)
    return z, *torch.autograd.grad(z, [x, *layer.parameters()], grad)


def assert_close(ours, theirs, tolerance=2e-5):
    """The device's products are other kernels than the host's: equal up to float32's rounding."""
    off = torch.linalg.vector_norm(host(ours) - theirs.detach())
    assert off <= tolerance * torch.linalg.vector_norm(theirs)


def on_host(layer, x, grad):
    """The same code, on the CPU."""
    with dispatch.use(DeviceEngine()):
        return step(layer, x.clone().requires_grad_(), grad)


@pytest.mark.parametrize("memory_format", FORMATS, ids=str)
@pytest.mark.parametrize("eps_mode", ["absolute", "relative"])
@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("name", LAYERS)
def test_a_step_does_not_wait(name, training, eps_mode, memory_format):
    layer = make(name, eps_mode=eps_mode).train(training)
    x, grad = inputs(layer, memory_format)
    expected = on_host(layer, x, grad)
    with Accelerator() as device:
        device.put_module(layer)
        found = step(layer, device.put(x).requires_grad_(), device.put(grad))
    for ours, theirs in zip(found, expected, strict=True):
        assert isinstance(ours, PretendTensor)
        assert ours.stride() == theirs.stride()
        assert_close(ours, theirs)


@pytest.mark.parametrize("name", LAYERS)
def test_eval_without_gradients_does_not_wait_and_sees_a_changed_W(name):
    layer = make(name).eval()
    x, _ = inputs(layer)
    other = make(name).eval()
    with torch.no_grad():
        expected = [layer(x), other(x)]
    with Accelerator() as device, torch.no_grad():
        device.put_module(layer)
        device.put_module(other)
        held = device.put(x)
        found = [layer(held)]
        for W, changed in zip(layer.parameters(), other.parameters(), strict=True):
            W.data.copy_(changed)
        found.append(layer(held))
    for ours, theirs in zip(found, expected, strict=True):
        assert_close(ours, theirs)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_types_do_not_wait(dtype):
    layer = make("OCT-2", dtype=dtype)
    x, grad = inputs(layer, dtype=dtype)
    with Accelerator() as device:
        device.put_module(layer)
        z, *grads = step(layer, device.put(x).requires_grad_(), device.put(grad))
    assert {t.dtype for t in (z, *grads)} == {dtype}


def test_a_gradient_of_the_gradient_does_not_wait():
    layer = make("OCT-2")
    x, grad = inputs(layer)

    def second(x, grad):
        (dx,) = torch.autograd.grad(layer(x), x, grad, create_graph=True)
        return torch.autograd.grad(dx.pow(3).sum(), list(layer.parameters()))

    with dispatch.use(DeviceEngine()):
        expected = second(x.clone().requires_grad_(), grad)
    with Accelerator() as device:
        device.put_module(layer)
        found = second(device.put(x).requires_grad_(), device.put(grad))
    for ours, theirs in zip(found, expected, strict=True):
        assert_close(ours, theirs)


@pytest.mark.parametrize("frozen", ["x", "W"])
def test_what_needs_no_gradient_gets_none(frozen):
    layer = make("OCT-2")
    x, grad = inputs(layer)
    with Accelerator() as device:
        device.put_module(layer)
        held = device.put(x)
        if frozen == "x":
            layer.W2.requires_grad_(False)
        else:
            layer.requires_grad_(False)
            held.requires_grad_()
        layer(held).backward(device.put(grad))
    wanted = {"x": [True, False, True], "W": [False] * 3}[frozen]
    assert [W.grad is not None for W in layer.Ws] == wanted
    assert (held.grad is not None) == (frozen == "W")


# Bounds, with a little room: the U's of all modes together (test_products.py), and a product or
# two for each mode of the map.
FORWARD, BACKWARD, FOR_EACH_MODE = 66, 52, 9


@pytest.mark.parametrize("memory_format", FORMATS, ids=str)
@pytest.mark.parametrize("name", LAYERS)
def test_launches(name, memory_format):
    layer = make(name)
    x, grad = inputs(layer, memory_format)
    modes = sum(W is not None for W in layer.Ws)
    with Accelerator() as device:
        device.put_module(layer)
        held, upstream = device.put(x).requires_grad_(), device.put(grad)
        z = layer(held)
        forward = device.count
        torch.autograd.grad(z, [held, *layer.parameters()], upstream)
        backward = device.count - forward
    assert forward <= FORWARD + FOR_EACH_MODE * modes
    assert backward <= BACKWARD + FOR_EACH_MODE * modes


def test_a_wait_that_somebody_adds_to_the_layer_is_caught(monkeypatch):
    """In U, where it would be most tempting: a look whether the iteration has converged."""
    given = factors.inverse_root

    def looks(R, tall):
        T = given(R, tall)
        return T if bool(torch.isfinite(T).all()) else R

    layer = make("OCT-2")
    x, _ = inputs(layer)
    with Accelerator() as device:
        device.put_module(layer)
        held = device.put(x)
        layer(held)
        monkeypatch.setattr(factors, "inverse_root", looks)
        with pytest.raises(Waited):
            layer(held)


def test_the_way_by_the_host_waits():
    """What the device path is for: a W that is too exact for it is caught."""
    layer = make("OCT-2", dtype=torch.float64)
    x, _ = inputs(layer, dtype=torch.float64)
    with Accelerator() as device:
        device.put_module(layer)
        with pytest.raises(Waited):
            layer(device.put(x))


def test_float64_goes_by_the_host():
    layer = make("OCT-2", dtype=torch.float64)
    x, grad = inputs(layer, dtype=torch.float64)
    expected = step(layer, x.clone().requires_grad_(), grad)
    with Accelerator(may_wait=True) as device:
        device.put_module(layer)
        found = step(layer, device.put(x).requires_grad_(), device.put(grad))
    for ours, theirs in zip(found, expected, strict=True):
        assert_close(ours, theirs, 1e-12)


# A device without float64


@pytest.fixture
def without_float64(monkeypatch):
    for file in (dtypes, device_engine):
        monkeypatch.setattr(file, "WITHOUT_FLOAT64", {NAME})


@pytest.mark.usefixtures("without_float64")
@pytest.mark.parametrize("memory_format", FORMATS, ids=str)
@pytest.mark.parametrize("eps_mode", ["absolute", "relative"])
@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("name", LAYERS)
def test_a_device_without_float64(name, training, eps_mode, memory_format):
    layer = make(name, eps_mode=eps_mode).train(training)
    x, grad = inputs(layer, memory_format)
    expected = step(layer, x.clone().requires_grad_(), grad)
    with Accelerator(float64=False, may_wait=True) as device:
        device.put_module(layer)
        found = step(layer, device.put(x).requires_grad_(), device.put(grad))
    for ours, theirs in zip(found, expected, strict=True):
        assert isinstance(ours, PretendTensor)
        assert_close(ours, theirs)


@pytest.mark.usefixtures("without_float64")
def test_looking_at_a_layer_on_a_device_without_float64():
    layer = make("OCT-2").eval()
    x, _ = inputs(layer)
    energy, error = layer.captured_energy(x), layer.orthogonality_error()
    with torch.no_grad():
        z = layer.freeze()(x)
    with Accelerator(float64=False, may_wait=True) as device, torch.no_grad():
        device.put_module(layer)
        held = device.put(x)
        torch.testing.assert_close(host(layer.captured_energy(held)), energy)
        assert layer.orthogonality_error().item() == pytest.approx(error.item(), abs=1e-6)
        torch.testing.assert_close(host(layer.freeze()(held)), z, rtol=1e-4, atol=1e-5)
        kept = [layer(held), layer(held)]
    assert torch.equal(*map(host, kept))


@pytest.mark.usefixtures("without_float64")
@pytest.mark.parametrize("init", INITS)
def test_starts_on_a_device_without_float64(init):
    layer = make("OCT-2")
    with Accelerator(float64=False, may_wait=True) as device:
        device.put_module(layer)
        layer.init = (init,) * 3
        layer.reset_parameters()
        assert isinstance(layer.W1, PretendTensor)
        assert layer.orthogonality_error().item() < 1e-2


@pytest.mark.usefixtures("without_float64")
def test_weights_are_merged_on_a_device_without_float64():
    weight, A = torch.randn(8, 4, 3, 3), torch.randn(8, 5)
    expected = merge.into_conv_before(weight, weight[:, 0, 0, 0], A)
    with Accelerator(float64=False, may_wait=True) as device:
        found = merge.into_conv_before(*map(device.put, (weight, weight[:, 0, 0, 0], A)))
    for ours, theirs in zip(found, expected, strict=True):
        assert torch.equal(host(ours), theirs)


@pytest.mark.usefixtures("without_float64")
@pytest.mark.parametrize("off", [0.0, 1e-6])
def test_outputs_are_compared_on_a_device_without_float64(off):
    a = torch.randn(4, 5)
    expected = compare.difference([a + off], [a], 1e-6, lambda: [0.0])
    with Accelerator(float64=False, may_wait=True) as device:
        found = compare.difference([device.put(a + off)], [device.put(a)], 1e-6, lambda: [0.0])
    assert found == expected


@pytest.mark.usefixtures("without_float64")
def test_a_diverged_W_is_named_at_once_where_the_host_makes_U():
    layer = make("OCT-2")
    x, _ = inputs(layer)
    with torch.no_grad():
        layer.W2[0, 0] = float("nan")
    with Accelerator(float64=False, may_wait=True) as device:
        device.put_module(layer)
        with pytest.raises(DivergedError, match="W2 contains NaN"):
            layer(device.put(x))


# A W that diverged


@pytest.mark.parametrize("training", [True, False])
def test_a_diverged_W_is_named_by_the_layer_one_step_later(training):
    layer = make("OCT-2").train(training)
    transport = Late()
    layer._flag = DeviceFlag(transport)
    x, _ = inputs(layer)
    with torch.no_grad():
        layer.W3[0, 0] = float("inf")
    with Accelerator() as device:
        device.put_module(layer)
        held = device.put(x)
        layer(held)  # nothing is known yet
        layer(held)  # nor has it arrived
        transport.arrived = True
        with pytest.raises(DivergedError, match="W3 contained NaN or infinity in a step before"):
            layer(held)
    assert transport.started["copies"] == 1


def test_the_pretend_device_is_where_the_layer_says_it_is():
    assert layers_file.by_products(torch.empty(2, 1)) is False
    with Accelerator() as device:
        assert layers_file.by_products(device.put(torch.empty(2, 1))) is True
