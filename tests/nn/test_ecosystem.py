"""The layers with the rest of PyTorch: saving, compiling, exporting, torch.func, DDP …"""

import copy
import io
import pickle
import shutil

import pytest
import torch
from torch import nn
from torch.func import functional_call, grad, jvp, stack_module_state, vmap
from torch.testing import assert_close
from torch.utils._python_dispatch import TorchDispatchMode

from tensorprojection import LazyTensorProjection, TensorProjection, TransposeTensorProjection
from tensorprojection.functional import back_project, fold, mode_product, project, unfold, vec

IN, OUT = (8, 6, 5), (4, 6, 2)


@pytest.fixture(params=["projection", "transposed"])
def layer(request):
    if request.param == "projection":
        return TensorProjection(IN, OUT)
    return TransposeTensorProjection(OUT, IN)


@pytest.fixture
def x(layer):
    return torch.randn(3, *layer.in_shape)


def another(layer, **options):
    return type(layer)(layer.in_shape, layer.out_shape, **options)


def gradients(layer, x, weight):
    """Gradients of one weighted output, of the input and of the W's."""
    x = x.detach().requires_grad_()
    inputs = [x, *layer.parameters()]
    return torch.autograd.grad((layer(x) * weight).sum(), inputs)


# Saving and copying


def test_state_dict_round_trip(layer, x):
    other = another(layer)
    assert not torch.allclose(other(x), layer(x))
    assert list(layer.state_dict()) == ["W1", "W3"]
    other.load_state_dict(layer.state_dict())
    assert torch.equal(other(x), layer(x))
    assert other.W1 is not layer.W1


def test_state_dict_of_a_projection_loads_into_its_transpose():
    down = TensorProjection(IN, OUT)
    up = down.transpose(tied=False)
    up.load_state_dict(down.state_dict())
    z = torch.randn(3, *OUT)
    assert torch.equal(up(z), down.transpose()(z))


def test_state_dict_of_another_shape_does_not_load():
    with pytest.raises(RuntimeError, match="size mismatch for W1"):
        TensorProjection((8, 6), (4, 3)).load_state_dict(
            TensorProjection((8, 6), (5, 3)).state_dict()
        )


def test_torch_save_and_load_of_the_state(layer, x, tmp_path):
    torch.save(layer.state_dict(), tmp_path / "state.pt")
    other = another(layer)
    other.load_state_dict(torch.load(tmp_path / "state.pt", weights_only=True))
    assert torch.equal(other(x), layer(x))


def test_deepcopy(layer, x):
    z = layer(x)
    twin = copy.deepcopy(layer)
    assert torch.equal(twin(x), z)
    with torch.no_grad():
        twin.W1.add_(1)
    assert torch.equal(layer(x), z)
    assert not torch.allclose(twin(x), z)


@pytest.mark.parametrize("training", [True, False])
def test_pickle_of_the_module(layer, x, training):
    layer = another(layer, eps=0.2, eps_mode="relative", init="orthogonal").train(training)
    z = layer(x)
    twin = pickle.loads(pickle.dumps(layer))
    assert repr(twin) == repr(layer)
    assert twin.training is training
    assert torch.equal(twin(x), z)
    twin(x).sum().backward()
    assert twin.W1.grad is not None


def test_torch_save_of_the_module(layer, x):
    file = io.BytesIO()
    torch.save(layer, file)
    file.seek(0)
    assert torch.equal(torch.load(file, weights_only=False)(x), layer(x))


def test_pickle_keeps_a_tied_pair_tied():
    down = TensorProjection(IN, OUT)
    pair = pickle.loads(pickle.dumps(nn.Sequential(down, down.transpose())))
    assert pair[0].W1 is pair[1].W1


# torch.compile

# Dynamo instantiates autograd.Function for every model that has one, and inductor imports modules
# built by torch.jit; torch then warns of its own doing.
compiles = [
    pytest.mark.filterwarnings("ignore:.*should not be instantiated:DeprecationWarning"),
    pytest.mark.filterwarnings(r"ignore:`torch\.jit\.script:DeprecationWarning"),
]


def marked(test):
    for mark in compiles:
        test = mark(test)
    return test


@pytest.fixture
def compiled():
    """``compiled(module)`` -> the compiled module, and a counter of its compilations."""
    from torch._dynamo.testing import CompileCounterWithBackend

    def build(module, backend="aot_eager", **options):
        counter = CompileCounterWithBackend(backend)
        return torch.compile(module, fullgraph=True, backend=counter, **options), counter

    torch._dynamo.reset()
    yield build
    torch._dynamo.reset()


@marked
@pytest.mark.skipif(
    shutil.which("g++") is None and shutil.which("clang++") is None,
    reason="inductor needs a C++ compiler",
)
def test_compile_with_inductor(compiled, assert_same_gradients):
    layer = TensorProjection(IN, OUT)
    fast, counter = compiled(layer, "inductor")
    for n in (5, 2, 9):
        x = torch.randn(n, *IN, requires_grad=True)
        torch._dynamo.mark_dynamic(x, 0)
        z, expected, weight = fast(x), layer(x), torch.randn(n, *layer.out_shape)
        assert_close(z, expected, rtol=0, atol=1e-6)
        inputs = [x, *layer.parameters()]
        assert_same_gradients(
            torch.autograd.grad(z, inputs, weight), torch.autograd.grad(expected, inputs, weight)
        )
    assert counter.frame_count == 1


@marked
def test_compile_forward_and_backward(layer, compiled, assert_same_gradients):
    fast, counter = compiled(layer)
    for n in (5, 2, 9, 12, 5):
        x = torch.randn(n, *layer.in_shape, requires_grad=True)
        z, expected, weight = fast(x), layer(x), torch.randn(n, *layer.out_shape)
        assert_close(z, expected, rtol=0, atol=1e-6)
        inputs = [x, *layer.parameters()]
        assert_same_gradients(
            torch.autograd.grad(z, inputs, weight), torch.autograd.grad(expected, inputs, weight)
        )
    # Once for the first batch size, then once for all others.
    assert counter.frame_count == 2


@marked
def test_compile_follows_training(compiled):
    layer = TensorProjection(IN, OUT)
    fast, counter = compiled(layer)
    twin = copy.deepcopy(layer)
    x = torch.randn(4, *IN)
    for module, parameters in ((fast, layer), (twin, twin)):
        optimizer = torch.optim.SGD(parameters.parameters(), lr=0.1)
        for _ in range(3):
            optimizer.zero_grad()
            module(x).square().mean().neg().backward()
            optimizer.step()
    assert_close(layer.W1, twin.W1)
    assert counter.frame_count == 1


@marked
@pytest.mark.parametrize(
    "change",
    [
        lambda W: W.data.copy_(torch.randn_like(W)),
        lambda W: setattr(W, "data", torch.randn_like(W)),
        lambda W: W.detach().add_(1),
    ],
    ids=["data_copy", "data_replaced", "in_place"],
)
def test_compiled_layer_in_eval_mode_notices_a_changed_W(compiled, change):
    layer = TensorProjection(IN, OUT).eval()
    fast, counter = compiled(layer)
    x = torch.randn(4, *IN)
    with torch.no_grad():
        before = fast(x)
        assert_close(before, layer(x))
        change(layer.W1)
        assert_close(fast(x), layer(x))
        assert not torch.allclose(fast(x), before)
    assert counter.frame_count == 1


@marked
def test_compiled_layer_between_training_and_eval(compiled):
    layer = TensorProjection(IN, OUT)
    fast, counter = compiled(layer)
    x = torch.randn(4, *IN)
    for _ in range(3):
        assert_close(fast.train()(x), layer(x))
        assert_close(fast.eval()(x), layer(x))
    assert counter.frame_count == 2  # one graph a mode


@marked
def test_compiled_under_autocast(layer, x, compiled):
    fast, _ = compiled(layer)
    with torch.autocast("cpu", torch.bfloat16):
        z = fast(x)
        assert z.dtype == torch.bfloat16
        assert_close(z, layer(x))


@marked
def test_compiled_pair_inside_a_model(compiled, assert_same_gradients):
    down = TensorProjection(IN, OUT)
    model = nn.Sequential(nn.Conv2d(3, 8, 3), down, nn.ReLU(), down.transpose(), nn.Flatten())
    fast, counter = compiled(model)
    x = torch.randn(4, 3, 8, 7)
    assert_close(fast(x), model(x))
    fast(x).sum().backward()
    compiled_gradient, down.W1.grad = down.W1.grad, None
    model(x).sum().backward()
    assert_same_gradients([compiled_gradient], [down.W1.grad])
    assert counter.frame_count == 1


@marked
def test_compiled_layer_that_was_lazy(compiled):
    layer = LazyTensorProjection((4, None, 2))
    x = torch.randn(4, *IN)
    layer(x)
    fast, _ = compiled(layer)
    assert_close(fast(x), layer(x))


# torch.export and ONNX


def any_batch():
    return ({0: torch.export.Dim("batch")},)


def export(layer, strict):
    x = torch.randn(3, *layer.in_shape)
    return torch.export.export(layer, (x,), dynamic_shapes=any_batch(), strict=strict)


@pytest.mark.parametrize("strict", [False, True])
def test_exported_graph_holds_U_as_a_constant(layer, strict, reference):
    program = export(layer.eval(), strict)
    calls = [node for node in program.graph.nodes if node.op == "call_function"]
    targets = [str(node.target) for node in calls]
    assert any("matmul" in t or "mm" in t or "einsum" in t for t in targets)
    assert not [t for t in targets if "linalg" in t or "eigh" in t or "svd" in t]
    assert not [t for t in targets if "tensorprojection" in t]
    for n in (3, 7):
        y = torch.randn(n, *layer.in_shape)
        assert_close(program.module()(y).double(), reference(layer, y), rtol=0, atol=1e-5)


@pytest.mark.parametrize("strict", [False, True])
@pytest.mark.parametrize(
    "change",
    [
        lambda layer: layer.W1.data.copy_(torch.randn_like(layer.W1)),
        lambda layer: setattr(layer.W1, "data", torch.randn_like(layer.W1)),
        lambda layer: setattr(layer, "W1", nn.Parameter(torch.randn_like(layer.W1))),
        lambda layer: layer.load_state_dict(another(layer).state_dict(), assign=True),
    ],
    ids=["data_edited", "data_replaced", "parameter_replaced", "state_assigned"],
)
def test_export_sees_W_as_it_is_now(strict, change, reference):
    layer = TensorProjection(IN, OUT).eval()
    x = torch.randn(3, *IN)
    with torch.no_grad():
        before = layer(x)  # U is kept from here on
    change(layer)
    out = export(layer, strict).module()(x)
    assert_close(out.double(), reference(layer, x), rtol=0, atol=1e-5)
    assert not torch.allclose(out, before)


@pytest.mark.parametrize("strict", [False, True])
@pytest.mark.parametrize("twin_of", [copy.deepcopy, lambda m: pickle.loads(pickle.dumps(m))])
def test_export_of_a_copy_is_its_own(strict, twin_of, reference):
    layer = TensorProjection(IN, OUT).eval()
    twin = twin_of(layer)
    twin.reset_parameters()
    x = torch.randn(3, *IN)
    out = export(twin, strict).module()(x)
    assert_close(out.double(), reference(twin, x), rtol=0, atol=1e-5)
    assert not torch.allclose(out, layer(x))


@pytest.mark.parametrize("strict", [False, True])
def test_export_of_a_layer_that_was_on_the_meta_device(strict, reference):
    layer = TensorProjection(IN, OUT, device="meta").to_empty(device="cpu").eval()
    layer.load_state_dict(TensorProjection(IN, OUT).state_dict())
    x = torch.randn(3, *IN)
    out = export(layer, strict).module()(x)
    assert_close(out.double(), reference(layer, x), rtol=0, atol=1e-5)


@pytest.mark.parametrize("strict", [False, True])
def test_export_inside_a_model_after_a_change_of_type(strict):
    model = nn.Sequential(nn.Conv2d(3, 8, 3), TensorProjection(IN, OUT), nn.Flatten())
    model = model.double().eval()
    x = torch.randn(3, 3, 8, 7).double()
    program = torch.export.export(model, (x,), dynamic_shapes=any_batch(), strict=strict)
    y = torch.randn(5, 3, 8, 7).double()
    assert_close(program.module()(y), model(y), rtol=0, atol=1e-12)


# The exporter copies tree specs of a class that torch itself has deprecated.
@pytest.mark.filterwarnings("ignore:.isinstance.treespec, LeafSpec.. is deprecated:FutureWarning")
def test_onnx_of_the_frozen_layer(layer, tmp_path):
    import onnxruntime

    frozen = layer.freeze().eval()
    x = torch.randn(3, *layer.in_shape)
    program = torch.onnx.export(
        frozen, (x,), dynamo=True, dynamic_shapes=any_batch(), verbose=False
    )
    program.save(tmp_path / "layer.onnx")
    session = onnxruntime.InferenceSession(
        tmp_path / "layer.onnx", providers=["CPUExecutionProvider"]
    )
    name = session.get_inputs()[0].name
    for n in (3, 1, 7):
        y = torch.randn(n, *layer.in_shape)
        (z,) = session.run(None, {name: y.numpy()})
        assert_close(torch.from_numpy(z), layer(y).detach(), rtol=0, atol=1e-5)


# torch.func


def test_vmap_over_samples(layer, x):
    assert_close(vmap(layer)(x), layer(x))
    assert_close(vmap(layer, in_dims=1)(x.movedim(0, 1)), layer(x))


def test_func_grad(layer, x, assert_same_gradients):
    weight = torch.randn(3, *layer.out_shape)

    def loss(parameters, x):
        return (functional_call(layer, parameters, (x,)) * weight).sum()

    by_W, by_x = grad(loss, argnums=(0, 1))(dict(layer.named_parameters()), x)
    assert_same_gradients([by_x, by_W["W1"], by_W["W3"]], gradients(layer, x, weight))


# Forward-mode rules come in by torch.jit.script on first use, and torch warns of its own doing.
forward_mode = pytest.mark.filterwarnings(r"ignore:`torch\.jit\.script` is depr:DeprecationWarning")


@forward_mode
def test_jvp_is_the_adjoint_of_the_gradient(layer):
    layer.double()
    x = torch.randn(3, *layer.in_shape).double()
    weight = torch.randn(3, *layer.out_shape).double()
    parameters = {name: W.detach() for name, W in layer.named_parameters()}
    tangents = {name: torch.randn_like(W) for name, W in parameters.items()}
    dx = torch.randn_like(x)
    z, dz = jvp(lambda p, x: functional_call(layer, p, (x,)), (parameters, x), (tangents, dx))
    assert_close(z, layer(x).detach())
    by_x, by_W1, by_W3 = gradients(layer, x, weight)
    expected = (by_x * dx).sum() + (by_W1 * tangents["W1"]).sum() + (by_W3 * tangents["W3"]).sum()
    assert_close((dz * weight).sum(), expected, rtol=1e-10, atol=1e-10)


@forward_mode
def test_jvp_by_the_input_alone_is_the_layer_itself(layer, x):
    _, dz = jvp(layer, (x,), (2 * x,))
    assert_close(dz, 2 * layer(x))


def test_functional_call_leaves_the_layer_alone(layer, x):
    other, z = another(layer), layer(x)
    assert_close(functional_call(layer, other.state_dict(), (x,)), other(x))
    assert torch.equal(layer(x), z)


@pytest.mark.parametrize("training", [True, False])
def test_an_ensemble_equals_a_loop(layer, x, training, assert_same_gradients):
    layers = [another(layer).train(training) for _ in range(3)]
    parameters, buffers = stack_module_state(layers)
    base = copy.deepcopy(layers[0]).to("meta")
    weight = torch.randn(3, *layer.out_shape)

    def loss(parameters, buffers, x):
        z = functional_call(base, (parameters, buffers), (x,))
        return (z * weight).sum(), z

    by_W, out = vmap(grad(loss, has_aux=True), in_dims=(0, 0, None))(parameters, buffers, x)
    for k, single in enumerate(layers):
        assert_close(out[k], single(x))
        expected = gradients(single, x, weight)[1:]
        assert_same_gradients([by_W["W1"][k], by_W["W3"][k]], expected)


def test_gradients_by_sample(layer):
    layer.double()
    x = torch.randn(3, *layer.in_shape).double()

    def loss(parameters, sample):
        return functional_call(layer, parameters, (sample,)).square().sum()

    by_sample = vmap(grad(loss), in_dims=(None, 0))(dict(layer.named_parameters()), x)
    for sample, expected in zip(x, by_sample["W1"], strict=True):
        layer.zero_grad()
        layer(sample).square().sum().backward()
        assert_close(layer.W1.grad, expected)


# Types


def is_rounded_once(U, exact):
    """Whether U is ``exact`` rounded to U's type, and nothing worse (float32 dust allowed)."""
    half_a_unit = torch.finfo(U.dtype).eps / 2
    return ((U.double() - exact).abs() <= 1.001 * half_a_unit * exact.abs() + 1e-6).all()


def ill_conditioned(dtype=torch.float32):
    """A layer of one mode whose W has condition 10³: U would be noise in a half type."""
    layer = TensorProjection((12,), (6,))
    with torch.no_grad():
        left, _, right = torch.linalg.svd(layer.W1, full_matrices=False)
        layer.W1.copy_(left * torch.logspace(0, -3, 6) @ right)
    return layer.to(dtype)


@pytest.mark.parametrize("training", [True, False])
def test_autocast_casts_only_the_finished_U(training, reference):
    layer = ill_conditioned().train(training)
    with torch.autocast("cpu", torch.bfloat16):
        U = layer(torch.eye(12))  # the products with 0 and 1 are exact
    assert U.dtype == torch.bfloat16
    assert is_rounded_once(U, reference(layer, torch.eye(12)))


def test_autocast_gradients(layer, x):
    weight = torch.randn(3, *layer.out_shape)
    with torch.autocast("cpu", torch.bfloat16):
        got = gradients(layer, x, weight)
    for g, expected in zip(got, gradients(layer, x, weight), strict=True):
        assert g.dtype == torch.float32
        assert (g - expected).norm() < 0.02 * expected.norm()


def test_autocast_leaves_float64_alone(layer, x, reference):
    layer.double()
    with torch.autocast("cpu", torch.bfloat16):
        z = layer(x.double())
    assert z.dtype == torch.float64
    assert_close(z, reference(layer, x), rtol=0, atol=1e-12)


def test_autocast_inside_a_model():
    model = nn.Sequential(nn.Conv2d(3, 8, 3), TensorProjection(IN, OUT), nn.Flatten())
    model.append(nn.Linear(48, 2))
    with torch.autocast("cpu", torch.bfloat16):
        z = model(torch.randn(4, 3, 8, 7))
    assert z.dtype == torch.bfloat16
    z.float().sum().backward()
    assert {W.grad.dtype for W in model.parameters()} == {torch.float32}


def test_autocast_of_the_frozen_layer(layer, x):
    frozen = layer.freeze()
    with torch.autocast("cpu", torch.bfloat16):
        z = frozen(x)
        assert z.dtype == torch.bfloat16
        assert_close(z, layer(x))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("training", [True, False])
def test_half_precision_layer(dtype, training, reference):
    layer = ill_conditioned(dtype).train(training)
    U = layer(torch.eye(12, dtype=dtype))
    assert U.dtype == dtype
    assert is_rounded_once(U, reference(layer, torch.eye(12)))
    layer(torch.randn(4, 12, dtype=dtype)).sum().backward()
    assert layer.W1.grad.dtype == dtype
    assert layer.W1.grad.isfinite().all()


@pytest.mark.parametrize("of_W", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
@pytest.mark.parametrize("of_x", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
def test_output_has_the_type_of_the_input(layer, of_W, of_x):
    layer.to(of_W)
    x = torch.randn(3, *layer.in_shape, dtype=of_x, requires_grad=True)
    z = layer(x)
    assert z.dtype == of_x
    z.sum().backward()
    assert x.grad.dtype == of_x
    assert layer.W1.grad.dtype == of_W


# Memory formats


class Relayouts(TorchDispatchMode):
    """Notes the size of every tensor that is copied into another layout while it is on."""

    def __init__(self):
        super().__init__()
        self.sizes = [0]

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        out = func(*args, **(kwargs or {}))
        copied = {torch.ops.aten.clone: 0, torch.ops.aten.copy_: 1}.get(func.overloadpacket)
        if copied is not None and args[copied].stride() != out.stride():
            self.sizes.append(out.numel())
        return out


SPATIAL = [(None, 4, 3), (5, None, None), (5, 4, 3), (None, None, 3), (None, 4, None)]


@pytest.mark.parametrize("out_shape", SPATIAL)
@pytest.mark.parametrize("transposed", [False, True])
@pytest.mark.parametrize("training", [True, False])
def test_channels_last_in_channels_last_out(out_shape, transposed, training):
    layer = TensorProjection((8, 7, 6), out_shape).train(training)
    layer = layer.transpose() if transposed else layer
    last = torch.channels_last
    x = torch.randn(40, *layer.in_shape).to(memory_format=last).requires_grad_()
    with Relayouts() as relayouts:
        z = layer(x)
    assert z.is_contiguous(memory_format=last)
    assert not z.is_contiguous()
    # A batch of 40 is far larger than any U: a copy of that size is one of the data.
    assert max(relayouts.sizes) < min(x.numel(), z.numel())

    # Not .grad, into which autograd would copy whatever format comes.
    weight = torch.randn_like(z)
    assert weight.is_contiguous(memory_format=last)
    (by_x,) = torch.autograd.grad(z, x, weight)
    assert by_x.is_contiguous(memory_format=last)

    plain = x.detach().contiguous().requires_grad_()
    expected = layer(plain)
    assert expected.is_contiguous()
    assert_close(z, expected)
    (expected_by_x,) = torch.autograd.grad(expected, plain, weight.contiguous())
    assert expected_by_x.is_contiguous()
    assert_close(by_x, expected_by_x)


def test_channels_last_3d():
    layer = TensorProjection((8, 7, 6, 5), (5, 4, None, 2))
    last = torch.channels_last_3d
    x = torch.randn(4, 8, 7, 6, 5).to(memory_format=last).requires_grad_()
    z = layer(x)
    assert z.is_contiguous(memory_format=last)
    (by_x,) = torch.autograd.grad(z, x, torch.ones_like(z))
    assert by_x.is_contiguous(memory_format=last)
    assert_close(z, layer(x.contiguous()))


def test_channels_last_through_a_model():
    model = nn.Sequential(nn.Conv2d(3, 8, 3), TensorProjection((8, 7, 6), (8, 4, 3)))
    model = model.to(memory_format=torch.channels_last)
    x = torch.randn(4, 3, 9, 8).to(memory_format=torch.channels_last)
    assert model(x).is_contiguous(memory_format=torch.channels_last)


def test_channels_last_of_the_frozen_layer():
    frozen = TensorProjection((8, 7, 6), (5, 4, 3)).freeze()
    x = torch.randn(4, 8, 7, 6).to(memory_format=torch.channels_last)
    assert frozen(x).is_contiguous(memory_format=torch.channels_last)


@pytest.mark.parametrize(
    "view",
    [
        lambda x: x.transpose(0, 1).contiguous().transpose(0, 1),
        lambda x: x.transpose(-1, -2).contiguous().transpose(-1, -2),
        lambda x: x.transpose(1, 3).contiguous().transpose(1, 3),
        lambda x: torch.cat([x, x], -1)[..., : x.shape[-1]],
        lambda x: x.repeat_interleave(2, 1)[:, ::2],
        lambda x: x[:1].expand_as(x),
        lambda x: x[..., :1].expand_as(x),
    ],
    ids=["batch", "last_two", "first_and_last", "slice", "step", "expand_batch", "expand_mode"],
)
def test_non_contiguous_input(layer, x, view, assert_same_gradients):
    y = view(x)
    assert not y.is_contiguous()
    weight = torch.randn(3, *layer.out_shape)
    assert_close(layer(y), layer(y.contiguous()))
    expected = gradients(layer, y.contiguous(), weight)
    assert_same_gradients(gradients(layer, y, weight), expected)


def test_non_contiguous_gradient(layer, x, assert_same_gradients):
    weight = torch.randn(3, *layer.out_shape)
    strided = weight.transpose(1, 3).contiguous().transpose(1, 3)
    assert not strided.is_contiguous()
    inputs = [x.requires_grad_(), *layer.parameters()]
    got = torch.autograd.grad(layer(x), inputs, strided)
    assert_same_gradients(got, gradients(layer, x, weight))


# Empty batches


@pytest.mark.parametrize("batch", [(0,), (0, 3), (3, 0)])
@pytest.mark.parametrize("training", [True, False])
def test_empty_batch(layer, batch, training):
    layer.train(training)
    x = torch.randn(*batch, *layer.in_shape, requires_grad=True)
    z = layer(x)
    assert z.shape == (*batch, *layer.out_shape)
    z.sum().backward()
    assert x.grad.shape == x.shape
    assert torch.equal(layer.W1.grad, torch.zeros_like(layer.W1))
    assert layer.freeze()(x).shape == z.shape


def test_empty_batch_channels_last():
    layer = TensorProjection((8, 7, 6), (5, 4, 3))
    x = torch.randn(0, 8, 7, 6).to(memory_format=torch.channels_last)
    assert layer(x).shape == (0, 5, 4, 3)


def test_empty_batch_in_other_methods():
    layer = TensorProjection(IN, OUT)
    x = torch.randn(0, *IN)
    assert layer.captured_energy(x).shape == (0,)
    assert layer.reconstruct(x).shape == (0, *IN)


def test_empty_batch_in_functions():
    x, U = torch.randn(0, 8, 5), torch.randn(8, 4)
    assert project(x, [U, None]).shape == (0, 4, 5)
    assert back_project(x[:, :4], [U, None]).shape == (0, 8, 5)
    assert mode_product(x, U.mT, 1, batch_dims=1).shape == (0, 4, 5)
    assert fold(torch.randn(0, 8, 5), 1, (8, 5)).shape == (0, 8, 5)
    assert unfold(x, 2, batch_dims=1).shape == (0, 5, 8)
    assert vec(x, batch_dims=1).shape == (0, 40)


# Parameters without gradient, without values


def test_some_parameters_without_gradient(layer, x, assert_same_gradients):
    weight = torch.randn(3, *layer.out_shape)
    by_x, _, by_W3 = gradients(layer, x, weight)
    layer.W1.requires_grad_(False)
    x.requires_grad_()
    (layer(x) * weight).sum().backward()
    assert layer.W1.grad is None
    assert_same_gradients([x.grad, layer.W3.grad], [by_x, by_W3])


@pytest.mark.parametrize("training", [True, False])
def test_one_of_two_like_parameters_without_gradient(training, assert_same_gradients):
    layer = TensorProjection((6, 6), (3, 3)).train(training)
    x, weight = torch.randn(3, 6, 6), torch.randn(3, 3, 3)
    *_, by_W2 = gradients(layer, x, weight)
    layer.W1.requires_grad_(False)
    (layer(x) * weight).sum().backward()
    assert layer.W1.grad is None
    assert_same_gradients([layer.W2.grad], [by_W2])


def test_no_parameter_with_gradient(layer, x):
    layer.requires_grad_(False)
    assert not layer(x).requires_grad
    assert layer(x.requires_grad_()).requires_grad


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("init", ["normal", "orthogonal"])
def test_meta_device(layer, training, init):
    layer = another(layer, device="meta", init=init).train(training)
    x = torch.randn(3, *layer.in_shape, device="meta", requires_grad=True)
    z = layer(x)
    assert (z.device.type, z.shape) == ("meta", (3, *layer.out_shape))
    z.sum().backward()
    assert (x.grad.shape, layer.W1.grad.shape) == (x.shape, (8, 4))

    layer = layer.to_empty(device="cpu")
    layer.reset_parameters()
    torch.manual_seed(1)
    layer.reset_parameters()
    torch.manual_seed(1)
    expected = another(layer, init=init)
    assert torch.equal(layer.W1, expected.W1)


def test_meta_device_by_context(layer):
    with torch.device("meta"):
        built = another(layer)
    assert {W.device.type for W in built.parameters()} == {"meta"}
    built.load_state_dict(layer.state_dict(), assign=True)
    x = torch.randn(3, *layer.in_shape)
    assert torch.equal(built(x), layer(x))


@pytest.mark.parametrize("init", ["normal", "orthogonal"])
def test_skip_init(layer, x, init):
    random_state = torch.get_rng_state()
    built = nn.utils.skip_init(
        type(layer), layer.in_shape, layer.out_shape, init=init, dtype=torch.float64
    )
    assert torch.equal(torch.get_rng_state(), random_state)  # nothing was drawn
    assert {(W.device.type, W.dtype) for W in built.parameters()} == {("cpu", torch.float64)}
    built.load_state_dict(layer.double().state_dict())
    assert torch.equal(built(x), layer(x))


# Weight decay


@pytest.mark.parametrize("eps_mode", ["absolute", "relative"])
def test_weight_decay(eps_mode):
    # A loss does not hold the scale of W, so decay shrinks it. An absolute ε then eats U's
    # singular values; a relative one shrinks along.
    layer = TensorProjection((12, 9), (6, 4), eps_mode=eps_mode, init="orthogonal")
    optimizer = torch.optim.AdamW(layer.parameters(), lr=1e-3, weight_decay=50)
    x = torch.randn(16, 12, 9)
    norm, before = layer.W1.norm().item(), layer.orthogonality_error()
    for _ in range(60):
        optimizer.zero_grad()
        layer.captured_energy(x).mean().neg().backward()
        optimizer.step()
    assert layer.W1.norm() < 0.1 * norm
    if eps_mode == "absolute":
        assert layer.orthogonality_error() > 100 * before
    else:
        assert layer.orthogonality_error() < 2e-6


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("shape", [(32, 12, 12), (600,)], ids=str)
def test_a_backward_pass_inside_autocast(shape, training):
    """Where the forward pass was not, or was under another type."""
    layer = TensorProjection(shape, tuple(p // 2 for p in shape)).train(training)
    x = torch.randn(4, *shape, requires_grad=True)
    wanted = [x, *(W for W in layer.Ws if W is not None)]
    weight = torch.randn_like(layer(x))
    expected = torch.autograd.grad(layer(x), wanted, weight)
    z = layer(x)
    with torch.autocast("cpu", torch.bfloat16):
        got = torch.autograd.grad(z, wanted, weight)
    for a, b in zip(got, expected, strict=True):
        assert torch.equal(a, b)
