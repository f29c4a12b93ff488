"""Layers for a batch that is divided: with one process they are torch's own, with more as well."""

import os
import socket

import numpy as np
import pytest
import torch
from torch import distributed, multiprocessing, nn

from tensorprojection.studies.models.unet import unet
from tensorprojection.studies.trial.group import Group
from tensorprojection.studies.trial.losses import dice_loss
from tensorprojection.studies.trial.shared_layers import share_layers


@pytest.mark.parametrize(
    ("batch", "size", "sizes"), [(5, 2, [3, 2]), (4, 2, [2, 2]), (1, 3, [1, 0, 0])]
)
def test_shares_are_the_batch_in_its_order(batch, size, sizes):
    rows = np.arange(10, 10 + batch)
    groups = [Group(rank, size) for rank in range(size)]
    shares = [group.share(rows) for group in groups]
    assert [len(share) for share in shares] == sizes == groups[0].sizes
    assert np.concatenate(shares).tolist() == rows.tolist()


def test_batch_norm_is_torchs():
    torch.manual_seed(0)
    x = torch.randn(6, 3, 4, 5, dtype=torch.float64) * 3 + 1
    expected = nn.BatchNorm2d(3, eps=1e-3, momentum=0.01).double()
    shared = nn.Sequential(nn.BatchNorm2d(3, eps=1e-3, momentum=0.01).double())
    names = list(shared.state_dict())
    group = Group(0, 1)
    share_layers(shared, group)
    assert list(shared.state_dict()) == names
    inputs = []
    for layer in (expected, shared):
        group.share(np.arange(6))
        inputs.append(x.clone().requires_grad_())
        layer(inputs[-1]).pow(3).sum().backward()
    assert torch.allclose(*(x.grad for x in inputs))
    assert torch.allclose(expected.weight.grad, shared[0].weight.grad)
    for name, buffer in expected.named_buffers():
        assert torch.allclose(buffer, dict(shared[0].named_buffers())[name]), name
    assert torch.allclose(expected.eval()(x), shared.eval()(x))


def test_dropout_is_torchs_to_the_bit():
    x = torch.randn(6, 40)
    group = Group(0, 1)
    shared = share_layers(nn.Sequential(nn.Dropout(0.5)), group)
    group.share(np.arange(6))
    torch.manual_seed(1)
    expected = nn.Dropout(0.5)(x)
    torch.manual_seed(1)
    assert torch.equal(shared(x), expected)
    assert torch.equal(shared.eval()(x), x)


def test_a_layer_that_cannot_be_shared_is_refused():
    with pytest.raises(TypeError, match="Expected layers that can be shared by several devices"):
        share_layers(nn.Sequential(nn.BatchNorm1d(3)), Group(0, 1))


# Two processes


def gradients(batch, group=None):
    """Of the Dice loss of the paper's U-Net, in float64; with a group, as several devices do."""
    torch.manual_seed(0)
    network = unet("tpl", 4, 32).double().train()
    x = torch.rand(batch, 3, 32, 32, dtype=torch.float64)
    y = (torch.rand(batch, 1, 32, 32) > 0.8).double()
    if group is None:
        loss = dice_loss(network(x), y)
    else:
        share_layers(network, group)
        mine = group.share(np.arange(batch))
        loss = dice_loss(group.gather(network(x[mine])), group.gather(y[mine]))
    loss.backward()
    found = {name: parameter.grad for name, parameter in network.named_parameters()}
    if group is not None:
        for gradient in found.values():
            distributed.all_reduce(gradient)
            gradient /= group.size
    return {"loss": loss.detach(), **found, **dict(network.named_buffers())}


def compare(rank, port):
    torch.set_num_threads(1)
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    distributed.init_process_group("gloo", rank=rank, world_size=2)
    for batch in (5, 1):  # one more than the other's; and none at all in the second
        one, two = gradients(batch), gradients(batch, Group(rank, 2))
        for name, expected in one.items():
            torch.testing.assert_close(two[name], expected, rtol=1e-9, atol=1e-12, msg=name)
    distributed.destroy_process_group()


def test_two_processes_have_the_gradients_of_one():
    """BatchNorm over the whole batch, and a Dice loss that is no mean over samples."""
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        port = found.getsockname()[1]
    multiprocessing.spawn(compare, (port,), nprocs=2)
