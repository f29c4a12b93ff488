"""U and its gradients by products run on the device without a wait, in few launches."""

import pytest
import torch
from accelerator import Accelerator, PretendTensor, Refused, host
from late import Late

from tensorprojection import DivergedError
from tensorprojection.engine.device import (
    DeviceFlag,
    modes_gradients,
    modes_values,
    polar_by_products,
)
from tensorprojection.engine.device.modes import in_stacks

EPS = {False: 1e-3, True: 1e-5}
LAYERS = {
    "OCT-2": [(32, 20), (12, 6), (12, 6)],
    "OCT-1": [(12, 6), (12, 6)],
    "chest": [(1024, 64)],
    "U-Net": [(16, 8), (16, 8)],
    "large and small": [(256, 128), (16, 8), (15, 7)],
}


def draw(shapes, dtype=torch.float32):
    return [(torch.randn(shape) * 0.05).to(dtype) for shape in shapes]


def run(Ws, Ds, eps, relative, dtype=torch.float32):
    Us, found = modes_values(Ws, eps, relative, dtype)
    return Us, modes_gradients(Ds, found, eps, relative, [W.dtype for W in Ws])


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("relative", [False, True])
@pytest.mark.parametrize("layer", LAYERS)
def test_no_wait_and_the_same_numbers(layer, relative, dtype):
    Ws, Ds = draw(LAYERS[layer], dtype), draw(LAYERS[layer], dtype)
    eps = [EPS[relative] * (k + 1) for k in range(len(Ws))]
    expected = run(Ws, Ds, eps, relative, dtype)
    with Accelerator() as device:
        found = run(list(map(device.put, Ws)), list(map(device.put, Ds)), eps, relative, dtype)
    for ours, theirs in zip(found, expected, strict=True):
        for a, b in zip(ours, theirs, strict=True):
            assert isinstance(a, PretendTensor)
            assert torch.equal(host(a), b)


# What a launch costs on a GPU is about the same for all of these sizes, so their number is what a
# layer costs. Bounds, with a little room.
FORWARD, BACKWARD, A_MODE = 66, 52, 3


@pytest.mark.parametrize("relative", [False, True])
@pytest.mark.parametrize("layer", LAYERS)
def test_launches(layer, relative):
    """They grow with the stacks, of which a layer of small modes has one, hardly with the modes."""
    shapes = LAYERS[layer]
    stacks = 2 if layer == "large and small" else 1
    eps = [EPS[relative]] * len(shapes)
    with Accelerator() as device:
        Ws, Ds = (list(map(device.put, draw(shapes))) for _ in range(2))
        _, found = modes_values(Ws, eps, relative, torch.float32)
        forward = device.count
        modes_gradients(Ds, found, eps, relative, [torch.float32] * len(shapes))
        backward = device.count - forward
    assert forward <= FORWARD * stacks + A_MODE * len(shapes)
    assert backward <= BACKWARD * stacks + A_MODE * len(shapes)


def test_nothing_but_float64_products():
    """TF32 has no say: every product is of float64."""
    seen = []

    class Types(Accelerator):
        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            if func._schema.name in ("aten::mm", "aten::bmm", "aten::baddbmm", "aten::addmm"):
                seen.extend(a.dtype for a in args if isinstance(a, torch.Tensor))
            return super().__torch_dispatch__(func, types, args, kwargs)

    with Types() as device:
        Ws, Ds = (list(map(device.put, draw(LAYERS["OCT-2"]))) for _ in range(2))
        run(Ws, Ds, [1e-3] * 3, False)
    assert set(seen) == {torch.float64}


@pytest.mark.parametrize("relative", [False, True])
def test_derivatives_to_the_second_order(relative):
    W0, D0 = draw([(7, 4), (7, 4)])

    def grads(W, D):
        U = polar_by_products(W, 0.1, relative, torch.float32)
        (g,) = torch.autograd.grad(U, W, D, create_graph=True)
        return U, g, *torch.autograd.grad(g.square().sum(), W)

    expected = grads(W0.clone().requires_grad_(), D0)
    with Accelerator() as device:
        found = grads(device.put(W0).requires_grad_(), device.put(D0))
    for a, b in zip(found, expected, strict=True):
        torch.testing.assert_close(host(a), b.detach())


def test_a_device_without_float64_is_not_for_this():
    with Accelerator(float64=False) as device, pytest.raises(Refused, match="no float64"):
        modes_values([device.put(torch.randn(4, 2))], [1e-3], False, torch.float32)


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_a_diverged_W_is_named_when_its_norm_has_arrived(bad):
    shapes, names = LAYERS["large and small"], ["W1", "W2", "W3"]
    Ws = draw(shapes)
    Ws[2][1, 0] = bad
    transport = Late()
    flag = DeviceFlag(transport)
    with Accelerator() as device:
        flag.check()  # the first step: nothing is known
        _, found = modes_values(list(map(device.put, Ws)), [1e-3] * 3, False, torch.float32)
        flag.put(in_stacks(shapes, names), [f.size for f in found])
        flag.check()  # the second: not there yet
        transport.arrived = True
        with pytest.raises(DivergedError, match="W3 contained NaN or infinity in a step before"):
            flag.check()
        flag.check()  # said once
