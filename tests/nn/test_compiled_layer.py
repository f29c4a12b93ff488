"""torch.compile traces a layer in one graph, which has custom ops each way and nothing else."""

import pytest
import torch
from implementations import implementation
from torch._dynamo.backends.common import aot_autograd
from torch._functorch.aot_autograd import make_boxed_func
from torch.testing import assert_close

import tensorprojection as tp

pytestmark = [
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
    pytest.mark.filterwarnings("ignore::FutureWarning"),
]

LAYERS = {
    "all modes": lambda **kw: tp.TensorProjection((8, 6, 5), (5, 3, 2), **kw),
    "one left alone": lambda **kw: tp.TensorProjection((8, 6, 5), (8, 3, 2), **kw),
    "transposed": lambda **kw: tp.TransposeTensorProjection((5, 3, 2), (8, 6, 5), **kw),
    "too wide for the kernels": lambda **kw: tp.TensorProjection((80, 4), (70, 2), **kw),
}
FORWARD = ["tensorprojection.polar.default", "tensorprojection.multilinear.default"]
BACKWARD = [
    "tensorprojection.multilinear_backward.default",
    "tensorprojection.polar_backward.default",
]


@pytest.fixture(autouse=True)
def fresh_compiler():
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


@pytest.fixture(params=["kernels", "torch", "matmul-only"])
def name_of_implementation(request):
    with implementation(request.param):
        yield request.param


def compiled(module):
    """The module, and the library's custom ops in its forward and its backward graph."""
    calls = {"forward": [], "backward": []}

    def recording(kind):
        def compiler(graph, _):
            names = [str(n.target) for n in graph.graph.nodes if n.op == "call_function"]
            calls[kind] += [name for name in names if name.startswith("tensorprojection")]
            return make_boxed_func(graph.forward)

        return compiler

    backend = aot_autograd(fw_compiler=recording("forward"), bw_compiler=recording("backward"))
    return torch.compile(module, backend=backend, fullgraph=True, dynamic=False), calls


def step(run, layer, x, grad):
    z = run(x)
    return z, *torch.autograd.grad(z, [x, *layer.parameters()], grad)


@pytest.mark.parametrize("name", LAYERS)
def test_one_graph_of_custom_ops(name, name_of_implementation):
    assert_one_graph(LAYERS[name](), name_of_implementation)


@pytest.mark.parametrize("name", LAYERS)
def test_one_graph_in_eval_mode(name):
    assert_one_graph(LAYERS[name]().eval())


@pytest.mark.parametrize("used", ["kernels", "torch"])
@pytest.mark.parametrize("name", ["all modes", "one left alone", "transposed"])
def test_one_graph_for_channels_last(name, used):
    with implementation(used):
        assert_one_graph(LAYERS[name](), memory_format=torch.channels_last)


def assert_one_graph(
    layer, name_of_implementation="kernels", memory_format=torch.contiguous_format
):
    x, grad = torch.randn(3, *layer.in_shape), torch.randn(3, *layer.out_shape)
    x = x.to(memory_format=memory_format).requires_grad_()
    run, calls = compiled(layer)
    found, expected = step(run, layer, x, grad), step(layer, layer, x, grad)
    for ours, theirs in zip(found, expected, strict=True):
        if name_of_implementation != "matmul-only":
            assert ours.stride() == theirs.stride()
        assert_close(ours, theirs, rtol=1e-4, atol=1e-5)
    if name_of_implementation == "matmul-only":  # an accelerator's compiler gets plain products
        assert calls == {"forward": [], "backward": []}
    else:
        assert calls == {"forward": FORWARD, "backward": BACKWARD}


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
def test_other_types(dtype):
    layer = LAYERS["all modes"](dtype=dtype)
    x, grad = torch.randn(3, 8, 6, 5, dtype=dtype), torch.randn(3, 5, 3, 2, dtype=dtype)
    run, calls = compiled(layer)
    found, expected = (step(f, layer, x.requires_grad_(), grad) for f in (run, layer))
    assert_close(found, expected)
    assert calls == {"forward": FORWARD, "backward": BACKWARD}


@pytest.mark.parametrize("no_gradients", [torch.no_grad, torch.inference_mode])
@pytest.mark.parametrize("name", ["all modes", "one left alone", "transposed"])
def test_eval_mode_sees_every_change_of_W(name, no_gradients):
    layer = LAYERS[name]().eval()
    x = torch.randn(3, *layer.in_shape)
    run, _ = compiled(layer)
    with no_gradients():
        assert torch.equal(run(x), layer(x))
    for change in (lambda: layer.W2.data.mul_(torch.rand(1, layer.W2.shape[1])), layer.double):
        change()
        x = x.to(layer.W2.dtype)
        with no_gradients():
            assert torch.equal(run(x), layer(x))


@pytest.mark.parametrize("without", ["x", "W2", "all W's"])
def test_only_what_is_wanted(without, name_of_implementation):
    layer = LAYERS["all modes"]()
    x, grad = torch.randn(3, 8, 6, 5, requires_grad=without != "x"), torch.randn(3, 5, 3, 2)
    if without == "W2":
        layer.W2.requires_grad_(False)
    elif without == "all W's":
        layer.requires_grad_(False)
    run, _ = compiled(layer)
    wanted = [t for t in (x, *layer.parameters()) if t.requires_grad]
    found, expected = (torch.autograd.grad(f(x), wanted, grad) for f in (run, layer))
    assert_close(found, expected, rtol=1e-4, atol=1e-5)


def test_a_W_that_the_kernels_refuse_at_run_time():
    """Torch computes its U, in the same graph."""
    layer = tp.TensorProjection((512, 6, 5), (12, 3, 2))
    x, grad = torch.randn(3, 512, 6, 5, requires_grad=True), torch.randn(3, 12, 3, 2)
    run, calls = compiled(layer)
    step(run, layer, x, grad)
    with torch.no_grad():
        layer.W1.mul_(torch.logspace(3, -3, 12))
    found, expected = (step(f, layer, x, grad) for f in (run, layer))
    assert_close(found, expected)
    assert calls["forward"] == FORWARD  # compiled once


def test_a_second_derivative_is_refused_by_torch_itself():
    """Of anything that AOTAutograd compiled; not by a wrong number."""
    layer = LAYERS["all modes"]()
    x = torch.randn(3, 8, 6, 5, requires_grad=True)
    run, _ = compiled(layer)
    (dx,) = torch.autograd.grad(run(x).pow(2).sum(), x, create_graph=True)
    with pytest.raises(RuntimeError, match="does not currently support double backward"):
        torch.autograd.grad(dx.pow(2).sum(), x)


@pytest.mark.parametrize("name", LAYERS)
@pytest.mark.parametrize("memory_format", [torch.contiguous_format, torch.channels_last])
def test_the_custom_ops_keep_torchs_rules(name, memory_format):
    layer = LAYERS[name]()
    Us = [None if U is None else U.detach() for U in layer.projections()]
    x, grad = torch.randn(3, *layer.in_shape), torch.randn(3, *layer.out_shape)
    if x.ndim == 4:
        x = x.contiguous(memory_format=memory_format)
    ops, checks = torch.ops.tensorprojection, ("test_schema", "test_faketensor")
    args = (x, Us, layer.transposed)
    torch.library.opcheck(ops.multilinear.default, args, test_utils=checks)
    for want_x, want_Us in ((True, True), (False, True), (True, False)):
        args = (x, grad, Us, layer.transposed, want_x, want_Us)
        torch.library.opcheck(ops.multilinear_backward.default, args, test_utils=checks)
