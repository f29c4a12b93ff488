import math

import pytest
import torch
from torch import nn

from tensorprojection.studies.errors import StudyError
from tensorprojection.studies.networks.chest_head import HEADS, chest_head, init_from_mpca

# Section 3.2.2 of the paper, with its last layer put right: 256 · 4 + 4 for four classes.
PAPER = {"base": [65_600, 409_856, 1028], "tpl": [65_536, 409_856, 1028]}
PAPERS_HEADS = pytest.mark.parametrize("kind", PAPER)
CHANNELS = pytest.mark.parametrize("kind", [kind for kind in HEADS if kind != "gap"])


def parameters(layer):
    return sum(p.numel() for p in layer.parameters())


@PAPERS_HEADS
def test_parameters_are_those_of_the_papers_table(kind):
    assert [parameters(layer) for layer in chest_head(kind) if parameters(layer)] == PAPER[kind]


def test_with_seven_classes_the_last_layer_is_the_one_the_paper_prints():
    assert parameters(chest_head("base", classes=7).dense2) == 1799


@CHANNELS
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


@pytest.mark.parametrize(
    ("kind", "shape", "own"),
    [
        ("conv-16", (16, 3, 3), 1280 * 16 + 16),
        ("tpl-16", (16, 3, 3), 1280 * 16),
        ("tcl-16", (16, 3, 3), 1280 * 16),
        ("tpl-32x2x1", (32, 2, 1), 1280 * 32 + 3 * 2 + 3),
        ("avg-32x2x2", (32, 2, 2), 1280 * 32 + 32),
        ("gap", (1280, 1, 1), 0),
    ],
)
def test_other_reductions_backbones_and_classes(kind, shape, own):
    head = chest_head(kind, channels=1280, side=3, classes=2)
    at = [name for name, _ in head.named_children()].index("flatten")
    x = torch.rand(2, 1280, 3, 3)
    assert head[:at](x).shape == (2, *shape)
    assert head(x).shape == (2, 2)
    assert parameters(head) == own + math.prod(shape) * 256 + 256 + 257 * 2


def test_64_channels_by_name_are_the_papers_heads():
    for name, sized in (("base", "conv-64"), ("tpl", "tpl-64"), ("tcl", "tcl-64")):
        states = []
        for kind in (name, sized):
            torch.manual_seed(3)
            states.append(chest_head(kind).state_dict())
        assert list(states[0]) == list(states[1])
        assert all(torch.equal(states[0][key], states[1][key]) for key in states[0])


@CHANNELS
def test_the_reduction_is_linear_and_alike_at_every_place(kind):
    reduce = chest_head(kind)[0].eval()
    x = torch.randn(2, 1024, 5, 5)
    torch.testing.assert_close(reduce(-3 * x), -3 * reduce(x), rtol=1e-5, atol=5e-5)
    torch.testing.assert_close(reduce(x.roll(1, 3)), reduce(x).roll(1, 3))


@CHANNELS
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
    for kind in (*HEADS, "conv-16", "avg-64x5x5"):
        torch.manual_seed(5)
        head = chest_head(kind)
        states.append(head.state_dict())
        dropped.append(head.dropout(torch.ones(3, 256)))
    for state, drop in zip(states, dropped, strict=True):
        assert torch.equal(drop, dropped[0])
        assert torch.equal(state["dense2.weight"], states[0]["dense2.weight"])
        if state["dense1.weight"].shape == states[0]["dense1.weight"].shape:
            assert torch.equal(state["dense1.weight"], states[0]["dense1.weight"])


def test_the_mpca_init_is_that_of_the_features():
    features = torch.randn(60, 70, 3, 3) * torch.linspace(3, 0.1, 70)[:, None, None] + 5
    head = chest_head("tpl-mpca", channels=70, side=3)
    init_from_mpca(head, features)
    vectors = features.sub(features.mean(0)).movedim(1, -1).reshape(-1, 70).double()
    # One mode alone: the leading left singular vectors of its unfolding.
    leading = torch.linalg.svd(vectors, full_matrices=False).Vh[:64].T
    W = head.projection.W1.detach().double()
    torch.testing.assert_close(W @ W.T, leading @ leading.T, rtol=0, atol=1e-5)


@CHANNELS
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
        ({"kind": "tpl2"}, "models of base, tpl, .*, conv-C, .*, avg-CxHxW, got tpl2"),
        ({"kind": "max-16"}, "avg-CxHxW, got max-16"),
        ({"kind": "conv-0"}, "avg-CxHxW, got conv-0"),
        ({"kind": "tpl-2000"}, "at most tpl-1024 .*, got tpl-2000"),
        ({"kind": "tpl-64x6x5"}, "at most tpl-1024x5x5 .*, got tpl-64x6x5"),
    ],
)
def test_wrong_arguments(wrong, rule):
    with pytest.raises(StudyError, match=rule):
        chest_head(**wrong)
