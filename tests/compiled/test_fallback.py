"""Torch's own operations give what the compiled kernels give."""

from dataclasses import replace

import pytest
import torch

from tensorprojection import layout
from tensorprojection.bench.cases import CASES, FORMATS
from tensorprojection.compiled import polar
from tensorprojection.layout import layout_of

pytestmark = pytest.mark.usefixtures("kernels")


def without_kernels(monkeypatch):
    for module in (layout, polar):
        monkeypatch.setattr(module, "serves", lambda x: False)


@pytest.mark.parametrize("memory_format", FORMATS)
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_output_and_gradients_agree(case, memory_format, monkeypatch, assert_same_gradients):
    layer, x = case.layer(), replace(case, batch=2).input(memory_format)
    Us = layer.projections()
    grad = torch.randn(2, *case.target)

    def step():
        z = layer(x)
        return [z, *torch.autograd.grad(z, [x, *layer.parameters()], grad)]

    assert layout_of(x, Us).program is not None
    compiled = step()
    without_kernels(monkeypatch)
    assert layout_of(x, Us).program is None
    assert_same_gradients(step(), compiled)


@pytest.mark.parametrize("shape", [(12, 6), (64, 64), (1024, 64)], ids=str)
def test_no_W_is_small_without_kernels(shape, monkeypatch):
    W = torch.randn(shape)
    assert polar.is_small(W)
    without_kernels(monkeypatch)
    assert not polar.is_small(W)
