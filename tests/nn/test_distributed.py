"""Layers under DDP, under FSDP2 and on DTensors give the results of one process.

One pair of processes, which talk through gloo, does all of it: each of them imports torch.
"""

import datetime
import traceback
from pathlib import Path

import pytest
import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.testing import assert_close

from tensorprojection import ProjectionTypeError, TensorProjection, TransposeTensorProjection

pytestmark = pytest.mark.skipif(
    not torch.distributed.is_available(), reason="this torch has no torch.distributed"
)


def build():
    torch.manual_seed(7)
    layer = TensorProjection((4, 6, 6), (3, 3, 6)).double()
    model = nn.Sequential(nn.Conv2d(2, 4, 3), layer, nn.Flatten(), nn.Linear(54, 2)).double()
    return model, torch.randn(7, 2, 8, 8).double(), torch.randn(7, 2).double()


def train(model, x, y, share=1.0):
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    for _ in range(3):
        optimizer.zero_grad()
        # The mean over all samples, whatever part of them is here.
        (share * nn.functional.mse_loss(model(x), y, reduction="sum")).backward()
        optimizer.step()


def on_both(rank, folder):
    """In one of the two: they meet by a file in the folder, and say there how each check ended."""
    from torch.distributed.device_mesh import init_device_mesh

    torch.set_num_threads(1)
    torch.distributed.init_process_group(
        "gloo",
        init_method=f"file://{folder}/rendezvous",
        rank=rank,
        world_size=2,
        timeout=datetime.timedelta(seconds=60),
    )
    mesh = init_device_mesh("cpu", (2,))
    for check in CHECKS:
        try:
            check(rank, mesh)
            said = "passed"
        except Exception:
            said = traceback.format_exc()
        Path(folder, f"{check.__name__}-{rank}").write_text(said)
    torch.distributed.destroy_process_group()


@pytest.fixture(scope="module")
def both_passed(tmp_path_factory):
    """``both_passed(check)``: that it ended well in both processes."""
    folder = tmp_path_factory.mktemp("ranks")
    torch.multiprocessing.spawn(on_both, (str(folder),), nprocs=2)

    def ended_well(check):
        for rank in (0, 1):
            said = (folder / f"{check.__name__}-{rank}").read_text()
            assert said == "passed", said

    return ended_well


def data_parallel(rank, mesh):
    """With half of the samples each, the parameters of one process that has them all."""
    (model, x, y), (twin, _, _) = build(), build()
    x, y = x[:6], y[:6]  # in equal parts: DDP takes the mean over the two
    start = twin[1].W1.detach().clone()
    train(twin, x, y, share=1 / 12)
    part = slice(3 * rank, 3 * rank + 3)
    train(DistributedDataParallel(model), x[part], y[part], share=1 / 6)
    assert (twin[1].W1 - start).abs().max() > 1e-4
    for name, expected in twin.state_dict().items():
        assert_close(model.state_dict()[name], expected, rtol=1e-12, atol=1e-12)


def test_ddp_equals_one_process_with_the_joined_batch(both_passed):
    both_passed(data_parallel)


def fully_sharded(rank, mesh):
    from torch.distributed.fsdp import fully_shard

    model, x, y = build()
    twin, _, _ = build()
    train(twin, x, y, share=1 / 14)
    fully_shard(model[1], mesh=mesh)
    fully_shard(model, mesh=mesh)
    part = slice(0, 3) if rank == 0 else slice(3, 7)
    train(model, x[part], y[part], share=2 / 14)  # FSDP takes the mean over the two
    layer, expected = model[1], twin[1]
    for name, W in expected.named_parameters():
        assert_close(layer.get_parameter(name).full_tensor(), W)
    model.reshard()
    assert hasattr(layer.W1, "full_tensor")
    assert_close(layer.orthogonality_error(), expected.orthogonality_error())
    inner = torch.randn(2, 4, 6, 6, dtype=torch.float64)
    assert_close(layer.freeze()(inner), expected(inner))


def test_fsdp2_equals_one_process(both_passed):
    both_passed(fully_sharded)


def on_dtensors(rank, mesh):
    from torch.distributed.tensor import Replicate, Shard, distribute_tensor

    for kind, small, large in (
        (TensorProjection, (4, 6, 5), (3, 3, 5)),
        (TransposeTensorProjection, (3, 3, 5), (4, 6, 5)),
    ):
        torch.manual_seed(3)
        layer, twin = kind(small, large).double(), kind(small, large).double()
        twin.load_state_dict(layer.state_dict())
        for name, W in list(layer.named_parameters()):
            spread = distribute_tensor(W.detach(), mesh, [Shard(0)])
            layer.register_parameter(name, nn.Parameter(spread))
        x = torch.randn(7, *small, dtype=torch.float64)
        grad = torch.randn(7, *large, dtype=torch.float64)
        x0 = x.clone().requires_grad_()
        twin(x0).backward(grad)
        # The same whole x everywhere; its samples spread, unevenly; a feature axis spread.
        for placement in (None, Replicate(), Shard(0), Shard(1)):
            for training in (True, False):
                layer.train(training)
                layer.zero_grad()
                if placement is None:
                    held, upstream = x.clone().requires_grad_(), grad
                else:
                    held = distribute_tensor(x, mesh, [placement]).requires_grad_()
                    upstream = distribute_tensor(
                        grad, mesh, [Replicate() if placement == Shard(1) else placement]
                    )
                z = layer(held)
                z.backward(upstream)
                assert hasattr(z, "full_tensor") == (placement is not None)
                assert_close(whole(z), twin(x))
                assert_close(whole(held.grad), x0.grad)
                for name, W in twin.named_parameters():
                    assert_close(layer.get_parameter(name).grad.full_tensor(), W.grad)
                with torch.no_grad():
                    assert_close(whole(layer(held)), twin(x))
        assert_close(layer.orthogonality_error(), twin.orthogonality_error())
        assert_close(layer.freeze()(x), twin(x))
        if kind is TensorProjection:
            assert_close(layer.reconstruct(x), twin.reconstruct(x))
        with pytest.raises(ProjectionTypeError, match="Expected W1 to be a DTensor"):
            twin(distribute_tensor(x, mesh, [Replicate()]))


def whole(x):
    return x.full_tensor() if hasattr(x, "full_tensor") else x


def test_a_layer_on_DTensors_equals_one_process(both_passed):
    both_passed(on_dtensors)


CHECKS = (data_parallel, fully_sharded, on_dtensors)
