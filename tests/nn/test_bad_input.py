"""Bad input: one clear error of the library's own class, with the rule and the value passed."""

import pytest
import torch
from torch.func import functional_call, stack_module_state, vmap
from torch.testing import assert_close

from tensorprojection import (
    LazyTensorProjection,
    ProjectionDeviceError,
    ProjectionError,
    ProjectionTypeError,
    ProjectionValueError,
    TensorProjection,
    TransposeTensorProjection,
)
from tensorprojection.functional import (
    back_project,
    fold,
    mode_product,
    polar,
    project,
    unfold,
    vec,
)

NAN, INF = float("nan"), float("inf")


def ints(*shape):
    return torch.ones(shape, dtype=torch.int64)


def meta(*shape):
    return torch.empty(shape, device="meta")


def test_the_errors_are_python_errors_too():
    assert issubclass(ProjectionValueError, ValueError)
    assert issubclass(ProjectionTypeError, TypeError)
    assert issubclass(ProjectionDeviceError, RuntimeError)
    for error in (ProjectionValueError, ProjectionTypeError, ProjectionDeviceError):
        assert issubclass(error, ProjectionError)


# Building a layer


@pytest.mark.parametrize(
    ("in_shape", "out_shape", "message"),
    [
        ((5, 4), (3, 5), r"shrink every mode.*got 4 -> 5 in mode 2 \(\(5, 4\) -> \(3, 5\)\)"),
        ((5, 4), (3,), r"one entry per mode each, got \(5, 4\) \(2 modes\) and \(3,\) \(1 modes\)"),
        ((5,), (3, 2), r"one entry per mode each, got \(5,\) \(1 modes\) and \(3, 2\)"),
        ((0, 4), (None, 2), r"in_shape to hold sizes of at least 1, got 0 in \(0, 4\)"),
        ((-5, 4), (None, 2), r"in_shape to hold sizes of at least 1, got -5 in \(-5, 4\)"),
        ((5, 4), (0, 2), r"out_shape to hold sizes of at least 1, got 0 in \(0, 2\)"),
        ((5, 4), (3, -2), r"out_shape to hold sizes of at least 1, got -2 in \(3, -2\)"),
        ((), (), r"in_shape to have at least one mode, got \(\)"),
        ((5,), (), r"out_shape to have at least one mode, got \(\)"),
    ],
)
def test_shapes_that_break_a_rule(in_shape, out_shape, message):
    with pytest.raises(ProjectionValueError, match=message):
        TensorProjection(in_shape, out_shape)


def test_a_transposed_layer_enlarges():
    with pytest.raises(ProjectionValueError, match=r"enlarge every mode.*got 5 -> 4 in mode 1"):
        TransposeTensorProjection((5, 4), (4, 6))


@pytest.mark.parametrize(
    ("in_shape", "out_shape", "message"),
    [
        (5, (3,), r"in_shape to be a sequence.*got 5"),
        ((5,), 3, r"out_shape to be a sequence.*got 3"),
        ("54", (3, 2), r"in_shape to be a sequence.*got '54'"),
        ({5, 4}, (3, 2), r"in_shape to be a sequence.*got \{"),
        (None, (3, 2), r"in_shape to be a sequence.*got None"),
        ((5.0, 4), (3, 2), r"in_shape to hold integers, got 5.0 in \(5.0, 4\)"),
        ((None, 4), (3, 2), r"in_shape to hold integers, got None"),
        ((5, 4), (3, "2"), r"out_shape to hold integers or None, got '2'"),
        ((True, 4), (None, 2), r"in_shape to hold integers, got True"),
    ],
)
def test_shapes_that_are_no_shapes(in_shape, out_shape, message):
    with pytest.raises(ProjectionTypeError, match=message):
        TensorProjection(in_shape, out_shape)


@pytest.mark.parametrize("eps", [0, 0.0, -1e-3, NAN, INF, -INF])
@pytest.mark.parametrize("eps_mode", ["absolute", "relative"])
def test_eps_that_breaks_the_rule(eps, eps_mode):
    rule = f"Expected a finite eps > 0, got {eps}"
    with pytest.raises(ProjectionValueError, match=rule):
        TensorProjection((5, 4), (3, 2), eps=eps, eps_mode=eps_mode)
    with pytest.raises(ProjectionValueError, match=rule):
        TransposeTensorProjection((3, 2), (5, 4), eps=[1e-3, eps], eps_mode=eps_mode)
    with pytest.raises(ProjectionValueError, match=rule):
        polar(torch.randn(5, 3), eps, eps_mode=eps_mode)


@pytest.mark.parametrize("eps", [1e160, 1e-170])
def test_an_eps_whose_square_cannot_be_added(eps):
    """By no path: neither by the layers nor by the function."""
    for make in (
        lambda: TensorProjection((5, 4), (3, 2), eps=eps),
        lambda: LazyTensorProjection((3, 2), eps=eps),
        lambda: polar(torch.randn(5, 3), eps),
        lambda: polar(torch.randn(5, 3, dtype=torch.float64), eps, eps_mode="relative"),
    ):
        with pytest.raises(ProjectionValueError, match=r"an eps whose square is neither 0"):
            make()


@pytest.mark.parametrize(
    "kind",
    [TensorProjection, TransposeTensorProjection, LazyTensorProjection],
    ids=lambda k: k.__name__,
)
def test_an_option_that_does_not_exist(kind):
    shapes = ((3,),) if kind is LazyTensorProjection else ((5,), (5,))
    with pytest.raises(TypeError, match="unexpected keyword argument 'epsilon'"):
        kind(*shapes, epsilon=1e-3)


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"eps": "0.1"}, ProjectionTypeError, "eps to be a number, got str"),
        ({"eps": True}, ProjectionTypeError, "eps to be a number, got bool"),
        (
            {"eps": [1e-3] * 3},
            ProjectionValueError,
            r"eps to be one value or one per mode \(2\).*3",
        ),
        ({"eps_mode": "scaled"}, ProjectionValueError, "'absolute' or 'relative', got 'scaled'"),
        ({"init": "zeros"}, ProjectionValueError, "'dct', or a function of a tensor, got 'zeros'"),
        ({"init": ["normal"]}, ProjectionValueError, r"init to be one value or one per mode \(2\)"),
        ({"dtype": torch.int32}, ProjectionTypeError, "floating-point dtype, got torch.int32"),
        ({"dtype": torch.complex64}, ProjectionTypeError, "got torch.complex64"),
    ],
)
def test_options_that_break_a_rule(options, error, message):
    with pytest.raises(error, match=message):
        TensorProjection((5, 4), (3, 2), **options)


# Calling a layer


@pytest.fixture(params=["training", "eval", "frozen"])
def down(request):
    layer = TensorProjection((6, 5, 4), (3, None, 2)).train(request.param == "training")
    return layer.freeze() if request.param == "frozen" else layer


@pytest.mark.parametrize(
    ("shape", "message"),
    [
        ((8, 6, 5, 3), r"shape \(..., 6, 5, 4\), got \(8, 6, 5, 3\): the size differs in mode 3"),
        ((8, 7, 5, 3), r"got \(8, 7, 5, 3\): the sizes differ in modes 1, 3"),
        ((8, 4, 5, 6), r"got \(8, 4, 5, 6\): modes 1 and 3 look swapped.*in_shape=\(4, 5, 6\)"),
        ((5, 4), r"got \(5, 4\): it has 2 axes, the layer has 3 modes"),
        ((), r"got \(\): it has 0 axes"),
        ((8, 0, 5, 4), r"got \(8, 0, 5, 4\)"),
    ],
)
def test_an_input_of_the_wrong_shape(down, shape, message):
    with pytest.raises(ProjectionValueError, match=message):
        down(torch.ones(shape))


def test_an_input_of_the_wrong_shape_transposed():
    layer = TransposeTensorProjection((3, 2), (6, 4))
    with pytest.raises(ProjectionValueError, match=r"shape \(..., 3, 2\), got \(8, 6, 4\)"):
        layer(torch.ones(8, 6, 4))


@pytest.mark.parametrize("method", ["captured_energy", "reconstruct"])
def test_an_input_of_the_wrong_shape_in_other_methods(method):
    layer = TensorProjection((6, 5), (3, None))
    with pytest.raises(ProjectionValueError, match=r"shape \(..., 6, 5\), got \(8, 5, 5\)"):
        getattr(layer, method)(torch.ones(8, 5, 5))


@pytest.mark.parametrize("dtype", [torch.int64, torch.uint8, torch.bool, torch.complex64])
def test_an_input_that_is_not_floating_point(down, dtype):
    message = f"the input to be a real floating-point tensor, got {dtype}"
    with pytest.raises(ProjectionTypeError, match=message):
        down(torch.ones(8, 6, 5, 4).to(dtype))


@pytest.mark.parametrize(("x", "kind"), [([1.0], "list"), (None, "NoneType"), (1.0, "float")])
def test_an_input_that_is_no_tensor(down, x, kind):
    with pytest.raises(ProjectionTypeError, match=f"the input to be a torch.Tensor, got {kind}"):
        down(x)


def test_an_input_on_another_device(down):
    with pytest.raises(
        ProjectionDeviceError, match=r"one device, got the input on meta and [WU]1 on cpu"
    ):
        down(meta(8, 6, 5, 4))


def test_a_layer_on_another_device(down):
    with pytest.raises(ProjectionDeviceError, match=r"got the input on cpu and [WU]1 on meta"):
        down.to("meta")(torch.ones(8, 6, 5, 4))


# Functions


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda: polar(torch.ones(3, 5)), ValueError, r"1 <= q <= p, got \(3, 5\)"),
        (lambda: polar(torch.ones(5)), ValueError, r"shape \(..., p, q\).*got \(5,\)"),
        (lambda: polar(torch.ones(5, 0)), ValueError, r"1 <= q <= p, got \(5, 0\)"),
        (lambda: polar(ints(5, 3)), TypeError, "W to be a real floating-point tensor, got .*int64"),
        (lambda: polar([[1.0]]), TypeError, "W to be a torch.Tensor, got list"),
        (lambda: polar(torch.ones(5, 3), "1"), TypeError, "eps to be a number, got str"),
        (lambda: polar(torch.ones(5, 3), eps_mode="r"), ValueError, "got 'r'"),
    ],
)
def test_polar(call, error, message):
    with pytest.raises(error, match=message) as info:
        call()
    assert isinstance(info.value, ProjectionError)


def x64(*shape):
    return torch.ones(shape, dtype=torch.float64)


@pytest.mark.parametrize(
    ("function", "args", "error", "message"),
    [
        (project, (x64(8, 6), [x64(5, 3)]), ValueError, r"U1 of shape \(6, q\).*got \(5, 3\)"),
        (project, (x64(8, 6, 4), [None, x64(6, 3)]), ValueError, r"U2 of shape \(4, q\)"),
        (back_project, (x64(8, 3), [x64(6, 4)]), ValueError, r"U1 of shape \(p, 3\)"),
        (project, (x64(6), [None, x64(6, 3)]), ValueError, r"at least 2 axes.*got shape \(6,\)"),
        (project, (x64(6), []), ValueError, r"at least 1 axes.*and 0 matrices"),
        (project, (x64(6), [x64(6)]), ValueError, r"U1 of shape \(6, q\).*got \(6,\)"),
        (project, (ints(8, 6), [x64(6, 3)]), TypeError, "the input to be .* got torch.int64"),
        (project, (x64(8, 6), [ints(6, 3)]), TypeError, "U1 to be .* got torch.int64"),
        (project, ([1.0], [x64(6, 3)]), TypeError, "the input to be a torch.Tensor, got list"),
        (project, (x64(8, 6), [[[1.0]]]), TypeError, "U1 to be a torch.Tensor, got list"),
        (project, (meta(8, 6), [x64(6, 3)]), RuntimeError, "input on meta and U1 on cpu"),
        (back_project, (x64(8, 3), [meta(6, 3)]), RuntimeError, "input on cpu and U1 on meta"),
    ],
)
def test_project(function, args, error, message):
    with pytest.raises(error, match=message) as info:
        function(*args)
    assert isinstance(info.value, ProjectionError)


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda: unfold(x64(6, 5), 0), ValueError, "mode from 1 to 2, got 0: modes count from 1"),
        (lambda: unfold(x64(6, 5), 3), ValueError, "mode from 1 to 2, got 3"),
        (lambda: unfold(x64(6, 5), 2, batch_dims=1), ValueError, "mode from 1 to 1, got 2"),
        (lambda: vec(x64(6, 5), batch_dims=2), ValueError, r"batch_dims < 2.*\(6, 5\), got 2"),
        (lambda: vec(x64(6, 5), batch_dims=-1), ValueError, "got -1"),
        (lambda: fold(x64(6, 5), 1, (6, 4)), ValueError, r"\(..., 6, 4\) to fold.*got \(6, 5\)"),
        (lambda: fold(x64(6), 1, (6,)), ValueError, r"to fold along mode 1 into.*got \(6,\)"),
        (lambda: fold(x64(6, 5), 3, (6, 5)), ValueError, "mode from 1 to 2, got 3"),
        (
            lambda: mode_product(x64(6, 5), x64(3, 6), 2),
            ValueError,
            r"5 columns for mode 2 of a tensor of shape \(6, 5\), got \(3, 6\)",
        ),
        (lambda: mode_product(x64(6, 5), x64(6), 1), ValueError, r"got \(6,\)"),
        (lambda: mode_product(x64(6, 5), x64(3, 6), 0), ValueError, "mode from 1 to 2, got 0"),
        (
            lambda: mode_product(x64(6, 5), meta(3, 6).double(), 1),
            RuntimeError,
            "cpu.*meta|meta.*cpu",
        ),
        (lambda: mode_product(x64(6, 5), ints(3, 6), 1), TypeError, "int64"),
        (lambda: vec([1.0]), TypeError, "torch.Tensor, got list"),
        (lambda: unfold([1.0], 1), TypeError, "torch.Tensor, got list"),
    ],
)
def test_modes(call, error, message):
    with pytest.raises(error, match=message) as info:
        call()
    assert isinstance(info.value, ProjectionError)


# NaN and infinity


@pytest.mark.parametrize("bad", [NAN, INF, -INF])
@pytest.mark.parametrize("training", [True, False])
def test_bad_numbers_in_the_input_flow_through(bad, training):
    layer = TensorProjection((6, 5, 4), (None, 3, 2)).train(training)
    x = torch.randn(3, 6, 5, 4)
    clean = layer(x)
    x[1, 2, 0, 3] = bad
    z = layer(x)
    # The sample's projected slice is gone; its other slices and the other samples are untouched.
    touched = torch.zeros_like(z, dtype=torch.bool)
    touched[1, 2] = True
    assert not z[touched].isfinite().any()
    assert_close(z[~touched], clean[~touched], rtol=0, atol=1e-6)


def test_a_bad_number_in_the_input_reaches_the_gradient_of_W():
    layer = TensorProjection((6,), (3,))
    layer(torch.tensor([1.0, NAN, 1.0, 1.0, 1.0, 1.0])).sum().backward()
    assert layer.W1.grad.isnan().any()


@pytest.fixture(params=[NAN, INF, -INF])
def diverged(request):
    layer = TensorProjection((6, 5, 4), (3, None, 2))
    layer.W3.data[1, 0] = request.param
    return layer


def test_a_diverged_W_gives_nan_and_recovers(diverged):
    layer = TensorProjection((6, 5, 4), (3, None, 2)).eval()
    x = torch.randn(8, 6, 5, 4)
    with torch.no_grad():
        layer(x)
        layer.W3.data.copy_(diverged.W3)
        assert layer(x).isnan().all()
        assert layer.freeze()(x).isnan().all()
        assert layer.orthogonality_error().isnan()
        layer.reset_parameters()
        assert layer(x).isfinite().all()


def test_a_diverged_W_of_an_ensemble_leaves_the_others_alone(diverged):
    layers = [TensorProjection((6, 5, 4), (3, None, 2)), diverged]
    parameters, _ = stack_module_state(layers)
    x = torch.randn(6, 5, 4)
    z = vmap(lambda p: functional_call(layers[0], p, (x,)))(parameters)
    assert_close(z[0], layers[0](x))
    assert z[1].isnan().all()


# Dynamo instantiates autograd.Function for every model that has one, and inductor imports modules
# built by torch.jit; torch then warns of its own doing.
@pytest.mark.filterwarnings("ignore:.*should not be instantiated:DeprecationWarning")
@pytest.mark.filterwarnings(r"ignore:`torch\.jit\.script:DeprecationWarning")
def test_a_diverged_W_in_a_compiled_layer():
    torch._dynamo.reset()
    layer = TensorProjection((6, 5, 4), (3, None, 2))
    compiled = torch.compile(layer, fullgraph=True, backend="aot_eager")
    x = torch.randn(8, 6, 5, 4)
    with torch.no_grad():
        assert_close(compiled(x), layer(x))
        layer.W3[1, 0] = NAN
        assert compiled(x).isnan().all()


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("eps_mode", "Relative", "'absolute' or 'relative', got 'Relative'"),
        ("eps", 0.0, "eps > 0, got 0"),
        ("eps", (1e-3, -1.0), "eps > 0, got -1"),
        ("eps", (1e-3, 1e-3, 1e-3), "one per mode"),
    ],
)
def test_options_are_checked_when_they_are_assigned(training, name, value, message):
    layer = TensorProjection((6, 4), (3, 2)).train(training)
    x = torch.randn(6, 4)
    z = layer(x)
    with pytest.raises(ProjectionValueError, match=message):
        setattr(layer, name, value)
    assert torch.equal(layer(x), z)


@pytest.mark.parametrize("training", [True, False])
def test_another_eps_takes_effect(training):
    layer = TensorProjection((6, 4), (3, 2)).train(training)
    x = torch.randn(6, 4)
    with torch.no_grad():
        layer(x)
        layer.eps = 1.0
        assert layer.eps == (1.0, 1.0)
        expected = TensorProjection((6, 4), (3, 2), eps=1.0)
        expected.load_state_dict(layer.state_dict())
        assert_close(layer(x), expected(x))


def test_zero_W_gives_zero_with_an_absolute_eps():
    layer = TensorProjection((6, 4), (3, 2))
    layer.W2.data.zero_()
    assert torch.equal(layer(torch.randn(6, 4)), torch.zeros(3, 2))
