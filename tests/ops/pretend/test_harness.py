"""The simulated accelerator itself: every synchronization is an error, all else runs."""

import pytest
import torch
from accelerator import Accelerator, PretendTensor, Refused, Waited, host
from torch import nn

WAITS = {
    "item": lambda x: x.sum().item(),
    "float": lambda x: float(x.sum()),
    "int": lambda x: int(x.sum()),
    "bool": lambda x: bool((x > 0).all()),
    "if": lambda x: 1 if x.sum() else 0,
    "tolist": lambda x: x.tolist(),
    "numpy": lambda x: x.numpy(),
    "equal": lambda x: torch.equal(x, x),
    "allclose": lambda x: torch.allclose(x, x),
    "nonzero": lambda x: x.nonzero(),
    "where with one argument": lambda x: torch.where(x > 0),
    "masked_select": lambda x: x.masked_select(x > 0),
    "mask": lambda x: x[x > 0],
    "write by a mask": lambda x: x.clone().__setitem__(x > 0, x.sum()),
    "unique": lambda x: x.unique(),
    "repeat_interleave": lambda x: x.repeat_interleave((x[:, 0] > 0).long(), 0),
    "eigh": lambda x: torch.linalg.eigh(x),
    "eigvalsh": lambda x: torch.linalg.eigvalsh(x),
    "eig": lambda x: torch.linalg.eig(x),
    "svd": lambda x: torch.linalg.svd(x),
    "svdvals": lambda x: torch.linalg.svdvals(x),
    "spectral norm": lambda x: torch.linalg.matrix_norm(x, 2),
    "inv": lambda x: torch.linalg.inv(x),
    "solve": lambda x: torch.linalg.solve(x, x),
    "cholesky": lambda x: torch.linalg.cholesky(x @ x.mT),
    "cpu": lambda x: x.cpu(),
    "to": lambda x: x.to("cpu", torch.float64),
    "to by a tensor": lambda x: x.to(torch.zeros(1)),
    "copy to the host": lambda x: torch.zeros(3, 3).copy_(x),
    "copy from the host": lambda x: x.clone().copy_(torch.zeros(3, 3)),
    "from the host": lambda x: torch.zeros(3, 3).to(x.device),
    "numbers of a list": lambda x: torch.tensor([1.0, 2.0], device=x.device),
    "as_tensor": lambda x: torch.as_tensor([1.0, 2.0], device=x.device),
}


@pytest.fixture
def x():
    return torch.randn(3, 3) + 3 * torch.eye(3)


@pytest.mark.parametrize("kind", WAITS)
def test_a_synchronization_is_an_error(kind, x):
    WAITS[kind](x.clone())  # on the host there is nothing to wait for
    with Accelerator() as device:
        held = device.put(x)
        with pytest.raises(Waited):
            WAITS[kind](held)


def test_a_synchronization_in_a_backward_pass_is_an_error(x):
    class Waits(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return x * 2

        @staticmethod
        def backward(ctx, grad):
            return grad * grad.sum().item()

    with Accelerator() as device:
        y = Waits.apply(device.put(x.requires_grad_())).sum()
        with pytest.raises(Waited):
            y.backward()


FINE = {
    "products": lambda x: x @ x.mT + x.mm(x),
    "batched": lambda x: torch.baddbmm(x[None], x[None], x[None], beta=2.0),
    "inv_ex": lambda x: torch.linalg.inv_ex(x)[0],
    "cholesky_ex": lambda x: torch.linalg.cholesky_ex(x @ x.mT)[0],
    "norm": lambda x: torch.linalg.vector_norm(x, dim=-1),
    "factories": lambda x: x + torch.eye(3, device=x.device),
    "new": lambda x: x.new_zeros(3) + x.new_full((3,), 2.0) + torch.ones_like(x),
    "where": lambda x: torch.where(x > 0, x, -x),
    "in place": lambda x: x.clone().mul_(2).add_(x),
    "a part in place": lambda x: x.clone()[1:].zero_() + x[:2],
    "another shape in place": lambda x: x.clone().unsqueeze_(1).transpose_(0, 2).squeeze_(1),
    "row times matrix": lambda x: x[0] @ x,
    "out": lambda x: torch.mm(x, x, out=torch.empty(3, 3, device=x.device)),
    "a number": lambda x: torch.full((3,), 2.0, device=x.device),
    "a number of the host": lambda x: x * torch.tensor(2.0),
    "types": lambda x: x.double() + x.bfloat16(),
    "index": lambda x: x[1:, ::2].movedim(0, 1).reshape(-1),
    "convolution": lambda x: torch.conv2d(x[None, None], x[None, None]),
}


@pytest.mark.parametrize("kind", FINE)
def test_without_a_synchronization_results_are_right(kind, x):
    expected = FINE[kind](x)
    with Accelerator() as device:
        y = FINE[kind](device.put(x))
    assert isinstance(y, PretendTensor)
    assert y.device.type == "pretend"
    assert (y.shape, y.dtype, y.stride()) == (expected.shape, expected.dtype, expected.stride())
    torch.testing.assert_close(host(y), expected)


def test_a_view_shares_memory(x):
    with Accelerator() as device:
        held = device.put(x)
        held.mT[0].fill_(7.0)
    expected = x.clone()
    expected[:, 0] = 7.0
    assert torch.equal(host(held), expected)


def test_strides_are_those_of_the_memory_format():
    x = torch.randn(2, 3, 4, 5).to(memory_format=torch.channels_last)
    with Accelerator() as device:
        held = device.put(x)
        assert held.is_contiguous(memory_format=torch.channels_last)
        assert not held.is_contiguous()


def test_tensors_of_both_sides_are_refused(x):
    with Accelerator() as device, pytest.raises(Refused, match="both host and device"):
        device.put(x) @ x


def test_outside_of_its_context_nothing_runs(x):
    with Accelerator() as device:
        held = device.put(x)
    with pytest.raises(Refused, match="outside"):
        held + held


def test_autograd_to_the_second_order(x):
    def grads(x):
        (g,) = torch.autograd.grad((x @ x).sin().sum(), x, create_graph=True)
        return g, *torch.autograd.grad(g.square().sum(), x)

    expected = grads(x.clone().requires_grad_())
    with Accelerator() as device:
        found = grads(device.put(x).requires_grad_())
    for a, b in zip(found, expected, strict=True):
        torch.testing.assert_close(host(a), b.detach())


@pytest.mark.parametrize("optimizer", [torch.optim.SGD, torch.optim.AdamW])
def test_a_linear_layer_trains(optimizer):
    data, target = torch.randn(8, 4), torch.randn(8, 2)

    def train(model, data, target):
        steps = optimizer(model.parameters(), lr=0.1)
        for _ in range(3):
            steps.zero_grad()
            (model(data) - target).square().mean().backward()
            steps.step()
        return model

    model = nn.Linear(4, 2)
    start = {name: p.clone() for name, p in model.state_dict().items()}
    expected = train(model, data, target)
    other = nn.Linear(4, 2)
    other.load_state_dict(start)
    with Accelerator() as device:
        found = train(device.put_module(other), device.put(data), device.put(target))
    for a, b in zip(found.parameters(), expected.parameters(), strict=True):
        assert a.device.type == "pretend"
        assert not torch.equal(b, start["weight" if b.ndim == 2 else "bias"])
        torch.testing.assert_close(host(a), b.detach())


def test_launches_are_counted(x):
    with Accelerator() as device:
        held = device.put(x)
        assert device.count == 0
        held.mT.reshape(9)[1:].view(2, 4).detach()  # looks at memory, and one copy
        assert device.launches == {"aten.clone": 1}
        held @ held + 1
        torch.zeros(3, device=held.device)
        torch.empty(3, device=held.device)
        torch.empty_like(held)
    assert device.launches == {"aten.clone": 1, "aten.mm": 1, "aten.add": 1, "aten.zeros": 1}
    assert device.count == 4


def test_launches_of_a_backward_pass_are_counted(x):
    with Accelerator() as device:
        y = (device.put(x).requires_grad_() * 2).sum()
        before = device.count
        y.backward()
        assert device.count > before


def test_what_the_host_does_is_not_counted(x):
    with Accelerator() as device:
        x @ x
        assert x.sum().item() != 0
    assert device.count == 0


DOUBLES = {
    "double": lambda x: x.double(),
    "to": lambda x: x.to(torch.float64),
    "factory": lambda x: torch.zeros(3, dtype=torch.float64, device=x.device),
    "sum": lambda x: x.sum(dtype=torch.float64),
}


@pytest.mark.parametrize("kind", DOUBLES)
def test_a_device_without_float64_refuses_it(kind, x):
    with Accelerator(float64=False) as device, pytest.raises(Refused, match="no float64"):
        DOUBLES[kind](device.put(x))
    with Accelerator(float64=False) as device, pytest.raises(Refused, match="no float64"):
        device.put(x.double())
    with Accelerator() as device:
        assert DOUBLES[kind](device.put(x)).dtype == torch.float64


def test_where_waiting_is_allowed_numbers_come_and_go(x):
    with Accelerator(may_wait=True) as device:
        held = device.put(x)
        here = held.cpu()
        assert type(here) is torch.Tensor
        assert torch.equal(here, x)
        assert (held > 0).all().item() == (x > 0).all().item()
        there = (2 * here).to(held.device)
        assert isinstance(there, PretendTensor)
        held.copy_(3 * here)
        place = torch.zeros(3, 3)
        assert place.copy_(held) is place
    assert torch.equal(host(there), 2 * x)
    assert torch.equal(place, 3 * x)
    assert torch.equal(host(held), 3 * x)


def test_without_float64_a_copy_cannot_convert_to_it(x):
    with Accelerator(float64=False, may_wait=True) as device:
        held = device.put(x)
        assert held.cpu().double().dtype == torch.float64
        for kind in (
            lambda: held.to("cpu", torch.float64),
            lambda: torch.zeros(3, 3, dtype=torch.float64).copy_(held),
            lambda: held.copy_(x.double()),
            lambda: x.double().to(held.device),
        ):
            with pytest.raises(Refused, match="no float64"):
                kind()
