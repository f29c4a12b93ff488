import pytest
import torch
from torch import nn

from tensorprojection.studies.networks.chest_head import HEADS, chest_head, init_from_mpca

# Section 3.2.2 of the paper, with its last layer put right: 256 · 4 + 4 for four classes.
PAPER = {"base": [65_600, 409_856, 1028], "tpl": [65_536, 409_856, 1028]}
PAPERS_HEADS = pytest.mark.parametrize("kind", PAPER)
EVERY_HEAD = pytest.mark.parametrize("kind", HEADS)


def parameters(layer):
    return sum(p.numel() for p in layer.parameters())


@PAPERS_HEADS
def test_parameters_are_those_of_the_papers_table(kind):
    assert [parameters(layer) for layer in chest_head(kind) if parameters(layer)] == PAPER[kind]


def test_with_seven_classes_the_last_layer_is_the_one_the_paper_prints():
    assert parameters(chest_head("base", classes=7).dense2) == 1799


@EVERY_HEAD
def test_shapes_are_those_of_the_papers_table(kind):
    seen = []
    head = chest_head(kind)
    for layer in head:
        layer.register_forward_hook(lambda _, __, out: seen.append(tuple(out.shape[1:])))
    head(torch.rand(2, 1024, 5, 5))
    assert seen == [(64, 5, 5), (1600,), (256,), (256,), (256,), (4,)]


def test_layers_have_readable_names():
    rest = ["flatten", "dense1", "relu", "dropout", "dense2"]
    assert [name for name, _ in chest_head("base").named_children()] == ["conv", *rest]
    assert [name for name, _ in chest_head("tpl").named_children()] == ["projection", *rest]


@EVERY_HEAD
def test_other_backbones_sizes_and_classes(kind):
    head = chest_head(kind, channels=1280, side=3, classes=2, reduced=16)
    assert head(torch.rand(2, 1280, 3, 3)).shape == (2, 2)
    reduction = 1280 * 16 + (16 if kind == "base" else 0)
    assert parameters(head) == reduction + 144 * 256 + 256 + 257 * 2


@EVERY_HEAD
def test_the_reduction_is_linear_and_alike_at_every_place(kind):
    reduce = chest_head(kind)[0].eval()
    x = torch.randn(2, 1024, 5, 5)
    torch.testing.assert_close(reduce(-3 * x), -3 * reduce(x), rtol=1e-5, atol=5e-5)
    torch.testing.assert_close(reduce(x.roll(1, 3)), reduce(x).roll(1, 3))


@EVERY_HEAD
def test_dropout_while_training_only_and_not_at_all_on_demand(kind):
    x = torch.rand(2, 1024, 5, 5)
    head = chest_head(kind)
    assert not torch.equal(head(x), head(x))
    assert torch.equal(head.eval()(x), head(x))
    without = chest_head(kind, dropout=0)
    assert "dropout" not in dict(without.named_children())
    without.load_state_dict(head.state_dict())
    assert torch.equal(without(x), head(x))


def test_one_seed_gives_all_forms_the_same_dense_layers_and_dropout():
    states, dropped = [], []
    for kind in HEADS:
        torch.manual_seed(5)
        head = chest_head(kind)
        states.append(head.state_dict())
        dropped.append(head.dropout(torch.ones(3, 256)))
    for state, drop in zip(states, dropped, strict=True):
        assert torch.equal(drop, dropped[0])
        for name in ("dense1.weight", "dense2.weight"):
            assert torch.equal(state[name], states[0][name])


def test_the_mpca_init_is_that_of_the_features():
    features = torch.randn(60, 12, 3, 3) * torch.linspace(3, 0.1, 12)[:, None, None] + 5
    head = chest_head("tpl-mpca", channels=12, side=3, reduced=4)
    init_from_mpca(head, features)
    vectors = features.sub(features.mean(0)).movedim(1, -1).reshape(-1, 12).double()
    # One mode alone: the leading left singular vectors of its unfolding.
    leading = torch.linalg.svd(vectors, full_matrices=False).Vh[:4].T
    W = head.projection.W1.detach().double()
    torch.testing.assert_close(W @ W.T, leading @ leading.T, rtol=0, atol=1e-5)


@EVERY_HEAD
def test_initialized_as_in_keras(kind):
    head = chest_head(kind)
    for layer in head:
        if isinstance(layer, nn.Conv2d | nn.Linear):
            limit = (6 / sum(layer.weight.shape[:2])) ** 0.5
            assert 0.99 * limit < layer.weight.abs().max() <= limit
            assert not layer.bias.any()
    if kind == "tpl":
        assert head.projection.W1.std().item() == pytest.approx(0.05, rel=0.05)


@pytest.mark.parametrize(
    ("wrong", "rule"),
    [
        ({"kind": "tpl2"}, "a head of 'base', 'tpl', .*, got 'tpl2'"),
        ({"kind": "tpl", "reduced": 2000}, "reduced to 1 … 1024, got 2000"),
        ({"kind": "base", "reduced": 0}, "reduced to 1 … 1024, got 0"),
        ({"kind": "base", "dropout": 1.0}, r"in \[0, 1\), got 1.0"),
    ],
)
def test_wrong_arguments(wrong, rule):
    with pytest.raises(ValueError, match=rule):
        chest_head(**wrong)
