"""Deployment: torch.fx, torch.jit, ONNX by the older exporter, torch.export."""

import io

import numpy as np
import onnxruntime
import pytest
import torch
from torch import nn
from torch.func import functional_call
from torch.testing import assert_close

import tensorprojection as tp

# torch's own word on the older ways, of which it warns at every step; people still deploy by them.
pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")


@pytest.fixture(params=["projection", "transposed"])
def layer(request):
    if request.param == "projection":
        return tp.TensorProjection((8, 6, 5), (4, None, 2)).eval()
    return tp.TransposeTensorProjection((4, 6, 2), (8, None, 5)).eval()


def close(z, right):
    assert_close(torch.as_tensor(z).double(), right, rtol=1e-5, atol=1e-6)


def onnx_of(module, x):
    file = io.BytesIO()
    batch = {"input_names": ["x"], "dynamic_axes": {"x": {0: "batch"}}}
    torch.onnx.export(module, (x,), file, dynamo=False, **batch)
    session = onnxruntime.InferenceSession(file.getvalue())
    return lambda y: session.run(None, {"x": y.numpy()})[0]


def scripted(module, x):
    file = io.BytesIO()
    torch.jit.save(torch.jit.script(module), file)
    file.seek(0)
    return torch.jit.load(file)


WAYS = {
    "torch.fx": lambda module, x: torch.fx.symbolic_trace(module),
    "torch.jit.trace": lambda module, x: torch.jit.trace(module, (x,)),
    "torch.jit.script": scripted,
    "torch.onnx, dynamo=False": onnx_of,
}


@pytest.mark.parametrize("way", WAYS.values(), ids=WAYS)
def test_a_frozen_layer_goes_everywhere(layer, way, reference):
    x, y = (torch.randn(n, *layer.in_shape) for n in (3, 7))
    close(way(layer.freeze(), x)(y), reference(layer, y))


@pytest.mark.parametrize("name", ["torch.jit.trace", "torch.onnx, dynamo=False"])
def test_a_layer_in_eval_mode_that_was_never_called(layer, name, reference):
    x, y = (torch.randn(n, *layer.in_shape) for n in (3, 7))
    close(WAYS[name](layer, x)(y), reference(layer, y))


@pytest.mark.parametrize("training", [True, False])
def test_a_layer_inside_a_model_is_one_call_to_torch_fx(layer, training):
    model = nn.Sequential(nn.ReLU(), layer).train(training)
    traced = torch.fx.symbolic_trace(model)
    assert [node.target for node in traced.graph.nodes if node.op == "call_module"] == ["0", "1"]
    x = torch.randn(3, *layer.in_shape)
    assert torch.equal(traced(x), model(x))
    with pytest.raises(tp.ProjectionTypeError, match=r"Trace a model that contains it"):
        torch.fx.symbolic_trace(layer)


def operations(program):
    return {str(n.target) for n in program.graph.nodes if n.op == "call_function"}


both = pytest.mark.parametrize("strict", [False, True], ids=["non-strict", "strict"])


@both
def test_an_export_takes_the_W_that_is_there(layer, strict, reference):
    """However it came there."""
    x = torch.randn(3, *layer.in_shape)
    layer(x)
    layer._parameters["W1"] = nn.Parameter(torch.randn(8, 4))
    program = torch.export.export(layer, (x,), strict=strict)
    close(program.module()(x), reference(layer, x))
    names = operations(program)
    assert not any("tensorprojection" in name for name in names)
    assert len(names) < 15  # U is a constant


class Hypernetwork(nn.Module):
    """W1 is what another layer makes of a second input."""

    def __init__(self, layer):
        super().__init__()
        self.layer, self.make = layer, nn.Linear(3, 8 * 4)

    def forward(self, x, context):
        return functional_call(self.layer, {"W1": self.make(context).view(8, 4)}, (x,))


@both
def test_an_exported_hypernetwork_follows_its_input(layer, strict):
    if strict and torch.__version__ < "2.13":
        pytest.skip("torch 2.8's strict export ignores functional_call, for nn.Linear as well")
    model = Hypernetwork(layer).eval()
    x, context, other = torch.randn(3, *layer.in_shape), torch.randn(3), torch.randn(3)
    program = torch.export.export(model, (x, context), strict=strict)
    z = program.module()(x, other)
    assert_close(z, model(x, other), rtol=1e-4, atol=1e-6)
    assert not torch.allclose(z, model(x, context), rtol=1e-2)


# Models in which the layer's W is not simply its parameter when forward is called.


class Replaced(nn.Module):
    def __init__(self, layer):
        super().__init__()
        self.layer, self.other = layer, nn.Parameter(torch.randn(8, 4))

    def forward(self, x):
        return functional_call(self.layer, {"W1": self.other}, (x,))


class ReplacedInPlace(Replaced):
    def forward(self, x):
        self.layer._parameters["W1"] = self.other
        return self.layer(x)


class Renormalized(Replaced):
    def forward(self, x):
        with torch.no_grad():
            self.layer.W1.copy_(torch.renorm(self.layer.W1, 2, 0, 0.01))
        return self.layer(x)


class Clamped(Replaced):
    def __init__(self, layer):
        super().__init__(layer)
        layer.register_forward_pre_hook(self.clamp)

    def clamp(self, layer, args):
        with torch.no_grad():
            layer.W1.clamp_(-0.02, 0.02)

    def forward(self, x):
        return self.layer(x)


class UpdatedBuffer(Replaced):
    def __init__(self, layer):
        super().__init__(layer)
        W = layer.W1.detach().clone()
        del layer.W1
        layer.register_buffer("W1", W)

    def forward(self, x):
        self.layer.W1.mul_(torch.linspace(1, 2, 4))
        return self.layer(x)


class PlainTensor(Replaced):
    def __init__(self, layer):
        super().__init__(layer)
        W = layer.W1.detach().clone()
        del layer.W1
        layer.W1 = W

    def forward(self, x):
        return self.layer(x)


class ByForeach(Replaced):
    def forward(self, x):
        with torch.no_grad():
            torch._foreach_mul_([self.layer.W1], 2.0)
            torch._foreach_add_([self.layer.W1], 1.0)
        return self.layer(x)


class AsStatistics(Replaced):
    def forward(self, x):
        W = self.layer.W1.detach()
        nn.functional.batch_norm(x.reshape(-1, 4), W[0], W[1], training=True)
        return self.layer(x)


class BeforeABranch(Replaced):
    def forward(self, x):
        with torch.no_grad():
            torch._foreach_add_([self.layer.W1], 1.0)
        return torch.cond(x.sum() > 0, self.layer, lambda x: 2 * self.layer(x), (x,))


class AfterABranch(Replaced):
    def forward(self, x):
        z = torch.cond(x.sum() > 0, self.layer, lambda x: 2 * self.layer(x), (x,))
        with torch.no_grad():
            self.layer.W1.mul_(torch.linspace(1, 2, 4))
        return z


class SharedMemory(Replaced):
    def __init__(self, layer):
        super().__init__(layer)
        self.flat = nn.Parameter(layer.W1.data.view(-1))

    def forward(self, x):
        with torch.no_grad():
            self.flat.add_(torch.linspace(1, 2, 32))
        return self.layer(x)


class SharedWithATensor(SharedMemory):
    def __init__(self, layer):
        Replaced.__init__(self, layer)
        self.flat = layer.W1.data.view(-1)


class OtherMemory(Replaced):
    def __init__(self, layer):
        super().__init__(layer)
        self.register_buffer("values", torch.randn(8, 4))

    def forward(self, x):
        self.layer.W1.data = 2 * self.values
        return self.layer(x)


# A non-strict export ignores an assignment to W.data, of nn.Linear as well.
KINDS = [Replaced, ReplacedInPlace, Renormalized, Clamped, UpdatedBuffer, PlainTensor]
KINDS += [ByForeach, SharedMemory, SharedWithATensor]
CASES = [(kind, strict) for kind in KINDS for strict in (False, True)] + [(OtherMemory, True)]
CASES += [(AsStatistics, False), (BeforeABranch, False), (AfterABranch, False)]
WRITES = (AsStatistics, Renormalized, Clamped, ByForeach, SharedMemory, BeforeABranch, AfterABranch)
OLD = torch.__version__ < "2.13"
NO_WRITES = "torch 2.8's export refuses to write to a parameter, for nn.Linear as well"


@pytest.mark.parametrize(("kind", "strict"), CASES)
@pytest.mark.filterwarnings("ignore:.*_parameters:UserWarning")
@pytest.mark.filterwarnings("ignore:.*should not be instantiated:DeprecationWarning")
def test_an_export_sees_what_the_model_does_to_W(kind, strict):
    if strict and OLD:
        pytest.skip("torch 2.8's strict export ignores functional_call, for nn.Linear as well")
    if kind in WRITES and OLD:
        pytest.skip(NO_WRITES)

    def new():  # a copy would not share memory
        torch.manual_seed(0)
        return kind(tp.TensorProjection((8, 6, 5), (4, None, 2))).eval()

    model, x = new(), torch.randn(3, 8, 6, 5)
    program = torch.export.export(new(), (x,), strict=strict).module()
    with torch.no_grad():
        for _ in range(2):  # a second call: W may have changed in the first
            assert_close(program(x), model(x), rtol=1e-4, atol=1e-6)


class WrittenLater(Replaced):
    def write(self):
        self.layer.W1.mul_(torch.linspace(1, 2, 4))

    def forward(self, x):
        z = self.layer(x)
        with torch.no_grad():
            self.write()
        return z


class WrittenBetween(WrittenLater):
    def forward(self, x):
        return super().forward(x) + self.layer(x)


class ByForeachLater(WrittenLater):
    def write(self):
        torch._foreach_add_([self.layer.W1], 1.0)


class SharedMemoryLater(WrittenLater, SharedMemory):
    def write(self):
        self.flat.add_(torch.linspace(1, 2, 32))


@pytest.mark.skipif(OLD, reason=NO_WRITES)
@pytest.mark.parametrize("kind", [WrittenLater, WrittenBetween, ByForeachLater])
def test_an_export_never_bakes_a_W_that_is_written_later(kind):
    """U is a constant of the first call only, which a second run would show."""
    layer, x = tp.TensorProjection((8, 6, 5), (4, None, 2)), torch.randn(3, 8, 6, 5)
    with pytest.raises(tp.ProjectionError, match=r"writes to W after .* freeze\(\)"):
        torch.export.export(kind(layer).eval(), (x,), strict=False)
    torch.export.export(layer, (x,))  # nothing is left behind


@pytest.mark.skipif(OLD, reason=NO_WRITES)
@pytest.mark.parametrize(
    ("kind", "strict"), [(WrittenLater, True), (WrittenBetween, True), (SharedMemoryLater, False)]
)
def test_an_export_sees_a_later_write_at_once(kind, strict):
    """A strict export passes twice over the program; shared memory shows before the write."""

    def new():
        torch.manual_seed(0)
        return kind(tp.TensorProjection((8, 6, 5), (4, None, 2))).eval()

    model, x = new(), torch.randn(3, 8, 6, 5)
    program = torch.export.export(new(), (x,), strict=strict).module()
    with torch.no_grad():
        for _ in range(2):
            assert_close(program(x), model(x), rtol=1e-4, atol=1e-6)


def test_an_export_may_write_to_other_parameters(layer, reference):
    class Counts(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = layer
            self.register_buffer("calls", torch.zeros(()))

        def forward(self, x):
            z = self.layer(x)
            self.calls.add_(1)
            return z

    x = torch.randn(3, *layer.in_shape)
    program = torch.export.export(Counts().eval(), (x,))
    assert len(operations(program)) < 15  # U is a constant
    close(program.module()(x), reference(layer, x))


def test_functional_call_around_an_export_of_another_W(layer, reference):
    W1 = torch.randn(8, 4)
    x = torch.randn(3, *layer.in_shape)

    class Wrapped(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer, self.W = layer, nn.Parameter(W1)

        def forward(self, x):
            return functional_call(self.layer, {"W1": self.W}, (x,))

    program = torch.export.export(Wrapped(), (x,))
    with torch.no_grad():
        layer.W1.copy_(W1)
    close(program.module()(x).detach(), reference(layer, x))


def test_sizes_may_be_numpys():
    layer = tp.TensorProjection(np.array([8, 6]), (np.int64(4), None))
    assert layer.out_shape == (4, 6)
    assert all(type(size) is int for size in (*layer.in_shape, *layer.out_shape))
