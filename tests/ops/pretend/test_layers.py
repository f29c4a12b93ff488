"""Layers run on the device without a synchronization, in few launches.

On a device without float64, and for a W of type float64, the host helps.
"""

import pytest
import torch
from accelerator import NAME, Accelerator, PretendTensor, Waited, host
from implementations import implementation

import tensorprojection as tp
from tensorprojection.init import INITS
from tensorprojection.ops import dtypes, matmul_only

LAYERS = {
    "OCT-2": lambda **kw: tp.TensorProjection((32, 12, 12), (20, 6, 6), **kw),
    "OCT-1": lambda **kw: tp.TensorProjection((32, 12, 12), (32, 6, 6), **kw),
    "chest": lambda **kw: tp.TensorProjection((1024, 5, 5), (64, 5, 5), **kw),
    "U-Net up": lambda **kw: tp.TransposeTensorProjection((16, 8, 8), (16, 16, 16), **kw),
    "large and small": lambda **kw: tp.TensorProjection((256, 16, 15), (128, 8, 7), **kw),
}
FORMATS = [torch.contiguous_format, torch.channels_last]


def make(name, **options):
    return LAYERS[name](**options)


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
    with implementation("matmul-only"):
        return step(layer, x.clone().requires_grad_(), grad)


@pytest.mark.parametrize("memory_format", FORMATS, ids=str)
@pytest.mark.parametrize("eps_mode", ["absolute", "relative"])
@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("name", LAYERS)
def test_a_step_does_not_synchronize(name, training, eps_mode, memory_format):
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
def test_eval_without_gradients_does_not_synchronize_and_sees_a_changed_W(name):
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
def test_half_types_do_not_synchronize(dtype):
    layer = make("OCT-2", dtype=dtype)
    x, grad = inputs(layer, dtype=dtype)
    with Accelerator() as device:
        device.put_module(layer)
        z, *grads = step(layer, device.put(x).requires_grad_(), device.put(grad))
    assert {t.dtype for t in (z, *grads)} == {dtype}


def test_a_gradient_of_the_gradient_does_not_synchronize():
    layer = make("OCT-2")
    x, grad = inputs(layer)

    def second(x, grad):
        (dx,) = torch.autograd.grad(layer(x), x, grad, create_graph=True)
        return torch.autograd.grad(dx.pow(3).sum(), list(layer.parameters()))

    with implementation("matmul-only"):
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


# A launch costs about the same for all of these sizes, so their number is what a layer costs.
# Forward and backward of a contiguous float32 input, with an absolute and with a relative ε.
LAUNCHES = {
    "OCT-2": [(72, 61), (78, 71)],
    "OCT-1": [(69, 55), (73, 63)],
    "chest": [(65, 48), (69, 56)],
    "U-Net up": [(68, 56), (72, 64)],
    "large and small": [(133, 103), (142, 120)],
}


@pytest.mark.parametrize("memory_format", FORMATS, ids=str)
@pytest.mark.parametrize("eps_mode", ["absolute", "relative"])
@pytest.mark.parametrize("name", LAYERS)
def test_launches(name, eps_mode, memory_format):
    """The U's of all small modes take as many as one; a product or two for each mode of the map."""
    layer = make(name, eps_mode=eps_mode)
    x, grad = inputs(layer, memory_format)
    with Accelerator() as device:
        device.put_module(layer)
        held, upstream = device.put(x).requires_grad_(), device.put(grad)
        z = layer(held)
        forward = device.count
        torch.autograd.grad(z, [held, *layer.parameters()], upstream)
        backward = device.count - forward
    most_forward, most_backward = LAUNCHES[name][eps_mode == "relative"]
    room = 0 if memory_format is torch.contiguous_format else 3
    assert forward <= most_forward
    assert backward <= most_backward + room


def test_the_polar_factor_takes_float64_products_only():
    """Every product is of float64, so TF32 cannot touch U."""
    seen = []

    class Types(Accelerator):
        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            if func._schema.name in ("aten::mm", "aten::bmm", "aten::baddbmm", "aten::addmm"):
                seen.extend(a.dtype for a in args if isinstance(a, torch.Tensor))
            return super().__torch_dispatch__(func, types, args, kwargs)

    with Types() as device:
        W = device.put(torch.randn(32, 20)).requires_grad_()
        tp.functional.polar(W).sum().backward()
    assert set(seen) == {torch.float64}


def test_a_synchronization_in_the_iteration_is_caught(monkeypatch):
    """In U, where it would be most tempting: a test for convergence."""
    given = matmul_only._inverse_root

    def looks(R, *rest):
        T = given(R, *rest)
        return T if bool(torch.isfinite(T).all()) else R

    layer = make("OCT-2")
    x, _ = inputs(layer)
    with Accelerator() as device:
        device.put_module(layer)
        held = device.put(x)
        layer(held)
        monkeypatch.setattr(matmul_only, "_inverse_root", looks)
        with pytest.raises(Waited):
            layer(held)


def test_a_W_of_type_float64_synchronizes():
    layer = make("OCT-2", dtype=torch.float64)
    x, _ = inputs(layer, dtype=torch.float64)
    with Accelerator() as device:
        device.put_module(layer)
        with pytest.raises(Waited):
            layer(device.put(x))


def test_a_W_of_type_float64_is_decomposed_on_the_host():
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
    monkeypatch.setattr(dtypes, "WITHOUT_FLOAT64", {NAME})


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
def test_inits_on_a_device_without_float64(init):
    layer = make("OCT-2")
    with Accelerator(float64=False, may_wait=True) as device:
        device.put_module(layer)
        layer.init = (init,) * 3
        layer.reset_parameters()
        assert isinstance(layer.W1, PretendTensor)
        assert layer.orthogonality_error().item() < 1e-2


# A W that diverged


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
@pytest.mark.parametrize("name", ["OCT-2", "large and small"])
def test_a_diverged_W_gives_nan_and_spoils_no_other_U(name, bad):
    layer = make(name)
    x, grad = inputs(layer)
    with torch.no_grad():
        layer.W3[0, 0] = bad
    with Accelerator() as device:
        device.put_module(layer)
        z, *grads = step(layer, device.put(x).requires_grad_(), device.put(grad))
        Us = layer.projections()
    assert host(z).isnan().all()
    assert host(grads[-1]).isnan().all()
    assert [bool(host(U).isfinite().all()) for U in Us] == [True, True, False]
