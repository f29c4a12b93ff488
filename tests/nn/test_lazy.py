"""The lazy layers behave like torch's own lazy modules."""

import copy
import pickle

import pytest
import torch
from torch import nn
from torch.nn.parameter import UninitializedParameter
from torch.testing import assert_close

from tensorprojection import (
    LazyTensorProjection,
    LazyTransposeTensorProjection,
    ProjectionTypeError,
    ProjectionValueError,
    TensorProjection,
    TransposeTensorProjection,
)


@pytest.fixture(params=["projection", "transposed"])
def case(request):
    """A lazy class, the class it becomes, the shape to infer and the target."""
    if request.param == "projection":
        return LazyTensorProjection, TensorProjection, (7, 6, 5), (4, None, 2)
    return LazyTransposeTensorProjection, TransposeTensorProjection, (4, 6, 2), (7, None, 5)


def test_first_input_gives_the_shapes(case, reference):
    lazy, eager, in_shape, target = case
    layer = lazy(target)
    assert all(isinstance(W, UninitializedParameter) for W in layer.parameters())

    x = torch.randn(3, *in_shape)
    z = layer(x)
    assert_close(z.double(), reference(layer, x), rtol=0, atol=1e-5)
    expected = eager(in_shape, target)
    assert (layer.in_shape, layer.out_shape) == (expected.in_shape, expected.out_shape)
    assert [W.shape for W in layer.parameters()] == [W.shape for W in expected.parameters()]


def test_class_changes_at_the_first_call(case):
    lazy, eager, in_shape, target = case
    layer = lazy(target)
    assert type(layer) is lazy
    layer(torch.randn(3, *in_shape))
    assert type(layer) is eager
    assert repr(layer) == repr(eager(in_shape, target))


def test_later_inputs_are_held_to_the_first(case):
    lazy, _, in_shape, target = case
    layer = lazy(target)
    layer(torch.randn(3, *in_shape))
    W = layer.W1.detach().clone()
    layer(torch.randn(2, 8, *in_shape))
    assert torch.equal(layer.W1, W)
    with pytest.raises(ProjectionValueError, match=r"got \(3, 9, 9, 9\)"):
        layer(torch.randn(3, 9, 9, 9))


def test_a_mode_that_turns_out_to_be_left_alone_loses_its_parameter():
    layer = LazyTensorProjection((7, 3))
    assert [name for name, _ in layer.named_parameters()] == ["W1", "W2"]
    layer(torch.randn(2, 7, 6))
    assert [name for name, _ in layer.named_parameters()] == ["W2"]
    assert layer.W1 is None


def test_inside_a_sequential_as_torchs_own():
    model = nn.Sequential(
        nn.LazyConv2d(8, 3, padding=1),
        LazyTensorProjection((None, 4, 4)),
        LazyTransposeTensorProjection((None, 6, 6)),
        nn.Flatten(),
        nn.LazyLinear(5),
    )
    assert model(torch.randn(2, 3, 9, 9)).shape == (2, 5)
    assert type(model[1]) is TensorProjection
    assert type(model[2]) is TransposeTensorProjection
    assert model[1].in_shape == (8, 9, 9)
    assert model[2].in_shape == (8, 4, 4)


def test_options_reach_the_layer():
    layer = LazyTensorProjection(
        (3, 2), eps=[0.1, 0.2], eps_mode="relative", init="orthogonal", dtype=torch.float64
    )
    layer(torch.randn(7, 6))
    assert layer.eps == (0.1, 0.2)
    assert layer.eps_mode == "relative"
    assert {W.dtype for W in layer.parameters()} == {torch.float64}
    eye = torch.eye(3, dtype=torch.float64)
    assert_close(layer.W1.T @ layer.W1, eye, rtol=0, atol=1e-12)


def test_init_is_that_of_the_eager_layer(case):
    lazy, eager, in_shape, target = case
    torch.manual_seed(3)
    expected = eager(in_shape, target)
    layer = lazy(target)
    torch.manual_seed(3)
    layer.initialize_parameters(torch.empty(3, *in_shape))
    for W, expected_W in zip(layer.parameters(), expected.parameters(), strict=True):
        assert torch.equal(W, expected_W)


def test_repr_before_the_first_call():
    expected = "LazyTensorProjection(-> (None, 6, 6), shapes from the first input)"
    assert repr(LazyTensorProjection((None, 6, 6))) == expected


def test_to_before_the_first_call():
    layer = LazyTensorProjection((3, 2)).to(torch.float64)
    layer(torch.randn(7, 6).double())
    assert {W.dtype for W in layer.parameters()} == {torch.float64}


@pytest.mark.parametrize("training", [True, False])
def test_first_call_in_either_mode_and_without_gradient(training):
    layer = LazyTensorProjection((3, 2)).train(training)
    x = torch.randn(4, 7, 6)
    with torch.no_grad():
        z = layer(x)
    assert_close(layer(x), z)
    layer(x).sum().backward()
    assert layer.W1.grad.shape == (7, 3)


# State dicts


def test_state_dict_before_and_after(case):
    lazy, _, in_shape, target = case
    layer = lazy(target)
    before = layer.state_dict()
    assert list(before) == ["W1", "W3"]
    assert all(isinstance(W, UninitializedParameter) for W in before.values())
    layer(torch.randn(3, *in_shape))
    after = layer.state_dict()
    assert list(after) == ["W1", "W3"]
    assert [W.shape for W in after.values()] == [(7, 4), (5, 2)]


def test_lazy_state_loads_into_another_lazy_layer(case):
    lazy, _, in_shape, target = case
    layer = lazy(target)
    layer.load_state_dict(lazy(target).state_dict())
    assert layer.has_uninitialized_params()
    assert layer(torch.randn(3, *in_shape)).shape == (3, *layer.out_shape)


@pytest.mark.parametrize("assign", [False, True])
def test_loading_into_a_layer_that_has_seen_no_input(case, assign):
    lazy, eager, in_shape, target = case
    trained, layer = eager(in_shape, target), lazy(target)
    layer.load_state_dict(trained.state_dict(), assign=assign)
    assert not layer.has_uninitialized_params()
    x = torch.randn(3, *in_shape)
    assert torch.equal(layer(x), trained(x))
    assert type(layer) is eager
    assert torch.equal(layer.W1, trained.W1)


def test_loading_a_state_in_which_a_mode_was_left_alone():
    # The size is given and equals the input's: the trained layer has no W1.
    trained = TensorProjection((7, 6), (7, 3))
    layer = LazyTensorProjection((7, 3))
    layer.load_state_dict(trained.state_dict())
    x = torch.randn(2, 7, 6)
    assert torch.equal(layer(x), trained(x))


def test_loading_inside_a_model():
    def build():
        return nn.Sequential(nn.LazyConv2d(8, 3), LazyTensorProjection((None, 4, 4)))

    trained, model = build(), build()
    x = torch.randn(2, 3, 9, 9)
    expected = trained(x)
    model.load_state_dict(trained.state_dict())
    assert torch.equal(model(x), expected)


def test_loaded_shapes_that_do_not_fit_the_first_input():
    layer = LazyTensorProjection((4, None))
    layer.load_state_dict(TensorProjection((7, 6), (4, None)).state_dict())
    with pytest.raises(ProjectionValueError, match=r"W1 of shape \(9, 4\).*has \(7, 4\)"):
        layer(torch.randn(2, 9, 6))


def test_a_loaded_state_without_a_W_that_the_first_input_needs():
    layer = LazyTensorProjection((4, 3))
    layer.load_state_dict(TensorProjection((4, 6), (4, 3)).state_dict())  # mode 1 left alone
    with pytest.raises(ProjectionValueError, match=r"W1 of shape \(7, 4\).*state has none"):
        layer(torch.randn(2, 7, 6))


def test_lazy_state_does_not_load_into_an_initialised_layer():
    # torch's own error for its own lazy modules.
    with pytest.raises(RuntimeError, match="uninitialized parameter"):
        TensorProjection((7, 6), (4, None)).load_state_dict(
            LazyTensorProjection((4, None)).state_dict()
        )


# Wrong shapes and types at the first call


def test_a_first_input_that_does_not_fit_leaves_the_layer_lazy():
    layer = LazyTensorProjection((4, 3))
    with pytest.raises(ProjectionValueError, match="2 -> 3 in mode 2"):
        layer(torch.randn(8, 5, 2))
    assert type(layer) is LazyTensorProjection
    assert layer(torch.randn(8, 7, 6)).shape == (8, 4, 3)


@pytest.mark.parametrize(
    ("x", "error", "message"),
    [
        (torch.ones(6), ProjectionValueError, r"at least 2 axes.*got shape \(6,\)"),
        (torch.ones(8, 3, 6), ProjectionValueError, "3 -> 4 in mode 1"),
        (torch.ones(8, 0, 6), ProjectionValueError, "at least 1, got 0"),
        (torch.ones(8, 7, 6, dtype=torch.int64), ProjectionTypeError, "got torch.int64"),
        ([[1.0]], ProjectionTypeError, "got list"),
    ],
)
def test_bad_first_input(x, error, message):
    with pytest.raises(error, match=message):
        LazyTensorProjection((4, 3))(x)


def test_bad_first_input_transposed():
    with pytest.raises(ProjectionValueError, match="5 -> 4 in mode 1"):
        LazyTransposeTensorProjection((4, 3))(torch.ones(8, 5, 2))


@pytest.mark.parametrize("out_shape", [(), (0, 3), (4, -1)])
def test_bad_target(out_shape):
    with pytest.raises(ProjectionValueError, match="Expected out_shape"):
        LazyTensorProjection(out_shape)


# Training and copies


def test_optimizer_after_a_dry_run():
    model = nn.Sequential(LazyTensorProjection((4, 3)), nn.Flatten(), nn.Linear(12, 1))
    x = torch.randn(8, 7, 6)
    with torch.no_grad():
        model(x)
    before = model[0].W1.detach().clone()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    model(x).square().mean().backward()
    optimizer.step()
    assert not torch.equal(model[0].W1, before)


def test_an_optimizer_made_before_holds_the_same_parameters():
    # The parameter object stays; only its data comes later, as in torch's lazy modules.
    layer = LazyTensorProjection((4, 3))
    held = list(layer.parameters())
    layer(torch.randn(8, 7, 6))
    assert [a is b for a, b in zip(held, layer.parameters(), strict=True)] == [True, True]


def duplicate(layer, how):
    return copy.deepcopy(layer) if how == "deepcopy" else pickle.loads(pickle.dumps(layer))


@pytest.mark.parametrize("how", ["deepcopy", "pickle"])
def test_copies_before_and_after_the_first_call(how):
    layer = LazyTensorProjection((4, 3))
    twin = duplicate(layer, how)
    x = torch.randn(8, 7, 6)
    z = layer(x)
    assert type(twin) is LazyTensorProjection
    assert twin(x).shape == (8, 4, 3)
    assert not torch.equal(twin.W1, layer.W1)
    assert torch.equal(duplicate(layer, how)(x), z)


@pytest.mark.parametrize(
    "ask", ["transpose", "freeze", "orthogonality_error", "projections"], ids=str
)
def test_what_a_lazy_layer_does_not_know_before_its_first_call(ask):
    layer = LazyTensorProjection((4, None))
    with pytest.raises(ProjectionValueError, match="no shapes yet"):
        getattr(layer, ask)()
    layer(torch.randn(8, 7, 6))
    getattr(layer, ask)()


def test_transpose_of_a_layer_that_was_lazy():
    layer = LazyTensorProjection((4, None))
    layer(torch.randn(8, 7, 6))
    up = layer.transpose()
    assert up.W1 is layer.W1
    assert up(torch.randn(2, 4, 6)).shape == (2, 7, 6)
