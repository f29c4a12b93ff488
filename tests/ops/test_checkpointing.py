"""Selective activation checkpointing, and parameters that are swapped after a compiled call."""

import copy
from functools import partial

import pytest
import torch
from torch.utils.checkpoint import (
    CheckpointPolicy,
    checkpoint,
    create_selective_checkpoint_contexts,
)

import tensorprojection as tp

aten, ours = torch.ops.aten, torch.ops.tensorprojection
PRODUCTS = {aten.mm.default, aten.bmm.default, aten.addmm.default, aten.baddbmm.default}


def save(kept, ctx, op, *args, **kwargs):
    return CheckpointPolicy.MUST_SAVE if op in kept else CheckpointPolicy.PREFER_RECOMPUTE


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("kept", ["products", "every op", "nothing"])
def test_selective_checkpointing(kept, training, dtype):
    """In eval mode the cache is cold in the forward pass, and would be warm when it runs again."""
    ops = {
        "products": PRODUCTS,
        "every op": {*PRODUCTS, ours.polar.default, ours.multilinear.default},
        "nothing": set(),
    }[kept]
    layer = tp.TensorProjection((12, 9), (6, 4), dtype=dtype).train(training)
    layer.requires_grad_(training)
    x = torch.randn(5, 12, 9, dtype=dtype, requires_grad=True)
    wanted = [x, *(W for W in layer.parameters() if W.requires_grad)]
    plain = copy.deepcopy(layer)
    same = [x, *(W for W in plain.parameters() if W.requires_grad)]
    expected = torch.autograd.grad(plain(x).tanh().sum(), same)
    contexts = partial(create_selective_checkpoint_contexts, partial(save, ops))
    z = checkpoint(lambda x: layer(x).tanh(), x, use_reentrant=False, context_fn=contexts)
    for found, right in zip(torch.autograd.grad(z.sum(), wanted), expected, strict=True):
        torch.testing.assert_close(found, right)


@pytest.mark.skipif(
    torch.__version__ < "2.13", reason="torch 2.8 cannot swap after a compiled nn.Linear either"
)
# A warning of Dynamo about itself.
@pytest.mark.filterwarnings("ignore:.*should not be instantiated:DeprecationWarning")
def test_parameters_are_swapped_after_a_compiled_call():
    layer = tp.TensorProjection((12, 9), (6, 4)).eval()
    x = torch.randn(5, 12, 9)
    torch.compiler.reset()
    compiled = torch.compile(layer, backend="aot_eager")
    with torch.no_grad():
        compiled(x)
        layer(x)
        other = torch.nn.Parameter(torch.randn(12, 6))
        values = other.clone()
        torch.utils.swap_tensors(layer.W1, other)
        assert torch.equal(layer.W1, values)
        right = copy.deepcopy(layer)(x)
        torch.testing.assert_close(layer(x), right)
        torch.testing.assert_close(compiled(x), right)
