import math

import pytest
import scipy.fft
import torch
from torch import nn

from tensorprojection import TensorProjection, init_from_data
from tensorprojection.studies.errors import StudyError
from tensorprojection.studies.networks.oct_cnn import HEADS, oct_cnn

# Section 3.1.2 of the paper, with its second TPL model's dense layer put right: 720 · 256 + 256.
PAPER = {
    "base": [896, 9248, 9248, 9248, 295_168, 1028],
    "tpl1": [896, 9248, 9248, 9248, 144, 295_168, 1028],
    "tpl2": [896, 9248, 9248, 9248, 784, 184_576, 1028],
}
EVERY_HEAD = pytest.mark.parametrize("head", HEADS)


def parameters(layer):
    return sum(p.numel() for p in layer.parameters())


@pytest.mark.parametrize("head", PAPER)
def test_parameters_are_those_of_the_papers_table(head):
    assert [parameters(layer) for layer in oct_cnn(head) if parameters(layer)] == PAPER[head]


@pytest.mark.parametrize(("head", "channels"), [("base", 32), ("tpl1", 32), ("tpl2", 20)])
def test_shapes_are_those_of_the_papers_table(head, channels):
    seen = []
    network = oct_cnn(head)
    for layer in network:
        layer.register_forward_hook(lambda _, __, out: seen.append(tuple(out.shape[1:])))
    network(torch.rand(2, 3, 96, 96))
    blocks = [(32, side, side) for side in (96, 96, 48, 48, 48, 24, 24, 24, 12, 12, 12)]
    assert seen == [*blocks, (channels, 6, 6), (channels * 36,), (256,), (256,), (4,)]


def test_layers_have_readable_names():
    names = [
        *("conv1", "relu1", "pool1", "conv2", "relu2", "pool2", "conv3", "relu3", "pool3"),
        *("conv4", "relu4", "pool4", "flatten", "dense1", "relu5", "dense2"),
    ]
    assert [name for name, _ in oct_cnn("base").named_children()] == names
    projected = ["projection4" if name == "pool4" else name for name in names]
    assert [name for name, _ in oct_cnn("tpl1").named_children()] == projected


@EVERY_HEAD
def test_channels_last_stays_so(head):
    network = oct_cnn(head)

    def check(layer, _, out):
        if out.ndim == 4:
            assert out.is_contiguous(memory_format=torch.channels_last), layer

    for layer in network:
        layer.register_forward_hook(check)
    x = torch.rand(3, 3, 96, 96)
    expected = network.eval()(x.to(memory_format=torch.channels_last))
    network.to(memory_format=torch.channels_last)
    torch.testing.assert_close(network(x.to(memory_format=torch.channels_last)), expected)


@EVERY_HEAD
def test_initialized_as_in_keras(head):
    torch.manual_seed(0)
    for layer in oct_cnn(head):
        if isinstance(layer, nn.Conv2d | nn.Linear):
            out, inputs, *window = layer.weight.shape
            limit = (6 / ((out + inputs) * torch.Size(window).numel())) ** 0.5
            assert 0.99 * limit < layer.weight.abs().max() <= limit
            assert not layer.bias.any()
        elif isinstance(layer, TensorProjection) and set(layer.init) == {"normal"}:
            for W in layer.Ws:
                assert W is None or 0.03 < W.std() < 0.07


def test_one_seed_gives_all_heads_the_same_init():
    states = {}
    for head in (*HEADS, "tpl-32x6x6", "tpl-16x3x3", "max-16x3x3"):
        torch.manual_seed(5)
        states[head] = oct_cnn(head).state_dict()
    for head, state in states.items():
        layers = ["conv1", "conv2", "conv3", "conv4", "dense2"]
        same = state["dense1.weight"].shape == states["base"]["dense1.weight"].shape
        layers += ["dense1"] if same else []
        for name in (f"{layer}.weight" for layer in layers):
            assert torch.equal(state[name], states["base"][name]), (head, name)
    for k in (2, 3):
        assert torch.equal(*(states[head][f"projection4.W{k}"] for head in ("tpl1", "tpl2")))
    assert torch.equal(*(states[head]["projection4.W1"] for head in ("tpl2", "tpl2-dct")))
    assert torch.equal(*(states[head]["dense1.weight"] for head in ("tpl2", "tpl2-dct")))


def test_rivals_reduce_as_their_names_say():
    f, x = nn.functional, torch.rand(2, 32, 12, 12)
    torch.testing.assert_close(oct_cnn("avg").pool4(x), f.avg_pool2d(x, 2))
    strided = oct_cnn("strided").strided4
    assert strided.weight.shape == (32, 32, 3, 3)
    assert strided(x).shape == (2, 32, 6, 6)
    # Spectral pooling, by scipy's own cosine transform.
    spectrum = scipy.fft.dctn(x.double().numpy(), axes=(2, 3), norm="ortho")[:, :, :6, :6]
    fixed = oct_cnn("dct-fixed").projection4
    torch.testing.assert_close(
        fixed(x).double(), torch.from_numpy(spectrum.copy()), rtol=0, atol=1e-4
    )
    assert parameters(fixed) == 0


def test_mpca_of_each_batch():
    layer = oct_cnn("mpca-batch", size=32).mpca4
    first, second, other = (torch.rand(9, 32, 4, 4) for _ in range(3))

    def by_mpca(x, of):
        made = init_from_data(TensorProjection((32, 4, 4), (32, 2, 2)), of, sweeps=1)
        return made(x).detach()

    for batch in (first, second):  # its own directions, whatever came before
        assert torch.allclose(layer(batch), by_mpca(batch, of=batch), atol=1e-5)
    assert not torch.allclose(layer(first), by_mpca(first, of=second), atol=1e-2)
    layer(second)
    layer(other[:1])  # one image, or equal ones, have no directions
    layer(other[:1].expand(5, -1, -1, -1))
    assert torch.allclose(layer.eval()(other), by_mpca(other, of=second), atol=1e-5)
    assert layer.train()(torch.full_like(other, torch.nan)).isnan().all()


def test_inits_of_the_projection():
    three, one = oct_cnn("tpl1-block3").projection4, oct_cnn("tpl1-block").projection4
    for W, V in ((three.W2, one.W2), (three.W3, one.W3)):
        torch.testing.assert_close(W, 3 * V)
    assert oct_cnn("tpl1-blur").projection4.init[1:] == ("blur", "blur")
    second = oct_cnn("tpl2-dct").projection4
    assert (second.out_shape, second.init) == ((20, 6, 6), ("normal", "dct", "dct"))


@pytest.mark.parametrize(
    ("head", "shape", "own"),
    [
        ("tpl-16x3x3", (16, 3, 3), 32 * 16 + 2 * 12 * 3),
        ("tpl-32x5x2", (32, 5, 2), 12 * 5 + 12 * 2),
        ("max-16x3x3", (16, 3, 3), 32 * 16 + 16),
        ("avg-16x3x3", (16, 3, 3), 32 * 16 + 16),
        ("avg-32x4x4", (32, 4, 4), 0),
        ("gap", (32, 1, 1), 0),
    ],
)
def test_heads_of_any_size(head, shape, own):
    network = oct_cnn(head)
    at = [name for name, _ in network.named_children()].index("flatten")
    x = torch.rand(2, 3, 96, 96)
    assert network[:at](x).shape == (2, *shape)
    assert network(x).shape == (2, 4)
    rest = 896 + 3 * 9248 + math.prod(shape) * 256 + 256 + 1028
    assert parameters(network) == own + rest


def test_pools_to_a_size_are_adaptive_ones():
    x = torch.rand(2, 32, 12, 12)
    assert torch.equal(oct_cnn("max-32x6x6").pool4(x), oct_cnn("base").pool4(x))
    blocks = x.reshape(2, 32, 3, 4, 3, 4)
    reduced = oct_cnn("avg-8x3x3")
    torch.testing.assert_close(reduced.pool4(x), blocks.mean((3, 5)))
    torch.testing.assert_close(oct_cnn("max-8x3x3").pool4(x), blocks.amax((3, 5)))
    torch.testing.assert_close(oct_cnn("gap").pool4(x)[:, :, 0, 0], x.mean((2, 3)))
    assert reduced.reduce4.weight.shape == (8, 32, 1, 1)


@pytest.mark.parametrize(
    ("head", "sides"), [("tpl-pool2", {2: 48}), ("tpl-all", {1: 96, 2: 48, 3: 24, 4: 12})]
)
def test_projections_in_place_of_earlier_poolings(head, sides):
    network = oct_cnn(head)
    for k in (1, 2, 3, 4):
        if k not in sides:
            assert isinstance(network.get_submodule(f"pool{k}"), nn.MaxPool2d)
            continue
        layer = network.get_submodule(f"projection{k}")
        half = sides[k] // 2
        assert (layer.in_shape, layer.out_shape) == ((32, sides[k], sides[k]), (32, half, half))
        assert (layer.init[1:], layer.init_scale[1:]) == (("block", "block"), (3.0, 3.0))
    assert network(torch.rand(2, 3, 96, 96)).shape == (2, 4)


@EVERY_HEAD
def test_other_sizes_and_classes(head):
    network = oct_cnn(head, classes=7, channels=1, size=32)
    assert network(torch.rand(2, 1, 32, 32)).shape == (2, 7)


def test_wrong_arguments():
    for name in ("tpl3", "conv-16", "tpl-16", "tpl-016x3x3", "max-16x3", "avg-0x3x3", "mean-1x1x1"):
        known = rf"models of base, tpl1, tpl2, .*, tpl-CxHxW, max-CxHxW, avg-CxHxW, got {name}\."
        with pytest.raises(StudyError, match=known):
            oct_cnn(name)
    for size in (0, 100):
        with pytest.raises(StudyError, match=f"divisible by 16, got {size}"):
            oct_cnn("base", size=size)
    for name in ("tpl-33x3x3", "max-16x13x3", "avg-32x1x13"):
        with pytest.raises(StudyError, match=f"at most {name[:3]}-32x12x12 .*, got {name}"):
            oct_cnn(name)
    with pytest.raises(StudyError, match=r"at most tpl-32x4x4 .*, got tpl-16x6x6"):
        oct_cnn("tpl-16x6x6", size=32)
