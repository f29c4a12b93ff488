"""Unusual tensors: the layer is right, or an error says that it cannot be.

With each of these the kernels once read memory that was not there, or read it as another layout.
"""

from collections.abc import Iterator
from contextlib import contextmanager

import pytest
import torch
from fuzz import oracle
from torch import Tensor, nn
from torch.autograd.graph import save_on_cpu, saved_tensors_hooks
from torch.func import functional_call, grad, hessian, jacfwd, jacrev, linearize, vmap
from torch.fx.experimental.proxy_tensor import make_fx
from torch.testing import assert_close
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_map_only
from torch.utils.flop_counter import FlopCounterMode

from tensorprojection import TensorProjection, TransposeTensorProjection
from tensorprojection.errors import ProjectionError

pytestmark = pytest.mark.filterwarnings(r"ignore:`torch\.jit\.script:DeprecationWarning")

# Float32 by sums of a few dozen products.
CLOSE = {"rtol": 1e-4, "atol": 1e-5, "check_dtype": False}


@pytest.fixture(params=["training", "eval"])
def layer(request) -> TensorProjection:
    made = TensorProjection((7, 6, 5), (4, None, 2), init="orthogonal")
    return made.train(request.param == "training")


@pytest.fixture
def x() -> Tensor:
    return torch.randn(3, 7, 6, 5)


def right(layer: nn.Module, x: Tensor, W1: Tensor | None = None, W3: Tensor | None = None):
    """The layer in float64, as a function of all that it depends on."""
    W1, W3 = layer.W1 if W1 is None else W1, layer.W3 if W3 is None else W3
    Ws = [W1.double(), None, W3.double()]
    return oracle.layer(x.double(), Ws, layer.eps, layer.eps_mode, layer.transposed)


def right_gradients(layer: nn.Module, x: Tensor, g: Tensor) -> list[Tensor]:
    """dL/dx, dL/dW1 and dL/dW3."""
    leaves = [t.detach().double().requires_grad_() for t in (x, layer.W1, layer.W3)]
    return list(torch.autograd.grad(right(layer, *leaves), leaves, g.double()))


def check(layer: nn.Module, x: Tensor, g: Tensor | None = None) -> None:
    """Forward and backward pass are right for this x and this gradient."""
    given = x.detach().requires_grad_()
    z = layer(given)
    g = torch.randn(3, 4, 2)[:, :, None].expand(3, 4, 6, 2) if g is None else g
    got = torch.autograd.grad(z, [given, layer.W1, layer.W3], g)
    assert_close(z, right(layer, x), **CLOSE)
    for one, other in zip(got, right_gradients(layer, x, g), strict=True):
        assert_close(one, other, **CLOSE)


# Tensors that do not lie as one thinks


def misaligned(x: Tensor) -> Tensor:
    """At an address that is not a multiple of a number's size."""
    buffer = bytearray(1 + 4 * x.numel())
    buffer[1:] = x.numpy().tobytes()
    return torch.frombuffer(buffer, dtype=torch.float32, offset=1).view(x.shape)


WAYS = {
    "negated": torch._neg_view,
    "imaginary part": lambda x: torch.complex(x, x).conj().imag,
    "real part": lambda x: torch.complex(x, x).real,
    "zero tensor": lambda x: torch._efficientzerotensor(x.shape),
    "misaligned": misaligned,
    "permuted": lambda x: x.permute(2, 3, 0, 1).contiguous().permute(2, 3, 0, 1),
    "one number": lambda x: x[0, 0, 0, 0].expand(x.shape),
    "shared memory": lambda x: x.clone().share_memory_(),
}


@pytest.mark.parametrize("way", WAYS)
def test_inputs(layer, x, way):
    check(layer, WAYS[way](x))


@pytest.mark.parametrize("way", WAYS)
def test_gradients(layer, x, way):
    check(layer, x, WAYS[way](torch.randn(3, 4, 6, 2)))


@pytest.mark.parametrize(
    "way",
    {
        "negated": torch._neg_view,
        "transposed": lambda W: W.mT.contiguous().mT,
        "sliced": lambda W: W.repeat_interleave(2, dim=1)[:, ::2],
        "expanded": lambda W: W[:, :1].expand(W.shape),
    }.items(),
    ids=lambda item: item[0],
)
def test_weights(layer, x, way):
    with torch.no_grad():
        layer.W1 = nn.Parameter(way[1](layer.W1.detach()))
    check(layer, x)


def test_a_result_of_no_changed_mode_is_not_the_input(x):
    for training in (True, False):
        z = TensorProjection((7, 6, 5), (7, 6, 5)).train(training)(x)
        kept = x.clone()
        z.relu_()
        assert torch.equal(x, kept)


def test_a_sparse_input_is_refused(layer, x):
    with pytest.raises((ProjectionError, RuntimeError, NotImplementedError)):
        layer(x.to_sparse())


# Defaults for new tensors


@contextmanager
def default_device(name: str) -> Iterator[None]:
    torch.set_default_device(name)
    try:
        yield
    finally:
        torch.set_default_device(None)


@pytest.mark.parametrize("context", [torch.device, default_device])
def test_where_new_tensors_are_on_the_meta_device(layer, x, context):
    g = torch.randn(3, 4, 6, 2)
    expected = right(layer, x), right_gradients(layer, x, g)
    given = x.requires_grad_()
    with context("meta"):
        z = layer(given)
        got = torch.autograd.grad(z, [given, layer.W1, layer.W3], g)
    assert_close(z, expected[0], **CLOSE)
    for one, other in zip(got, expected[1], strict=True):
        assert_close(one, other, **CLOSE)


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16, torch.float16])
def test_where_new_tensors_are_of_another_type(layer, x, dtype):
    g = torch.randn(3, 4, 6, 2)
    torch.set_default_dtype(dtype)
    try:
        check(layer, x, g)
        with torch.no_grad():
            assert_close(layer(x), right(layer, x), **CLOSE)
    finally:
        torch.set_default_dtype(torch.float32)


# Those who look on


def test_fake_tensors(layer, x):
    from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode

    with FakeTensorMode(allow_non_fake_inputs=True) as mode:
        for given in (mode.from_tensor(x).requires_grad_(), x):
            z = layer(given)
            assert isinstance(z, FakeTensor)
            assert z.shape == (3, 4, 6, 2)
            assert z.dtype == torch.float32
            dW1, dW3 = torch.autograd.grad(z.sum(), [layer.W1, layer.W3])
            assert (dW1.shape, dW3.shape) == (layer.W1.shape, layer.W3.shape)


class Wrapped(Tensor):
    """A tensor that holds another one and has no memory of its own, as DTensor has none."""

    inner: Tensor

    @staticmethod
    def __new__(cls, inner):
        made = Tensor._make_wrapper_subclass(
            cls, inner.shape, strides=inner.stride(), dtype=inner.dtype, device=inner.device
        )
        made.inner = inner
        return made

    @classmethod
    def __torch_dispatch__(cls, function, types, args=(), kwargs=None):
        args, kwargs = tree_map_only(Wrapped, lambda t: t.inner, (args, kwargs or {}))
        return tree_map_only(Tensor, Wrapped, function(*args, **kwargs))


def test_a_wrapped_input(layer, x):
    given = Wrapped(x).requires_grad_()
    z = layer(given)
    assert_close(z.inner, right(layer, x), **CLOSE)
    (dx,) = torch.autograd.grad(z.sum(), given)
    expected = right_gradients(layer, x, torch.ones(3, 4, 6, 2))[0]
    assert_close(dx.inner, expected, **CLOSE)


def test_wrapped_weights(layer, x):
    expected = right(layer, x), right_gradients(layer, x, torch.ones(3, 4, 6, 2))[1:]
    for name in ("W1", "W3"):
        setattr(layer, name, nn.Parameter(Wrapped(getattr(layer, name).detach())))
    z = layer(Wrapped(x))
    assert_close(z.inner, expected[0], **CLOSE)
    got = torch.autograd.grad(z.sum(), [layer.W1, layer.W3])
    for one, other in zip(got, expected[1], strict=True):
        assert_close(one.inner, other, **CLOSE)
    with torch.no_grad():
        assert_close(layer(Wrapped(x)).inner, expected[0], **CLOSE)


class Seen(TorchDispatchMode):
    """Notes the operations."""

    def __init__(self):
        super().__init__()
        self.names = []

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        self.names.append(str(function))
        return function(*args, **(kwargs or {}))


def test_a_dispatch_mode_sees_the_work(layer, x):
    with Seen() as seen:
        z = layer(x)
    assert_close(z, right(layer, x), **CLOSE)
    assert seen.names


def test_flops_are_counted(layer, x):
    with FlopCounterMode(display=False) as counter:
        z = layer(x)
        forward = counter.get_total_flops()
        z.sum().backward()
    # At the least mode 3, then mode 1: a product of p × q per column, two operations a product.
    assert forward >= 2 * 3 * (7 * 6 * 5 * 2 + 6 * 2 * 7 * 4)
    assert counter.get_total_flops() > forward


@pytest.fixture
def process_group() -> Iterator[None]:
    distributed = pytest.importorskip("torch.distributed")
    if not distributed.is_available():
        pytest.skip("this torch has no distributed package")
    distributed.init_process_group("gloo", store=distributed.HashStore(), rank=0, world_size=1)
    yield
    distributed.destroy_process_group()


@pytest.mark.usefixtures("process_group")
@pytest.mark.parametrize("of", ["input", "weights", "both"])
def test_distributed_tensors(layer, x, of):
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import DTensor, Replicate, Shard, distribute_tensor

    mesh = init_device_mesh("cpu", (1,))
    expected = right(layer, x), right_gradients(layer, x, torch.ones(3, 4, 6, 2))[1:]
    if of != "input":
        for name in ("W1", "W3"):
            W = distribute_tensor(getattr(layer, name).detach(), mesh, [Replicate()])
            setattr(layer, name, nn.Parameter(W))
    given = x if of == "weights" else distribute_tensor(x, mesh, [Shard(0)])
    try:
        z = layer(given)
        got = torch.autograd.grad(z.sum(), [layer.W1, layer.W3])
    except (ProjectionError, RuntimeError, NotImplementedError) as error:
        said = str(error)
        # Torch refuses to mix the two kinds, and an operator that it has no rule for.
        if "DTensor" in said or "sharding strategy" in said:
            return
        raise

    def whole(t: Tensor) -> Tensor:
        return t.full_tensor() if isinstance(t, DTensor) else t

    assert_close(whole(z), expected[0], **CLOSE)
    for one, other in zip(got, expected[1], strict=True):
        assert_close(whole(one), other, **CLOSE)


# Saved tensors come back as a hook likes


def strided(x: Tensor) -> Tensor:
    """The same numbers with gaps between them, in another order."""
    wide = x.new_full((*reversed(x.shape), 2), torch.nan)[..., 0]
    return wide.permute(*range(x.ndim - 1, -1, -1)).copy_(x)


@pytest.mark.parametrize("create_graph", [False, True])
def test_saved_tensors_with_other_strides(layer, x, create_graph):
    given, g = x.requires_grad_(), torch.randn(3, 4, 6, 2)
    with saved_tensors_hooks(lambda t: t.detach(), strided):
        z = layer(given)
    got = torch.autograd.grad(z, [given, layer.W1, layer.W3], g, create_graph=create_graph)
    for one, other in zip(got, right_gradients(layer, x, g), strict=True):
        assert_close(one, other, **CLOSE)


def test_saved_tensors_kept_elsewhere(layer, x):
    with save_on_cpu():
        check(layer, x)


@pytest.mark.parametrize("back", [lambda t: t, lambda t: t.float()], ids=["bfloat16", "float32"])
def test_saved_tensors_that_were_compressed(layer, x, back):
    given, g = x.requires_grad_(), torch.randn(3, 4, 6, 2)
    with saved_tensors_hooks(lambda t: t.bfloat16(), back):
        z = layer(given)
    got = torch.autograd.grad(z, [given, layer.W1, layer.W3], g)
    for one, other in zip(got, right_gradients(layer, x, g), strict=True):
        assert one.dtype == torch.float32
        # All that was saved is off by up to 2⁻⁸; no product has more than eight of it as factors.
        assert (one - other).norm() <= 8 * 2**-8 * other.norm()


def test_a_saved_tensor_of_another_shape_is_refused(layer, x):
    with saved_tensors_hooks(lambda t: t, lambda t: t.flatten()[:1]):
        z = layer(x.requires_grad_())
    with pytest.raises((ProjectionError, RuntimeError), match="shape"):
        z.sum().backward()


# Tracers and transforms


@pytest.mark.parametrize("tracing_mode", ["real", "fake", "symbolic"])
def test_make_fx(layer, x, tracing_mode):
    def call(weights, x):
        return functional_call(layer, weights, x).clone()

    def loss(weights, x):
        return call(weights, x).square().sum()

    def trace(function):
        # Of other values than those that the graph is then given.
        others = {name: torch.randn_like(W) for name, W in weights.items()}
        return make_fx(function, tracing_mode=tracing_mode)(others, torch.randn_like(x))

    weights = {name: W.detach() for name, W in layer.named_parameters()}
    assert_close(trace(call)(weights, x), right(layer, x), **CLOSE)
    got = trace(grad(loss))(weights, x)
    leaves = [W.double().requires_grad_() for W in weights.values()]
    expected = torch.autograd.grad(right(layer, x, *leaves).square().sum(), leaves)
    for one, other in zip(got.values(), expected, strict=True):
        assert_close(one, other, **CLOSE)


def of_W1(layer, x):
    """The layer as a function of W1; and the same in float64."""
    x, W3 = x.detach(), layer.W3.detach()
    return (
        lambda W1: functional_call(layer, {"W1": W1, "W3": W3}, x),
        lambda W1: right(layer, x, W1, W3),
    )


# Torch's own, for any module.
@pytest.mark.filterwarnings("ignore:Attempted to insert a get_attr Node:UserWarning")
def test_linearize(layer, x):
    v = torch.randn_like(x)
    z, derivative = linearize(layer, x)
    assert_close(z, right(layer, x), **CLOSE)
    assert_close(derivative(v), right(layer, v), **CLOSE)
    f, right_f = of_W1(layer, x)
    W, dW = layer.W1.detach(), torch.randn_like(layer.W1)
    z, derivative = linearize(f, W)
    expected = torch.autograd.functional.jvp(right_f, W.double(), dW.double())
    assert_close((z, derivative(dW)), expected, **CLOSE)


def loss_of_W1(layer, x):
    f, right_f = of_W1(layer, x)
    weights = torch.randn(3, 4, 6, 2)
    return (
        lambda W: (f(W).sin() * weights).sum(),
        lambda W: (right_f(W).sin() * weights.double()).sum(),
    )


@pytest.mark.parametrize(
    ("outer", "inner"),
    [(jacfwd, jacfwd), (jacfwd, jacrev), (jacrev, jacfwd), (jacrev, jacrev)],
    ids=lambda f: f.__name__,
)
def test_second_derivatives_by_transforms(layer, x, outer, inner):
    f, right_f = loss_of_W1(layer, x)
    W = layer.W1.detach()
    try:
        got = outer(inner(f))(W)
    except ProjectionError:
        # Forward mode over forward mode loses a term in torch itself (pytorch/pytorch#197867).
        if (outer, inner) == (jacfwd, jacfwd):
            return
        raise
    expected = torch.autograd.functional.hessian(right_f, W.double())
    assert_close(got, expected, rtol=1e-3, atol=1e-4, check_dtype=False)


@pytest.mark.parametrize("outer", [jacfwd, jacrev], ids=lambda f: f.__name__)
def test_second_derivatives_by_transforms_of_the_input(layer, x, outer):
    def f(x):
        return layer(x).sin().sum()

    leaf = x[0].double()
    expected = torch.autograd.functional.hessian(lambda x: right(layer, x).sin().sum(), leaf)
    try:
        got = outer(jacfwd(f))(x[0])
    except ProjectionError:
        if outer is jacfwd:
            return
        raise
    assert_close(got, expected, rtol=1e-3, atol=1e-4, check_dtype=False)


@pytest.mark.parametrize("vectorize", [False, True])
def test_jacobian_and_hessian(layer, x, vectorize):
    f, right_f = of_W1(layer, x)
    loss, right_loss = loss_of_W1(layer, x)
    W = layer.W1.detach()
    kinds = torch.autograd.functional
    got = kinds.jacobian(f, W, vectorize=vectorize)
    assert_close(got, kinds.jacobian(right_f, W.double()), **CLOSE)
    got = kinds.hessian(loss, W, vectorize=vectorize)
    expected = kinds.hessian(right_loss, W.double())
    assert_close(got, expected, rtol=1e-3, atol=1e-4, check_dtype=False)


def test_a_batch_of_gradients(layer, x):
    given, g = x.requires_grad_(), torch.randn(5, 3, 4, 6, 2)
    leaves = [given, layer.W1, layer.W3]
    got = torch.autograd.grad(layer(given), leaves, g, is_grads_batched=True)
    for i, one in enumerate(g):
        for d, expected in zip(got, right_gradients(layer, x, one), strict=True):
            assert_close(d[i], expected, **CLOSE)


def test_vmap_over_inputs_and_weights(layer, x):
    W1 = torch.randn(3, 7, 4)
    got = vmap(lambda W, x: functional_call(layer, {"W1": W}, x))(W1, x)
    expected = torch.stack([right(layer, one, W) for W, one in zip(W1, x, strict=True)])
    assert_close(got, expected, **CLOSE)


def test_hessian_of_the_transposed_layer():
    layer = TransposeTensorProjection((2, 3, 2), (4, None, 3), init="orthogonal")
    f, right_f = of_W1(layer, torch.randn(2, 2, 3, 2))
    W = layer.W1.detach()
    got = hessian(lambda W: f(W).sin().sum())(W)
    expected = torch.autograd.functional.hessian(lambda W: right_f(W).sin().sum(), W.double())
    assert_close(got, expected, rtol=1e-3, atol=1e-4, check_dtype=False)
