"""torch.compile around torch.func: what nn.Linear can be compiled in, the layer can."""

import pytest
import torch
from torch.func import functional_call, grad, jacrev, vjp, vmap
from torch.testing import assert_close

from tensorprojection import TensorProjection

pytestmark = [
    pytest.mark.filterwarnings("ignore:.*should not be instantiated:DeprecationWarning"),
    pytest.mark.filterwarnings(r"ignore:`torch\.jit\.script:DeprecationWarning"),
]

layer = TensorProjection((8, 6), (4, None))  # a second W would double the graphs


def loss(parameters, x):
    return functional_call(layer, parameters, (x,)).square().sum()


def stacked(parameters):
    return {name: torch.stack([W, 2 * W + 1]) for name, W in parameters.items()}


CASES = {
    "vmap over the input": lambda p, x: vmap(lambda one: functional_call(layer, p, (one,)))(x),
    "vmap over W": lambda p, x: vmap(loss, (dict.fromkeys(p, 0), None))(stacked(p), x),
    "grad": lambda p, x: grad(loss)(p, x),
    "grad by the input": lambda p, x: grad(loss, argnums=1)(p, x),
    "gradients per sample": lambda p, x: vmap(grad(loss), (None, 0))(p, x),
    "jacrev": lambda p, x: jacrev(loss)(p, x),
    "vjp": lambda p, x: vjp(lambda p: loss(p, x), p)[1](torch.ones(())),
}


# In eval mode the layer keeps its U's, and a transform must not see those of another W. That is
# the same question in every case; all of them compile for a minute.
SHORT = [("vmap over the input", False), ("vmap over W", True), ("gradients per sample", True)]


@pytest.mark.parametrize(
    ("name", "training"),
    [
        pytest.param(name, training, marks=[] if (name, training) in SHORT else pytest.mark.heavy)
        for name in CASES
        for training in (True, False)
        if training or (name, training) in SHORT
    ],
)
def test_compiled_in_one_piece_and_the_same(name, training):
    case = CASES[name]
    torch._dynamo.reset()
    layer.train(training)
    generator = torch.Generator().manual_seed(1)
    p = {name: torch.randn(W.shape, generator=generator) for name, W in layer.named_parameters()}
    x = torch.randn(5, 8, 6, generator=generator)
    compiled = torch.compile(case, backend="aot_eager", fullgraph=True)
    assert_close(compiled(p, x), case(p, x), rtol=1e-4, atol=1e-5)
