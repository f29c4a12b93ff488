import pytest
import torch
from torch import nn

from tensorprojection import TensorProjection, TransposeTensorProjection
from tensorprojection.init import INITS
from tensorprojection.studies.data.phantoms import polyp_phantoms
from tensorprojection.studies.errors import StudyError
from tensorprojection.studies.networks.unet import FORMS, unet
from tensorprojection.studies.training.metrics import dice_loss

EVERY_FORM = pytest.mark.parametrize("form", FORMS)
PROJECTING = pytest.mark.parametrize("form", ["tpl", "tpl-aggressive", "tpl-dct", "tpl-blur"])


def count(module):
    return sum(p.numel() for p in module.parameters())


def conv(before, after, side=3):
    return side * side * before * after + after


def by_hand(form, c, size):
    """The parameters of section 3.3.2, block by block; the paper prints none."""
    double = [(3, c), (c, 2 * c), (2 * c, 4 * c), (4 * c, 8 * c), (8 * c, 8 * c)]
    total = sum(conv(i, o) + conv(o, o) for i, o in double)
    for width in (8 * c, 4 * c, 2 * c, c):
        total += conv(2 * width, width) + conv(width, width) + 2 * 2 * width
    total += conv(8 * c, 4 * c, 2) + conv(4 * c, 2 * c, 2) + conv(2 * c, c, 2) + conv(c, 1, 1)
    large = size // 8
    form = "tpl" if form in ("tpl-dct", "tpl-blur") else form
    way = {
        "base": conv(8 * c, 8 * c, 2),  # up4
        "tpl": 2 * 2 * large * (large // 2),  # two modes, down4 and up4
        "tpl-aggressive": 2 * 2 * large * (large // 4),
    }
    return total + way[form]


def made_on_meta(form, channels, size):
    with torch.device("meta"):
        return unet(form, channels, size)


@EVERY_FORM
@pytest.mark.parametrize("size", [128, 160, 192])
@pytest.mark.parametrize("channels", [16, 64])
def test_parameters(form, channels, size):
    network = made_on_meta(form, channels, size)
    assert count(network) == by_hand(form, channels, size)
    assert network(torch.empty(2, 3, size, size, device="meta")).shape == (2, 1, size, size)


@pytest.mark.parametrize(("form", "small"), [("base", 8), ("tpl", 8), ("tpl-aggressive", 4)])
def test_shapes_are_those_of_the_paper(form, small):
    network = made_on_meta(form, 16, 128)
    seen = {}
    for name, child in network.named_children():
        child.register_forward_hook(
            lambda _, __, out, name=name: seen.update({name: tuple(out.shape[1:])})
        )
    network(torch.empty(1, 3, 128, 128, device="meta"))
    sides = {k: 256 >> k for k in (1, 2, 3, 4)}
    width = {k: 8 << k for k in (1, 2, 3, 4)}
    for k in (1, 2, 3, 4):
        assert seen[f"encoder{k}"] == seen[f"decoder{k}"] == (width[k], sides[k], sides[k])
        assert seen[f"up{k}"] == (width[k], sides[k], sides[k])
        assert seen[f"join{k}"] == (2 * width[k], sides[k], sides[k])
    assert seen["down3"] == (64, 16, 16)
    assert seen["down4"] == seen["bottleneck"] == (128, small, small)
    assert seen["output"] == (1, 128, 128)


def test_only_the_fourth_reduction_and_its_way_back_are_replaced():
    base, tpl = (made_on_meta(form, 16, 128) for form in ("base", "tpl"))
    kinds = [{name: type(m) for name, m in n.named_modules() if name} for n in (base, tpl)]
    assert kinds[0].keys() == kinds[1].keys()
    differing = {name for name in kinds[0] if kinds[0][name] is not kinds[1][name]}
    assert differing == {"down4", "up4"}
    assert (kinds[0]["down4"], kinds[0]["up4"]) == (nn.MaxPool2d, nn.ConvTranspose2d)
    assert (kinds[1]["down4"], kinds[1]["up4"]) == (TensorProjection, TransposeTensorProjection)


def test_batch_norm_after_each_convolution_of_the_decoder_alone():
    network = made_on_meta("base", 4, 32)
    names = ["conv1", "relu1", "norm1", "conv2", "relu2", "norm2"]
    for k in (1, 2, 3, 4):
        assert [name for name, _ in network.get_submodule(f"decoder{k}").named_children()] == names
    norms = [m for m in network.modules() if isinstance(m, nn.BatchNorm2d)]
    assert len(norms) == 8
    assert all((m.eps, m.momentum) == (1e-3, 0.01) for m in norms)


def by_the_papers_words(network, x):
    """The network once more, as plain functions on its state."""
    f = nn.functional
    s = network.state_dict()

    def convs(x, block, norm):
        for k in (1, 2):
            x = f.conv2d(x, s[f"{block}.conv{k}.weight"], s[f"{block}.conv{k}.bias"], padding=1)
            x = x.relu()
            if norm:
                mean, var = x.mean((0, 2, 3), keepdim=True), x.var((0, 2, 3), False, keepdim=True)
                x = (x - mean) / (var + 1e-3).sqrt()
        return x

    skips = []
    for k in (1, 2, 3, 4):
        skips.append(convs(x, f"encoder{k}", norm=False))
        x = f.max_pool2d(skips[-1], 2)
    x = convs(x, "bottleneck", norm=False)
    for k in (4, 3, 2, 1):
        x = f.conv_transpose2d(x, s[f"up{k}.weight"], s[f"up{k}.bias"], stride=2)
        x = convs(torch.cat([x, skips.pop()], 1), f"decoder{k}", norm=True)
    return f.conv2d(x, s["output.weight"], s["output.bias"])


def test_the_base_form_written_a_second_time():
    network, x = unet("base", 4, 32).double(), torch.rand(3, 3, 32, 32, dtype=torch.float64)
    torch.testing.assert_close(network(x), by_the_papers_words(network, x))


@EVERY_FORM
def test_channels_last_gives_the_same_and_stays_so(form):
    network = unet(form, 4, 64).eval()
    x = torch.rand(2, 3, 64, 64)
    with torch.no_grad():
        expected = network(x)

        def check(layer, _, out):
            assert out.is_contiguous(memory_format=torch.channels_last), layer

        for layer in network.modules():
            layer.register_forward_hook(check)
        network.to(memory_format=torch.channels_last)
        got = network(x.to(memory_format=torch.channels_last))
    torch.testing.assert_close(got, expected)


@pytest.mark.parametrize("init", ["dct", "blur"])
def test_down_and_up_of_another_init(init):
    network = unet(f"tpl-{init}", 4, 64)
    for layer in (network.down4, network.up4):
        expected = INITS[init](torch.empty(8, 4))
        assert torch.equal(layer.W2, expected)
        assert torch.equal(layer.W3, expected)


def test_one_seed_gives_all_forms_the_same_convolutions():
    states = []
    for form in FORMS:
        torch.manual_seed(5)
        states.append(unet(form, 4, 64).state_dict())
    shared = [name for name in states[0] if not name.startswith("up4")]
    assert len(shared) > 50
    for state in states[1:]:
        assert all(torch.equal(states[0][name], state[name]) for name in shared)


@EVERY_FORM
def test_initialized_as_in_keras(form):
    for layer in unet(form, 16, 64).modules():
        if isinstance(layer, nn.Conv2d | nn.ConvTranspose2d):
            first, second, *window = layer.weight.shape
            limit = (6 / ((first + second) * torch.Size(window).numel())) ** 0.5
            assert 0.7 * limit < layer.weight.abs().max() <= limit
            assert not layer.bias.any()


@PROJECTING
def test_leaky_relu_after_the_projection(form):
    network, same = unet(form, 2, 32, leaky=True).eval(), unet(form, 2, 32).eval()
    same.load_state_dict(network.state_dict())
    x, seen = torch.rand(2, 3, 32, 32), []
    for n in (network, same):
        n.bottleneck.register_forward_pre_hook(lambda _, inputs: seen.append(inputs[0]))
        n(x)
    assert (seen[1] < 0).any()
    torch.testing.assert_close(seen[0], torch.where(seen[1] < 0, 0.1 * seen[1], seen[1]))


@EVERY_FORM
def test_learns_four_phantoms(form):
    images = polyp_phantoms(4, size=64)
    x = torch.from_numpy(images.images).permute(0, 3, 1, 2) / 255
    y = torch.from_numpy(images.masks)[:, None]
    network = unet(form, 4, 64)
    optimizer = torch.optim.Adam(network.parameters(), lr=1e-2)
    losses = []
    for _ in range(40):
        optimizer.zero_grad()
        loss = dice_loss(network(x), y)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert losses[-1] < 0.6 * losses[0]
    assert all(p.grad is not None and p.grad.isfinite().all() for p in network.parameters())


@pytest.mark.parametrize(
    ("wrong", "rule"),
    [
        ({"form": "base", "size": 100}, "divisible by 16, got 100"),
        ({"form": "tpl", "size": 0}, "divisible by 16, got 0"),
        ({"form": "tpl-aggressive", "size": 144}, "divisible by 32, got 144"),
    ],
)
def test_wrong_arguments(wrong, rule):
    with pytest.raises(StudyError, match=rule):
        unet(**wrong)


@EVERY_FORM
@pytest.mark.parametrize("shape", [(2, 1, 32, 32), (2, 3, 64, 64), (2, 32, 32, 3), (3, 32, 32)])
def test_wrong_images(form, shape):
    with pytest.raises(ValueError, match=r"of shape \(N, 3, 32, 32\), got"):
        unet(form, 2, 32)(torch.rand(shape))
