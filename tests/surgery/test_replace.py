"""replace: which modules it finds, their replacements, what it leaves alone or refuses."""

import copy
import importlib

import pytest
import torch
from torch import nn
from torch.testing import assert_close

import tensorprojection as tp
from tensorprojection import ProjectionTypeError, ProjectionValueError, TensorProjection
from tensorprojection.studies.networks.oct_cnn import oct_cnn


class Net(nn.Module):
    """Every kind of module that can be replaced, by names of two levels."""

    def __init__(self):
        super().__init__()
        self.features = nn.Sequential()
        self.features.conv1 = nn.Conv2d(3, 8, 3, padding=1)
        self.features.norm1 = nn.BatchNorm2d(8)
        self.features.pool1 = nn.MaxPool2d(2)
        self.features.squeeze = nn.Conv2d(8, 4, 1)
        self.features.stride = nn.Conv2d(4, 4, 3, stride=2, padding=1, bias=False)
        self.features.pool2 = nn.AvgPool2d(2)
        self.top = nn.AdaptiveAvgPool2d(1)
        self.dense = nn.Linear(4, 2)

    def forward(self, x):
        return self.dense(self.top(self.features(x)).flatten(1))


@pytest.fixture
def net():
    return Net()


@pytest.fixture
def x():
    return torch.randn(2, 3, 16, 16)


def names(report):
    return [change.name for change in report.changes]


def projections(model):
    return {n: m for n, m in model.named_modules() if isinstance(m, TensorProjection)}


# What is meant


@pytest.mark.parametrize(
    ("what", "expected"),
    [
        ("features.pool1", ["features.pool1"]),
        ("top", ["top"]),
        ("features.pool*", ["features.pool1", "features.pool2"]),
        ("*s*", ["features.pool1", "features.squeeze", "features.stride", "features.pool2"]),
        (nn.MaxPool2d, ["features.pool1"]),
        ((nn.AvgPool2d, nn.AdaptiveAvgPool2d), ["features.pool2", "top"]),
        (nn.Conv2d, ["features.squeeze", "features.stride"]),
        (["top", "features.pool*"], ["features.pool1", "features.pool2", "top"]),
        (("features.stride", "top"), ["features.stride", "top"]),
        (["top", nn.MaxPool2d], ["features.pool1", "top"]),
        (
            [nn.AvgPool2d, lambda name, module: "squeeze" in name, "top"],
            ["features.squeeze", "features.pool2", "top"],
        ),
        ((nn.MaxPool2d, nn.MaxPool3d), ["features.pool1"]),
        (lambda name, module: name.endswith("1"), ["features.pool1"]),
        (
            lambda name, module: isinstance(module, nn.Conv2d),
            ["features.squeeze", "features.stride"],
        ),
    ],
)
def test_by_name_pattern_type_or_function(net, x, what, expected):
    new, report = tp.replace(net, what, example_input=x)
    assert names(report) == expected == list(projections(new))
    assert new(x).shape == net(x).shape


def test_every_name_and_pattern_of_a_list_must_match(net, x):
    with pytest.raises(ProjectionValueError, match=r"matches 'features.pool9', 'x.*'. There are"):
        tp.replace(net, ["top", "features.pool9", "x.*"], example_input=x)


def test_layers_that_cannot_be_replaced_stay_and_the_report_says_why(net, x):
    for what in (nn.Conv2d, ["features.conv1", nn.Conv2d]):
        _, report = tp.replace(net, what, example_input=x)
        ((name, reason),) = report.skipped.items()
        assert name == "features.conv1"
        assert "only strided and 1×1 convolutions" in reason
        assert f"kept {name}: {reason}" in str(report)


# What is put there


def test_a_pool_keeps_its_channels(net, x):
    new, _ = tp.replace(net, "features.pool1", example_input=x)
    layer = new.features.pool1
    assert (layer.in_shape, layer.out_shape) == ((8, 16, 16), (8, 8, 8))
    assert layer.W1 is None


def test_an_adaptive_pool_to_one(net, x):
    new, _ = tp.replace(net, "top", example_input=x)
    assert (new.top.in_shape, new.top.out_shape) == ((4, 2, 2), (4, 1, 1))


def test_a_strided_convolution_shrinks_channels_and_map():
    conv = nn.Conv2d(8, 6, 3, stride=(2, 1), padding=1)
    new, report = tp.replace(conv, nn.Conv2d, example_input=torch.randn(2, 8, 10, 7))
    assert (new.in_shape, new.out_shape) == ((8, 10, 7), (6, 5, 7))
    (change,) = report.changes
    assert change.note == "its bias is dropped"
    assert (change.parameters_before, change.parameters_after) == (8 * 6 * 9 + 6, 8 * 6 + 10 * 5)


@pytest.mark.parametrize(
    ("module", "size"),
    [
        (nn.MaxPool1d(2), (3, 8)),
        (nn.MaxPool3d(2), (3, 4, 4, 6)),
        (nn.Conv3d(3, 2, 1), (3, 4, 4, 6)),
    ],
)
def test_one_and_three_spatial_axes(module, size):
    x = torch.randn(2, *size)
    new, _ = tp.replace(nn.Sequential(module), type(module), example_input=x)
    assert new[0].in_shape == size
    assert new(x).shape == module(x).shape


def test_a_transposed_convolution_becomes_a_transposed_projection():
    net = nn.Sequential(nn.ConvTranspose2d(4, 6, 2, stride=2), nn.ConvTranspose2d(6, 4, 3))
    x = torch.randn(2, 4, 5, 7)
    new, report = tp.replace(net, nn.ConvTranspose2d, example_input=x)
    assert isinstance(new[0], tp.TransposeTensorProjection)
    assert (new[0].in_shape, new[0].out_shape) == ((4, 5, 7), (6, 10, 14))
    assert report.changes[0].note == "its bias is dropped"
    assert "a transposed projection cannot shrink a mode" in report.skipped["1"]
    assert new(x).shape == net(x).shape
    wider, _ = tp.replace(net[:1], "0", (4, 20, 14), example_input=x)
    assert wider(x).shape == (2, 4, 20, 14)


def test_an_input_without_a_batch_axis():
    new, _ = tp.replace(nn.MaxPool2d(2), nn.MaxPool2d, example_input=torch.randn(3, 8, 8))
    assert new.in_shape == (3, 8, 8)


def test_options_go_to_the_layer(net, x):
    new, _ = tp.replace(net, "top", example_input=x, init="orthogonal", eps_mode="relative")
    assert "init='orthogonal'" in repr(new.top)
    assert new.top.eps_mode == "relative"


def test_out_shape():
    net = nn.Sequential(nn.Conv2d(3, 8, 3, padding=1), nn.MaxPool2d(2), nn.AdaptiveAvgPool2d(1))
    x = torch.randn(2, 3, 16, 16)
    new, _ = tp.replace(net, nn.MaxPool2d, (5, None, 4), example_input=x)
    assert new[1].out_shape == (5, 16, 4)
    assert new(x).shape == (2, 5, 1, 1)


def test_a_lazy_layer_after_it_takes_the_new_shape():
    net = nn.Sequential(nn.MaxPool2d(2), nn.Flatten(), nn.LazyLinear(2))
    x = torch.randn(2, 3, 16, 16)
    new, _ = tp.replace(net, nn.MaxPool2d, (2, 4, 4), example_input=x)
    assert new[2].in_features == 2 * 4 * 4
    assert isinstance(net[2], nn.LazyLinear)


def test_the_new_model_learns(net, x):
    new, _ = tp.replace(net, nn.MaxPool2d, example_input=x)
    new(x).square().sum().backward()
    assert new.features.pool1.W2.grad.norm() > 0
    assert all(p.grad is None for p in net.parameters())


# The given model stays, the new one keeps its ways


@pytest.mark.parametrize("training", [True, False])
def test_the_given_model_stays_as_it_was(net, x, training):
    net.train(training)
    net.features.norm1.eval()
    state = copy.deepcopy(net.state_dict())
    kinds = [type(m) for m in net.modules()]
    new, _ = tp.replace(net, (nn.MaxPool2d, nn.Conv2d), example_input=x)
    assert [type(m) for m in net.modules()] == kinds
    for name, value in net.state_dict().items():
        assert torch.equal(value, state[name])
    for name, value in new.state_dict().items():
        assert name not in state or torch.equal(value, state[name])  # the BatchNorm's too
    for model in (net, new):
        assert model.training is model.features.pool1.training is training
        assert not model.features.norm1.training
        assert not any(m._forward_hooks for m in model.modules())
    shared = {p.data_ptr() for p in net.parameters()} & {p.data_ptr() for p in new.parameters()}
    assert not shared


def test_device_and_type(net, x):
    new, _ = tp.replace(net.double(), (nn.MaxPool2d, nn.Conv2d), example_input=x.double())
    assert {p.dtype for p in new.parameters()} == {torch.float64}
    meta, _ = tp.replace(
        copy.deepcopy(net).to("meta"), nn.MaxPool2d, example_input=x.to("meta", torch.float64)
    )
    assert {p.device.type for p in meta.parameters()} == {"meta"}


# Average pools: the outputs stay


class Trained(nn.Module):
    def __init__(self, between, kernel=2):
        super().__init__()
        self.conv, self.pool = nn.Conv2d(3, 8, 3, padding=1), nn.AvgPool2d(kernel)
        side = 12 // kernel
        self.body = {
            "conv": nn.Conv2d(8, 4, 3),
            "depthwise": nn.Sequential(nn.Dropout(), nn.Conv2d(8, 8, 3, padding=1, groups=8)),
            "transposed": nn.ConvTranspose2d(8, 4, 2),
            "linear": nn.Sequential(nn.Flatten(), nn.Dropout(), nn.Linear(8 * side**2, 5)),
            "pool": nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Conv2d(8, 4, 1)),
            "norm": nn.Sequential(nn.BatchNorm2d(8), nn.Conv2d(8, 4, 1)),
            "none": nn.ReLU(),
        }[between]

    def forward(self, x):
        return self.body(self.pool(self.conv(x)))


@pytest.mark.parametrize("kernel", [2, 3])
@pytest.mark.parametrize(
    ("between", "note"),
    [
        ("conv", "is in the weight of body"),
        ("depthwise", "is in the weight of body.1"),
        ("transposed", "is in the weight of body"),
        ("linear", "is in the weight of body.2"),
        ("pool", "is in the weight of body.1"),
        ("norm", "follows"),
        ("none", "follows"),
    ],
)
def test_an_average_pool_of_a_trained_model_is_replaced_exactly(between, note, kernel):
    model, x = Trained(between, kernel), torch.randn(3, 3, 12, 12)
    state = copy.deepcopy(model.state_dict())
    new, report = tp.replace(model, "pool", example_input=x[:1])
    assert all(torch.equal(v, state[k]) for k, v in model.state_dict().items())
    assert report.changes[0].note.startswith("same outputs: ")
    assert report.changes[0].note.endswith(note)
    assert_close(new.eval()(x), model.eval()(x), atol=1e-5, rtol=1e-5)
    folded, report = tp.fold_projections(new, x)
    assert not report.needs_package
    assert_close(folded(x), model(x), atol=1e-5, rtol=1e-5)
    exported = torch.export.export(folded, (x,)).module()
    assert_close(exported(x), model(x), atol=1e-5, rtol=1e-5)
    new.train()(x).square().sum().backward()
    assert all(p.grad is not None for p in new.parameters())


class Elsewhere(nn.Module):
    """The next layer's weight, or the pool's output, is used elsewhere as well."""

    def __init__(self, how):
        super().__init__()
        self.how, self.pool, self.conv = how, nn.AvgPool2d(2), nn.Conv2d(3, 3, 1)
        self.head = nn.Conv2d(3, 3, 1)
        if how == "tied":
            self.head.weight = self.conv.weight

    def forward(self, x):
        z = self.pool(x)
        if self.how == "weight":
            return self.conv(z).mean() + self.conv(x)
        if self.how == "tied":
            return self.conv(z).mean() + self.head(x)
        if self.how == "output" or (self.how == "output in training" and self.training):
            return self.conv(z) + self.head(z)
        if self.how == "branch" and x.mean() > 100:
            return z
        return self.conv(z)


@pytest.mark.parametrize("how", ["weight", "tied", "output", "output in training", "branch"])
def test_a_weight_is_not_scaled_if_that_changes_something_else(how):
    x = torch.randn(2, 3, 8, 8)
    new, report = tp.replace(model := Elsewhere(how), "pool", example_input=x)
    assert report.changes[0].note == "same outputs: a scale of 0.5 follows"
    for training in (True, False):
        assert_close(new.train(training)(x), model.train(training)(x), atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize(
    ("pool", "options"),
    [
        (nn.AvgPool2d(3, 2, padding=1), {}),
        (nn.AvgPool2d(3, stride=1), {}),
        (nn.AvgPool2d(5, ceil_mode=True), {}),
        (nn.AvgPool2d(5), {}),  # the last two rows are dropped
        (nn.AdaptiveAvgPool2d(7), {}),
        (nn.AvgPool2d(2), {"out_shape": (3, 3, 3)}),
        (nn.AvgPool2d(2), {"init": "dct"}),
    ],
)
def test_the_report_says_that_the_outputs_of_other_windows_change(pool, options):
    new, report = tp.replace(pool, "", example_input=torch.randn(2, 3, 12, 12), **options)
    assert report.changes[0].note.startswith("outputs change: only equal windows")
    assert isinstance(new, TensorProjection)


def test_several_average_pools_and_the_model_itself():
    pool, x = nn.AvgPool2d(2), torch.randn(2, 3, 8, 8)
    new, _ = tp.replace(pool, nn.AvgPool2d, example_input=x)
    assert_close(new(x), pool(x))
    net = nn.Sequential(
        nn.AvgPool2d((2, 4)), nn.Conv2d(3, 4, 1), nn.AdaptiveAvgPool2d(1), nn.ReLU()
    )
    new, report = tp.replace(net, (nn.AvgPool2d, nn.AdaptiveAvgPool2d), example_input=x)
    assert len(report.changes) == 2
    assert_close(new(x), net(x), atol=1e-5, rtol=1e-5)


def test_monais_densenet_keeps_its_logits():
    net = monai("DenseNet121")(spatial_dims=2, in_channels=3, out_channels=4).eval()
    x = torch.randn(2, 3, 64, 64)
    pools = (nn.AvgPool2d, nn.AdaptiveAvgPool2d)
    new, report = tp.replace(net, pools, example_input=x[:1])
    assert len(report.changes) == 4
    assert report.changes[-1].note.endswith("is in the weight of class_layers.out")
    assert_close(new(x), net(x), atol=1e-5, rtol=1e-5)


# The report


def test_the_report(net, x):
    new, report = tp.replace(net, "features.*", example_input=x)
    assert report.parameters_before == sum(p.numel() for p in net.parameters())
    assert report.parameters_after == sum(p.numel() for p in new.parameters())
    assert str(report).splitlines() == [
        "replaced          was        shapes                    parameters",
        "features.pool1    MaxPool2d  (8, 16, 16) -> (8, 8, 8)  0 -> 256",
        "features.squeeze  Conv2d     (8, 8, 8) -> (4, 8, 8)    36 -> 32    its bias is dropped",
        "features.stride   Conv2d     (4, 8, 8) -> (4, 4, 4)    144 -> 64",
        "features.pool2    AvgPool2d  (4, 4, 4) -> (4, 2, 2)    0 -> 16     "
        "same outputs: the factor 0.5 is in the weight of dense",
        "kept features.conv1: only strided and 1×1 convolutions can be replaced; this one is 3×3, "
        "stride 1",
        "parameters of the model: 430 -> 618",
    ]


# Known models


def test_the_oct_network_becomes_the_papers():
    base = oct_cnn("base")
    x = torch.randn(1, 3, 96, 96)
    new, report = tp.replace(base, "pool4", example_input=x, init="normal")
    expected = oct_cnn("tpl1")
    assert repr(new.pool4) == repr(expected.projection4)
    assert report.parameters_after == sum(p.numel() for p in expected.parameters()) == 324_980


def monai(name):
    return getattr(importlib.import_module("monai.networks.nets"), name)


def test_monais_densenet121():
    net = monai("DenseNet121")(spatial_dims=2, in_channels=3, out_channels=4)
    x = torch.randn(1, 3, 32, 32)
    new, report = tp.replace(net, "features.transition*.pool", example_input=x)
    transitions = [f"features.transition{k}.pool" for k in (1, 2, 3)]
    assert names(report) == transitions
    assert [(c.in_shape, c.out_shape) for c in report.changes] == [
        ((128, 8, 8), (128, 4, 4)),
        ((256, 4, 4), (256, 2, 2)),
        ((512, 2, 2), (512, 1, 1)),
    ]
    assert report.parameters_after - report.parameters_before == 2 * (8 * 4 + 4 * 2 + 2 * 1)
    assert new.eval()(x).shape == (1, 4)


def test_monais_unet_with_pools():
    net = monai("BasicUNet")(spatial_dims=2, in_channels=3, features=(8, 8, 16, 16, 32, 8))
    x = torch.randn(1, 3, 32, 32)
    new, report = tp.replace(net, nn.MaxPool2d, example_input=x)
    assert names(report) == [f"down_{k}.max_pooling" for k in (1, 2, 3, 4)]
    assert new(x).shape == net(x).shape


def test_monais_unet_with_strided_convolutions():
    net = monai("UNet")(
        spatial_dims=2, in_channels=3, out_channels=1, channels=(8, 8, 8, 16), strides=(2, 2, 2)
    )
    x = torch.randn(1, 3, 32, 32)
    new, report = tp.replace(net, nn.Conv2d, example_input=x)
    assert names(report) == ["model.1.submodule.0.conv", "model.1.submodule.1.submodule.0.conv"]
    assert report.skipped["model.0.conv"] == (
        "a projection cannot enlarge a mode ((3, 32, 32) -> (8, 16, 16))"
    )
    assert new(x).shape == net(x).shape


# What cannot be replaced


def refused(module, x, what="0"):
    with pytest.raises(ProjectionValueError) as error:
        tp.replace(nn.Sequential(module), what, example_input=x)
    return str(error.value)


@pytest.mark.parametrize(
    ("module", "reason"),
    [
        (nn.Conv2d(3, 6, 1), r"a projection cannot enlarge a mode ((3, 8, 8) -> (6, 8, 8))"),
        (nn.Conv2d(3, 3, 1), r"there is nothing to shrink ((3, 8, 8) -> (3, 8, 8))"),
        (nn.Conv2d(3, 2, 3), r"only strided and 1×1 convolutions can be replaced"),
        (nn.MaxPool2d(2, return_indices=True), r"it returns more than one tensor"),
        (nn.ReLU(), r"No pooling layer or convolution of the model matches '0'"),
    ],
)
def test_named_but_not_replaceable(module, reason):
    assert reason in refused(module, torch.randn(1, 3, 8, 8))


def test_none_of_the_type_can_be_replaced():
    text = refused(nn.Conv2d(3, 6, 1), torch.randn(1, 3, 8, 8), nn.Conv2d)
    assert "None of the selected layers can be replaced. 0: a projection cannot" in text


def test_nothing_meant(net, x):
    with pytest.raises(ProjectionValueError, match=r"matches 'pool9'.*'features.conv1'.*'top'"):
        tp.replace(net, "pool9", example_input=x)
    with pytest.raises(ProjectionValueError, match="as a function is not a module"):
        tp.replace(nn.ReLU(), nn.MaxPool2d, example_input=x)


class OnePool(nn.Module):
    """The same pool at two places."""

    def __init__(self, same_shape=False):
        super().__init__()
        self.pool = nn.MaxPool2d(2)
        self.same_shape = same_shape

    def forward(self, x):
        z = self.pool(x)
        return z + self.pool(x.neg()) if self.same_shape else self.pool(z)


def test_a_pool_called_with_several_shapes(x):
    for what in ("pool", nn.MaxPool2d):
        with pytest.raises(
            ProjectionValueError,
            match=r"called with several shapes \(\(3, 16, 16\), \(3, 8, 8\)\); give each place",
        ):
            tp.replace(OnePool(), what, example_input=x)


def test_a_pool_called_twice_with_one_shape(x):
    new, _ = tp.replace(OnePool(same_shape=True), "pool", example_input=x)
    assert_close(new(x), torch.zeros(2, 3, 8, 8), atol=1e-6, rtol=0)  # linear, unlike a MaxPool


def test_a_module_under_two_names(x):
    pool = nn.MaxPool2d(2)
    with pytest.raises(ProjectionValueError, match=r"under several names \(0, 1\)"):
        tp.replace(nn.Sequential(pool, pool), "0", example_input=x)


def test_a_module_that_the_example_does_not_reach(net, x):
    net.spare = nn.MaxPool2d(2)
    with pytest.raises(ProjectionValueError, match="does not reach it"):
        tp.replace(net, "spare", example_input=x)
    _, report = tp.replace(net, nn.MaxPool2d, example_input=x)
    assert [*report.skipped] == ["spare"]


def test_an_out_shape_that_does_not_fit(net, x):
    with pytest.raises(ProjectionValueError, match="layers after the projection can take, got"):
        tp.replace(net, "features.pool1", (5, 8, 8), example_input=x)
    with pytest.raises(ProjectionValueError, match="shrink every mode"):
        tp.replace(net, "features.pool1", (9, 8, 8), example_input=x)
    with pytest.raises(ProjectionValueError, match="one entry per mode"):
        tp.replace(net, "features.pool1", (8, 8), example_input=x)


def test_bad_arguments(net, x):
    for what in (3, []):
        with pytest.raises(ProjectionValueError, match=r"matches (3|\[\]). There are"):
            tp.replace(net, what, example_input=x)
    for example in (x[:, :2], x.numpy()):
        with pytest.raises(ProjectionValueError, match=r"runs on example_input, got \w+Error"):
            tp.replace(net, nn.MaxPool2d, example_input=example)
    with pytest.raises(ProjectionTypeError, match=r"`device` cannot be passed: replaced layers"):
        tp.replace(net, nn.MaxPool2d, example_input=x, device="cpu")


# A module itself, a suggestion, autocast, hooks


def test_the_module_itself(net, x):
    new, report = tp.replace(net, net.features.pool1, example_input=x)
    assert names(report) == ["features.pool1"] == list(projections(new))
    for other in (net.features.norm1, nn.MaxPool2d(2)):
        with pytest.raises(
            ProjectionValueError, match=r"matches (Batch|Max).*, a type, a function"
        ):
            tp.replace(net, other, example_input=x)


def test_a_suggestion_is_an_out_shape():
    net = nn.Sequential(nn.Conv2d(3, 8, 3, padding=1), nn.MaxPool2d(2), nn.AdaptiveAvgPool2d(1))
    x = torch.randn(20, 3, 16, 16)
    suggestion = tp.suggest_out_shape(tp.capture(net, "0", x), 0.8)
    new, _ = tp.replace(net, "1", suggestion, example_input=x)
    assert new[1].out_shape == suggestion.out_shape


def test_parameters_in_an_autocast_block_are_not_of_its_type(x):
    class Cast(nn.Module):
        def __init__(self):
            super().__init__()
            self.conv, self.pool = nn.Conv2d(3, 4, 1), nn.MaxPool2d(2)

        def forward(self, x):
            with torch.autocast("cpu", torch.bfloat16):
                return self.pool(self.conv(x))

    new, _ = tp.replace(Cast(), "pool", example_input=x)
    assert new.pool.W2.dtype == torch.float32
    assert new(x).dtype == torch.bfloat16


def test_hooks_are_dropped_and_the_report_says_so(net, x):
    calls = []
    net.features.pool1.register_forward_hook(lambda *_: calls.append(1))
    new, report = tp.replace(net, "features.pool*", example_input=x)
    assert [change.note == "its hooks are dropped" for change in report.changes] == [True, False]
    calls.clear()
    new(x)
    assert not calls


def test_a_replacement_that_the_model_never_calls_is_reported(x):
    class Listed(nn.Module):
        def __init__(self):
            super().__init__()
            self.pool, self.other = nn.MaxPool2d(2), nn.MaxPool2d(2)
            self.stages = [self.pool]  # a plain list: torch does not know of it

        def forward(self, x):
            return self.other(self.stages[0](x))

    new, report = tp.replace(Listed(), nn.MaxPool2d, example_input=x)
    notes = {change.name: change.note for change in report.changes}
    assert "never calls it" in notes["pool"]
    assert not notes["other"]
    assert not any(m._forward_hooks for m in new.modules())


@pytest.mark.parametrize(
    ("layer", "x", "init"),
    [
        (nn.MaxPool1d(2), torch.randn(1, 4, 8), ("normal", "block")),
        (nn.MaxPool2d(2), torch.randn(1, 4, 8, 8), ("normal", "block", "block")),
        (nn.Conv2d(4, 2, 1), torch.randn(1, 4, 8, 8), ("normal", "block", "block")),
        (nn.Conv1d(4, 2, 2, stride=2), torch.randn(1, 4, 8), ("normal", "block")),
        (
            nn.ConvTranspose2d(4, 6, 2, stride=2),
            torch.randn(1, 4, 8, 8),
            ("normal", "block", "block"),
        ),
    ],
    ids=lambda value: type(value).__name__,
)
def test_channels_are_normal_and_space_is_local_unless_init_is_given(layer, x, init):
    (new,), _ = tp.replace(nn.Sequential(layer), "0", example_input=x)
    assert new.init == init
    changed = [k for k, W in enumerate(new.Ws) if W is not None]
    if isinstance(layer, nn.Conv2d):
        assert changed == [0]  # the channels alone
    assert all(new.init_scale[k] == (3.0 if k else 1.0) for k in changed)
    (new,), _ = tp.replace(nn.Sequential(layer), "0", example_input=x, init="dct")
    assert set(new.init) == {"dct"}
    assert set(new.init_scale) == {1.0}


class BranchOnDefault(nn.Module):
    """torch.fx records another branch than the one that runs: to it, a default is not None."""

    def __init__(self):
        super().__init__()
        self.pool, self.fc = nn.AvgPool2d(2), nn.Linear(4, 4)

    def forward(self, x, skip=None):
        y = self.pool(x)
        z = self.fc(y)
        return z + y if skip is None else z + skip


class NamedFlatten(nn.Module):
    def __init__(self):
        super().__init__()
        self.pool, self.flatten, self.conv = nn.AvgPool2d(2), nn.Softmax(1), nn.Conv2d(3, 2, 1)

    def forward(self, x):
        return self.conv(self.flatten(self.pool(x)))


@pytest.mark.parametrize("network", [BranchOnDefault, NamedFlatten])
def test_outputs_stay_even_if_the_traced_graph_is_not_what_runs(network):
    model, x = network().eval(), torch.randn(2, 3, 8, 8)
    new, report = tp.replace(model, nn.AvgPool2d, example_input=x)
    assert "same outputs" in str(report)
    torch.testing.assert_close(new(x), model(x), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_the_swap_of_a_half_type_is_judged_in_float64(dtype):
    overlapping, x = nn.AvgPool2d(40, 30).to(dtype), torch.randn(1, 3, 100, 100).to(dtype)
    assert "outputs change" in str(tp.replace(overlapping, nn.AvgPool2d, example_input=x)[1])
    exact, x = nn.AvgPool2d(2).to(dtype), torch.randn(1, 64, 56, 56).to(dtype)
    assert "same outputs" in str(tp.replace(exact, nn.AvgPool2d, example_input=x)[1])
