"""Features from inside a model."""

import pytest
import torch
from torch import nn
from torch.testing import assert_close
from torch.utils.data import DataLoader, TensorDataset

import tensorprojection as tp
from tensorprojection import ProjectionTypeError, ProjectionValueError


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.features = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU(inplace=True))
        self.head = nn.Sequential(nn.Flatten(), nn.Dropout(0.5), nn.Linear(4 * 6 * 6, 5))
        self.unused = nn.Linear(2, 2)

    def forward(self, x):
        return self.head(self.features(x))


X = torch.randn(20, 3, 8, 8, generator=torch.Generator().manual_seed(0))


def expected(model, depth):
    model = model.eval()
    with torch.no_grad():
        x = X
        for layer in model.features[:depth]:
            x = layer(x).clone()
    return x


@pytest.mark.parametrize("depth", [1, 2, 3])
def test_features_are_the_modules_outputs(depth):
    model = Net()
    found = torch.cat(list(tp.capture(model, f"features.{depth - 1}", X.split(6))))
    assert_close(found, expected(model, depth))
    assert not found.requires_grad


@pytest.mark.parametrize(
    "loader",
    [
        X,
        [X[:9], X[9:]],
        [(X[:9], 1), (X[9:], 2)],
        DataLoader(TensorDataset(X, torch.zeros(20)), batch_size=7),
    ],
)
def test_loaders_of_all_kinds_can_be_gone_through_again(loader):
    model = Net()
    features = tp.capture(model, "features", loader)
    first, second = torch.cat(list(features)), torch.cat(list(features))
    assert torch.equal(first, second)
    assert_close(first, expected(model, 3))


def test_of_an_iterator_there_is_one_pass_and_it_shows():
    features = tp.capture(Net(), "features", iter(X.split(6)))
    assert next(features).shape == (6, 4, 6, 6)
    assert sum(len(f) for f in features) == 14
    with pytest.raises(StopIteration):
        next(features)


def test_the_model_is_left_as_it_was():
    model = Net()
    model.head.eval()
    modes = [m.training for m in model.modules()]
    state = {name: value.clone() for name, value in model.state_dict().items()}
    for _ in tp.capture(model, "features", X.split(6)):
        # Already between batches: whoever takes them may stop here.
        assert [m.training for m in model.modules()] == modes
        assert not model.features._forward_hooks
        break
    assert True in modes
    assert False in modes
    for name, value in model.state_dict().items():
        assert torch.equal(value, state[name])  # BatchNorm's statistics among them


def test_the_model_is_left_as_it_was_after_an_error():
    model = Net()
    with pytest.raises(RuntimeError):
        list(tp.capture(model, "features", torch.randn(4, 7, 8, 8)))
    assert model.training
    assert not model.features._forward_hooks


def test_a_module_called_twice_gives_both_outputs():
    class Twice(nn.Module):
        def __init__(self):
            super().__init__()
            self.turn = nn.Linear(3, 3)

        def forward(self, x):
            return self.turn(self.turn(x))

    model = Twice()
    x = torch.randn(5, 3)
    one, two = tp.capture(model, "turn", [x])
    assert_close(one, model.turn(x).detach())
    assert_close(two, model.turn(one).detach())


def test_of_a_tuple_the_first_is_taken():
    model = nn.Sequential(nn.LSTM(3, 4, batch_first=True))
    (found,) = tp.capture(model, "0", torch.randn(5, 6, 3))
    assert found.shape == (5, 6, 4)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("feature.1", r"inside Net, such as .*'features.1'.*, got 'feature.1'"),
        ("zzzz", r"such as 'features', 'features.0'.*, got 'zzzz'"),
    ],
)
def test_a_name_that_is_not_there(name, message):
    with pytest.raises(ProjectionValueError, match=message):
        tp.capture(Net(), name, X)


def test_a_module_that_is_never_called():
    with pytest.raises(ProjectionValueError, match="forward pass calls, got one that it does not"):
        list(tp.capture(Net(), "unused", X))


def test_a_module_that_returns_no_tensor():
    class Named(nn.Module):
        def forward(self, x):
            return {"x": x}

    with pytest.raises(ProjectionTypeError, match=r"returns a tensor.*got dict"):
        list(tp.capture(nn.Sequential(Named()), "0", X))


def test_a_module_of_two_names():
    relu = nn.ReLU()
    model = nn.Sequential(relu, nn.Conv2d(3, 5, 1), relu)
    x = torch.randn(2, 3, 4, 4)
    for name in ("0", "2"):  # one module, called twice
        assert [f.shape[1] for f in tp.capture(model, name, x)] == [3, 5]
