"""Torch's own operations give what the compiled kernels give."""

from dataclasses import replace

import pytest
import torch

from tensorprojection.bench.cases import CASES, FORMATS
from tensorprojection.engine import dispatch
from tensorprojection.engine.torch_engine import TORCH

from .by_kernels import tiled

pytestmark = pytest.mark.usefixtures("kernels")


@pytest.mark.parametrize("memory_format", FORMATS)
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_output_and_gradients_agree(case, memory_format, assert_same_gradients):
    layer, x = case.layer(), replace(case, batch=2).input(memory_format)
    Us = layer.projections()
    grad = torch.randn(2, *case.target)

    def step():
        z = layer(x)
        return [z, *torch.autograd.grad(z, [x, *layer.parameters()], grad)]

    assert tiled(x, Us).program is not None
    compiled = step()
    with dispatch.use(TORCH):
        assert_same_gradients(step(), compiled)
