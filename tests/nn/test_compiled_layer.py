"""Under torch.compile a layer is one opaque operator each way, whoever computes it."""

import gc

import pytest
import torch
from torch._dynamo.backends.common import aot_autograd
from torch._functorch.aot_autograd import make_boxed_func
from torch.testing import assert_close

import tensorprojection as tp
from tensorprojection.engine import dispatch
from tensorprojection.engine.device.engine import DeviceEngine
from tensorprojection.engine.kernels.library import load
from tensorprojection.engine.torch_engine import TORCH, TorchEngine
from tensorprojection.nn.compiled import _kept

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
ENGINES = {"usual": None, "torch": TORCH, "device": DeviceEngine()}
SUFFIX = {"usual": "layer", "torch": "layer", "device": "device_layer"}


@pytest.fixture(params=ENGINES)
def way(request):
    torch._dynamo.reset()
    if ENGINES[request.param] is None:
        yield request.param
    else:
        with dispatch.use(ENGINES[request.param]):
            yield request.param
    torch._dynamo.reset()


def compiled(module):
    """The module, and the library's operators in its forward and its backward graph."""
    calls = {"forward": [], "backward": []}

    def keep(kind):
        def compiler(graph, _):
            names = [str(n.target) for n in graph.graph.nodes if n.op == "call_function"]
            calls[kind] += [name for name in names if name.startswith("tensorprojection")]
            return make_boxed_func(graph.forward)

        return compiler

    backend = aot_autograd(fw_compiler=keep("forward"), bw_compiler=keep("backward"))
    return torch.compile(module, backend=backend, fullgraph=True, dynamic=False), calls


def step(run, layer, x, grad):
    z = run(x)
    return z, *torch.autograd.grad(z, [x, *layer.parameters()], grad)


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("channels_last", [False, True])
@pytest.mark.parametrize("name", LAYERS)
def test_one_operator_each_way(name, channels_last, training, way):
    layer = LAYERS[name]().train(training)
    x, grad = torch.randn(3, *layer.in_shape), torch.randn(3, *layer.out_shape)
    if channels_last and x.ndim == 4:
        x = x.to(memory_format=torch.channels_last)
    x.requires_grad_()
    run, calls = compiled(layer)
    found, expected = step(run, layer, x, grad), step(layer, layer, x, grad)
    for ours, theirs in zip(found, expected, strict=True):
        assert ours.stride() == theirs.stride()
        assert_close(ours, theirs)
    op = f"tensorprojection.{SUFFIX[way]}"
    assert calls == {"forward": [f"{op}.default"], "backward": [f"{op}_grad.default"]}


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
def test_other_types(dtype, way):
    layer = LAYERS["all modes"](dtype=dtype)
    x, grad = torch.randn(3, 8, 6, 5, dtype=dtype), torch.randn(3, 5, 3, 2, dtype=dtype)
    run, calls = compiled(layer)
    found, expected = (step(f, layer, x.requires_grad_(), grad) for f in (run, layer))
    assert_close(found, expected)
    assert len(calls["forward"]) == len(calls["backward"]) == 1


def test_without_gradients_it_is_one_operator_too(way):
    layer = LAYERS["all modes"]().eval()
    x = torch.randn(3, 8, 6, 5)
    run, calls = compiled(layer)
    with torch.no_grad():
        assert_close(run(x), layer(x))
    op = "device_layer" if way == "device" else "kept_layer"
    assert calls == {"forward": [f"tensorprojection.{op}.default"], "backward": []}


# In eval mode the operator keeps the U's, as the layer itself does in eager mode.


@pytest.fixture
def made(monkeypatch):
    """How often U was made."""
    torch._dynamo.reset()
    count = []
    given = TorchEngine.polar
    monkeypatch.setattr(TorchEngine, "polar", lambda *args: count.append(args[-1]) or given(*args))
    with dispatch.use(TORCH):
        yield count


@pytest.mark.parametrize("no_gradients", [torch.no_grad, torch.inference_mode])
@pytest.mark.parametrize("name", ["all modes", "one left alone", "transposed"])
def test_eval_mode_makes_U_once_and_sees_every_change_of_W(name, no_gradients, made):
    layer = LAYERS[name]().eval()
    modes = sum(W is not None for W in layer.Ws)
    x = torch.randn(3, *layer.in_shape)
    run, _ = compiled(layer)
    with no_gradients():
        assert torch.equal(run(x), run(x))
    assert len(made) == modes
    for change in (lambda: layer.W2.data.mul_(torch.rand(1, layer.W2.shape[1])), layer.double):
        change()
        x = x.to(layer.W2.dtype)
        made.clear()
        with no_gradients():
            found = run(x)
            assert len(made) == modes
            assert torch.equal(found, layer(x))  # to the bit


def test_what_is_kept_goes_with_the_layer(made):
    layer = LAYERS["all modes"]().eval()
    run, _ = compiled(layer)
    with torch.no_grad():
        run(torch.randn(3, 8, 6, 5))
    assert len(_kept) == 1
    torch._dynamo.reset()
    del layer, run
    gc.collect()
    assert len(_kept) == 0


def test_training_and_frozen_parameters_keep_nothing(made):
    layer = LAYERS["all modes"]()
    x = torch.randn(3, 8, 6, 5, requires_grad=True)
    run, _ = compiled(layer)
    with torch.no_grad():
        run(x), run(x)
    assert len(made) == 6
    layer.eval().requires_grad_(False)
    (dx,) = torch.autograd.grad(run(x).sum(), x)
    assert_close(dx, torch.autograd.grad(layer(x).sum(), x)[0])


@pytest.mark.parametrize("without", ["x", "W2", "all W's"])
def test_only_what_is_wanted(without, way):
    layer = LAYERS["all modes"]()
    x, grad = torch.randn(3, 8, 6, 5, requires_grad=without != "x"), torch.randn(3, 5, 3, 2)
    if without == "W2":
        layer.W2.requires_grad_(False)
    elif without == "all W's":
        layer.requires_grad_(False)
    run, _ = compiled(layer)
    wanted = [t for t in (x, *layer.parameters()) if t.requires_grad]
    found, expected = (torch.autograd.grad(f(x), wanted, grad) for f in (run, layer))
    assert_close(found, expected)


@pytest.mark.skipif(load() is None, reason="the compiled kernels are not there")
def test_a_W_that_the_kernels_refuse_at_run_time(monkeypatch):
    """Torch computes it, with the same graph: what is saved is packed in the same way."""
    torch._dynamo.reset()
    layer = tp.TensorProjection((512, 6, 5), (12, 3, 2))
    x, grad = torch.randn(3, 512, 6, 5, requires_grad=True), torch.randn(3, 12, 3, 2)
    run, calls = compiled(layer)
    step(run, layer, x, grad)
    by_torch = []
    given = TorchEngine.forward
    monkeypatch.setattr(TorchEngine, "forward", lambda *args: by_torch.append(args) or given(*args))
    with torch.no_grad():
        layer.W1.mul_(torch.logspace(3, -3, 12))
    found, expected = (step(f, layer, x, grad) for f in (run, layer))
    assert len(by_torch) == 2
    assert_close(found, expected)
    assert len(calls["forward"]) == 1  # compiled once


def test_a_diverged_W_is_named():
    torch._dynamo.reset()
    layer = LAYERS["all modes"]()
    run, _ = compiled(layer)
    with torch.no_grad():
        layer.W2[0, 0] = float("nan")
    with pytest.raises(tp.DivergedError, match="W2 contains NaN"):
        run(torch.randn(3, 8, 6, 5))


def test_a_W_that_diverged_on_a_device_is_named_at_the_next_call():
    torch._dynamo.reset()
    layer = LAYERS["all modes"]()
    x = torch.randn(3, 8, 6, 5)
    with dispatch.use(DeviceEngine()):
        run, calls = compiled(layer)
        run(x), run(x)
        with torch.no_grad():
            layer.W2[0, 0] = float("nan")
        assert run(x).isnan().any()
        with pytest.raises(tp.DivergedError, match="W2 contained NaN or infinity in a step before"):
            run(x)
    assert len(calls["forward"]) == 1  # in one piece


def test_a_second_derivative_is_refused_by_torch_itself():
    """Of anything that AOTAutograd compiled; not by a wrong number."""
    torch._dynamo.reset()
    layer = LAYERS["all modes"]()
    x = torch.randn(3, 8, 6, 5, requires_grad=True)
    run, _ = compiled(layer)
    (dx,) = torch.autograd.grad(run(x).pow(2).sum(), x, create_graph=True)
    with pytest.raises(RuntimeError, match="does not currently support double backward"):
        torch.autograd.grad(dx.pow(2).sum(), x)


def test_dynamo_has_little_to_check():
    """Every function that it follows is checked at every call: a bound, with some room."""
    torch._dynamo.reset()
    guards = []
    layer = LAYERS["all modes"]()
    run = torch.compile(
        layer, backend="aot_eager", options={"guard_filter_fn": lambda g: count(guards, g)}
    )
    run(torch.randn(3, 8, 6, 5))
    assert 0 < len(guards) <= 80


def count(guards, found):
    guards += found
    return [True] * len(found)


@pytest.mark.skipif(not hasattr(torch.Tag, "cudagraph_unsafe"), reason="this torch has no such tag")
def test_what_a_cuda_graph_cannot_hold_says_so():
    ops = torch.ops.tensorprojection
    unsafe = {"layer", "layer_grad", "kept_layer", "polar", "polar_grad"}
    safe = {"device_layer", "device_layer_grad", "map", "gradients"}
    for name in unsafe | safe:
        tags = getattr(ops, name).default.tags
        assert (torch.Tag.cudagraph_unsafe in tags) == (name in unsafe), name


@pytest.mark.parametrize("name", LAYERS)
@pytest.mark.parametrize("device", [False, True])
def test_the_operators_keep_torchs_rules(name, device):
    layer = LAYERS[name]()
    x, grad = torch.randn(3, *layer.in_shape), torch.randn(3, *layer.out_shape)
    Ws = [None if W is None else W.detach() for W in layer.Ws]
    options = (layer.transposed, list(layer.eps), False)
    ops = torch.ops.tensorprojection
    forward, backward = (
        (ops.device_layer, ops.device_layer_grad) if device else (ops.layer, ops.layer_grad)
    )
    checks = ("test_schema", "test_faketensor")
    torch.library.opcheck(forward.default, (x, Ws, *options), test_utils=checks)
    _, *kept = forward(x, Ws, *options)
    wanted = [True] * (1 + layer.order)
    args = (x, grad, Ws, kept, *options, wanted)
    torch.library.opcheck(backward.default, args, test_utils=checks)
