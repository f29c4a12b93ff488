"""fold_projections: the same outputs from plain torch, with projections merged into neighbours."""

import copy
import subprocess
import sys
import textwrap

import pytest
import torch
from torch import nn
from torch.testing import assert_close

import tensorprojection as tp
from tensorprojection import (
    LazyTensorProjection,
    ProjectionValueError,
    TensorProjection,
    TransposeTensorProjection,
)
from tensorprojection.studies.networks.oct_cnn import oct_cnn
from tensorprojection.studies.networks.unet import unet

PRODUCTS = "matrix products with constants"
FROZEN = "frozen: U is a constant"


def before(name, kind="Conv2d"):
    return f"part of {name}, the {kind} before it"


def after(name, kind="Conv2d"):
    return f"part of {name}, the {kind} after it"


def size(model):
    return sum(p.numel() for p in model.parameters())


def kinds(folded):
    """The modules that are left, without containers."""
    return [type(m).__name__ for m in folded.modules() if not [*m.children()] and [*m.parameters()]]


def check(model, *shape, became=None, needs_package=False):
    """Fold the model, and compare it on batches of several sizes."""
    folded, report = tp.fold_projections(model, torch.randn(2, *shape))
    model = copy.deepcopy(model).eval()
    for n in (2, 1, 0, 5):
        x = torch.randn(n, *shape)
        with torch.no_grad():
            assert_close(folded(x), model(x), atol=1e-5, rtol=0)
    assert report.difference < 1e-5
    assert report.parameters_before == size(model)
    assert report.needs_package == needs_package
    if not needs_package:
        assert report.parameters_after == size(folded)
        assert not report.reason
    if became is not None:
        assert [step.became for step in report.steps] == became
    return folded


# Channels and convolutions


@pytest.mark.parametrize(
    ("bias", "options"),
    [
        (True, {}),
        (False, {"padding": "same"}),
        (True, {"stride": 2, "padding": 1}),
        (True, {"padding": 1, "padding_mode": "reflect"}),
        (False, {"dilation": 2}),
    ],
)
def test_channels_merge_into_the_convolution_before(bias, options):
    conv = nn.Conv2d(3, 8, 3, bias=bias, **options)
    _, *rest = conv(torch.randn(1, 3, 9, 9))[0].shape
    model = nn.Sequential(conv, TensorProjection((8, *rest), (4, None, None)), nn.ReLU())
    folded = check(model, 3, 9, 9, became=[before("0")])
    assert size(folded) == 4 * 3 * 9 + 4 * bias
    assert folded.get_submodule("0").out_channels == 4


@pytest.mark.parametrize("axes", [1, 3])
def test_one_and_three_spatial_axes(axes):
    conv = [nn.Conv1d, nn.Conv2d, nn.Conv3d][axes - 1](3, 6, 1)
    layer = TensorProjection((6, *[4] * axes), (2, *[None] * axes))
    check(nn.Sequential(conv, layer), 3, *[4] * axes, became=[before("0", f"Conv{axes}d")])
    check(layer, 6, *[4] * axes, became=[PRODUCTS])


def test_channels_merge_and_spatial_modes_become_products():
    model = nn.Sequential(nn.Conv2d(3, 8, 3), TensorProjection((8, 6, 6), (4, 3, 2)))
    folded = check(model, 3, 8, 8, became=[f"{before('0')}, {PRODUCTS}"])
    assert size(folded) == 4 * 28 + 6 * 3 + 6 * 2


@pytest.mark.parametrize("padding_mode", ["zeros", "circular", "replicate"])
def test_channels_merge_into_the_convolution_after(padding_mode):
    model = nn.Sequential(
        nn.ReLU(),
        TensorProjection((8, 6, 6), (7, None, None)),
        nn.Conv2d(7, 2, 3, padding=1, padding_mode=padding_mode),
    )
    folded = check(model, 8, 6, 6, became=[after("2")])
    assert size(folded) == 2 * 8 * 9 + 2


def test_layers_are_merged_only_if_that_saves_parameters():
    model = nn.Sequential(
        nn.ReLU(), TensorProjection((8, 6, 6), (2, None, None)), nn.Conv2d(2, 9, 3, padding=1)
    )
    assert size(check(model, 8, 6, 6, became=[PRODUCTS])) == size(model)


def test_a_transposed_projection_merges_into_the_convolution_after():
    model = nn.Sequential(
        nn.ReLU(),
        TransposeTensorProjection((4, 6, 6), (8, None, None)),
        nn.Conv2d(8, 3, 3, padding=1),
    )
    check(model, 4, 6, 6, became=[after("2")])


def test_two_projections_after_one_convolution():
    model = nn.Sequential(
        nn.Conv2d(3, 8, 1),
        TensorProjection((8, 4, 4), (6, None, None)),
        TensorProjection((6, 4, 4), (4, None, None)),
    )
    assert size(check(model, 3, 4, 4, became=[before("0")] * 2)) == 4 * 4


class Same(nn.Conv2d):
    def forward(self, x):
        return super().forward(x) + 1


def hooked(layer):
    layer.register_forward_hook(lambda module, args, z: z + 1)
    return layer


@pytest.mark.parametrize(
    "layers",
    [
        [nn.Conv2d(4, 8, 3), nn.ReLU()],
        [nn.Conv2d(4, 8, 3), nn.ReLU(inplace=True)],
        [nn.Conv2d(4, 8, 3), nn.BatchNorm2d(8)],
        [nn.Conv2d(4, 8, 3, groups=2)],
        [nn.utils.parametrizations.weight_norm(nn.Conv2d(4, 8, 3))],
        [Same(4, 8, 3)],
        [hooked(nn.Conv2d(4, 8, 3))],
    ],
)
def test_layers_that_do_not_merge(layers):
    check(
        nn.Sequential(*layers, TensorProjection((8, 6, 6), (4, 6, 6))), 4, 8, 8, became=[PRODUCTS]
    )


class Twice(nn.Module):
    """The convolution's output or weight is used elsewhere as well."""

    def __init__(self, how):
        super().__init__()
        self.conv = nn.Conv2d(3, 8, 3, padding=1)
        self.layer = TensorProjection((8, 6, 6), (4, None, None))
        self.conv2 = nn.Conv2d(3, 8, 3, padding=1)
        self.how = how
        if how == "tied":
            self.conv2.weight = self.conv.weight
        if how == "two names":
            self.conv2 = self.conv

    def forward(self, x):
        y = self.conv(x)
        z = self.layer(y)
        if self.how == "output":
            return z.sum(1) + y.sum(1)
        if self.how == "in place":
            y.relu_()
            return z.sum(1) + y.sum(1)
        if self.how == "weight":
            return z.sum(1) * self.conv.weight.mean()
        if self.how == "called twice":
            return z.sum(1) + self.layer(self.conv(z[:, :3])).sum(1)
        return z.sum(1) + self.conv2(x).sum(1)


@pytest.mark.parametrize(
    "how", ["output", "in place", "weight", "tied", "two names", "called twice"]
)
def test_a_layer_that_is_used_elsewhere_is_not_merged(how):
    assert size(check(Twice(how), 3, 6, 6)) >= 8 * 28 + 8 * 4


# Linear layers


class Functional(nn.Module):
    def __init__(self, method):
        super().__init__()
        self.method = method

    def forward(self, x):
        return x.flatten(1) if self.method else torch.flatten(x, start_dim=1)


@pytest.mark.parametrize(
    "flatten",
    [
        nn.Flatten(),
        nn.Flatten(-3),
        nn.Sequential(nn.Dropout(), nn.Flatten()),
        Functional(method=True),
        Functional(method=False),
    ],
)
def test_a_linear_layer_after_takes_the_projection_in_if_that_saves_parameters(flatten):
    layer = TensorProjection((64, 2, 1), (32, 1, None))
    few = nn.Sequential(nn.ReLU(), layer, flatten, nn.Linear(32, 4))
    folded = check(few, 64, 2, 1, became=[after("3", "Linear")])
    assert size(folded) == 4 * 128 + 4 < size(few)
    many = nn.Sequential(nn.ReLU(), layer, flatten, nn.Linear(32, 40))
    assert size(check(many, 64, 2, 1, became=[PRODUCTS])) == size(many)


@pytest.mark.parametrize("batch", [(), (3,)])
def test_a_linear_layer_directly_after_or_before(batch):
    model = nn.Sequential(TensorProjection((30,), (20,)), nn.Linear(20, 5, bias=False))
    check(model, *batch, 30, became=[after("1", "Linear")])
    model = nn.Sequential(nn.Linear(9, 30), TensorProjection((4, 30), (None, 20)))
    assert size(check(model, *batch, 4, 9, became=[before("0", "Linear")])) == 20 * 10


def test_a_transposed_projection_merges_into_a_linear_layer():
    model = nn.Sequential(
        TransposeTensorProjection((2, 3, 3), (4, 6, 6)), nn.Flatten(), nn.Linear(144, 7)
    )
    assert size(check(model, 2, 3, 3, became=[after("2", "Linear")])) == 7 * 18 + 7


@pytest.mark.parametrize("reshape", [lambda x: x.reshape(-1, 12), lambda x: x.flatten(0, 1)])
def test_another_reshape_does_not_merge(reshape):
    class Reshaped(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = TransposeTensorProjection((2, 3), (4, 12))
            self.dense = nn.Linear(12, 1)

        def forward(self, x):
            return self.dense(reshape(self.layer(x)))

    check(Reshaped(), 2, 3, became=[PRODUCTS])


# All other projections


@pytest.mark.parametrize("batch", [(), (3,)])
@pytest.mark.parametrize(
    ("order", "transposed"), [(1, False), (2, True), (3, False), (4, True), (5, False)]
)
def test_any_order_and_batch_axes(order, transposed, batch):
    large, small = (7, 6, 5, 4, 3)[:order], (4, 4, 5, 3, 1)[:order]
    layer = (
        TransposeTensorProjection(small, large) if transposed else TensorProjection(large, small)
    )
    check(layer, *batch, *layer.in_shape, became=[PRODUCTS])


def test_no_batch_axis():
    model = nn.Sequential(nn.Conv2d(3, 8, 1), TensorProjection((8, 4, 4), (4, None, None))).eval()
    x = torch.randn(3, 4, 4)
    folded, report = tp.fold_projections(model, x)
    assert report.steps[0].became == before("0")
    assert_close(folded(x), model(x), atol=1e-5, rtol=0)


def test_a_layer_without_parameters_still_returns_a_tensor_of_its_own():
    model = nn.Sequential(TensorProjection((4, 3), (None, None)), nn.ReLU(inplace=True))
    folded = check(model, 4, 3, became=["nothing: no mode changes its size"])
    x = torch.randn(2, 4, 3)
    unchanged = x.clone()
    folded(x)
    assert torch.equal(x, unchanged)


def test_lazy_and_frozen_layers():
    frozen = TensorProjection((2, 2), (1, None)).freeze()
    model = nn.Sequential(LazyTensorProjection((2, 2)), frozen)
    tp.fold_projections(model, torch.randn(1, 4, 4))
    assert isinstance(model[0], LazyTensorProjection)  # the given model is not changed
    model(torch.randn(1, 4, 4))
    check(model, 4, 4, became=[PRODUCTS, PRODUCTS])


def test_a_tied_autoencoder():
    encoder = TensorProjection((8, 6, 6), (4, 3, 3))
    check(nn.Sequential(encoder, nn.ReLU(), encoder.transpose(tied=True)), 8, 6, 6)


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
def test_other_types(dtype):
    model = nn.Sequential(nn.Conv2d(3, 8, 3), TensorProjection((8, 6, 6), (4, 3, None)))
    model.to(dtype).eval()
    x = torch.randn(2, 3, 8, 8, dtype=dtype)
    folded, report = tp.fold_projections(model, x)
    assert not report.needs_package
    atol = 1e-12 if dtype is torch.float64 else 0.05
    assert folded(x).dtype == dtype
    assert_close(folded(x), model(x), atol=atol, rtol=0)


def test_autocast_around_the_folded_model_and_around_folding():
    model = nn.Sequential(nn.Conv2d(3, 8, 3), TensorProjection((8, 6, 6), (4, 3, 2))).eval()
    x = torch.randn(2, 3, 8, 8)
    with torch.autocast("cpu", torch.bfloat16):
        folded, _ = tp.fold_projections(model, x)
        assert folded(x).dtype == torch.bfloat16
        assert_close(folded(x), model(x), atol=0.05, rtol=0)
    assert {p.dtype for p in folded.parameters()} == {torch.float32}
    assert_close(folded(x), model(x), atol=1e-5, rtol=0)


def test_parameters_of_a_coarser_type_than_the_input():
    # U is as exact as the input's type, whatever W's type is.
    check(TensorProjection((6, 4), (3, 2), dtype=torch.bfloat16), 6, 4)


def test_hooks_and_subclasses_of_projections_are_traced():
    class Doubled(TensorProjection):
        def forward(self, x):
            return 2 * super().forward(x)

    layer = TensorProjection((8, 6, 6), (4, None, None))
    layer.register_forward_hook(lambda module, args, z: z + 1)
    layer.register_forward_pre_hook(lambda module, args: (args[0].relu(),))
    check(nn.Sequential(nn.Conv2d(3, 8, 3), layer), 3, 8, 8, became=[PRODUCTS])
    model = nn.Sequential(TensorProjection((6, 4), (5, 4)), Doubled((5, 4), (3, 2)))
    check(model, 6, 4, became=[PRODUCTS, PRODUCTS])


def test_several_inputs_and_outputs_and_calls():
    class Two(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = TensorProjection((4, 3), (2, 2))
            self.layer_folded1 = nn.Linear(2, 2)  # a name that folding would like to use

        def forward(self, x, y):
            return {"sum": self.layer_folded1(self.layer(x + y)), "first": self.layer(x)}

    x, y = torch.randn(2, 5, 4, 3)
    folded, report = tp.fold_projections(model := Two().eval(), (x, y))
    assert_close(folded(x, y), model(x, y), atol=1e-5, rtol=0)
    assert [step.name for step in report.steps] == ["layer", "layer"]


# Values that change between two reads


class WritesThroughAView(nn.Module):
    """A merged layer would read its input after it is written to."""

    def __init__(self, what):
        super().__init__()
        self.conv = nn.Conv2d(3, 8, 1)
        self.layer = TensorProjection((8, 4, 4), (2, None, None) if what != "linear" else (1, 2, 2))
        self.after = nn.Linear(4, 1) if what == "linear" else nn.Conv2d(2, 1, 1)
        self.what = what

    def forward(self, x):
        x = x + 0
        if self.what == "before":
            part = x[:, :2]
            y = self.conv(x)
            part.clamp_(max=10)
            return self.layer(y), x
        y = self.conv(x).relu()
        part = y[:, :2].transpose(2, 3)
        z = self.layer(y)
        part.clamp_(max=10)
        return self.after(z.flatten(1) if self.what == "linear" else z), y


@pytest.mark.parametrize("what", ["before", "after", "linear"])
def test_nothing_moves_past_a_write_through_a_view(what):
    x = torch.randn(2, 3, 4, 4)
    folded, report = tp.fold_projections(model := WritesThroughAView(what).eval(), x)
    assert not report.needs_package
    for y in (x, 100 * x):  # the example is too small to be clamped
        for got, expected in zip(folded(y), model(y), strict=True):
            assert_close(got, expected, atol=1e-3, rtol=1e-5)


def test_the_example_and_the_model_are_not_changed():
    model = nn.Sequential(
        nn.ReLU(inplace=True),
        nn.Conv2d(3, 8, 3),
        nn.BatchNorm2d(8),
        TensorProjection((8, 6, 6), (4, 3, 3)),
        nn.Dropout(),
    )
    state, x = copy.deepcopy(model.state_dict()), torch.randn(2, 3, 8, 8)
    unchanged = x.clone()
    folded, _ = tp.fold_projections(model, x)
    assert torch.equal(x, unchanged)
    assert all(m.training for m in model.modules())
    assert isinstance(model[3], TensorProjection)
    assert all(torch.equal(v, state[k]) for k, v in model.state_dict().items())
    theirs = {p.data_ptr() for p in folded.parameters()}
    assert not theirs & {p.data_ptr() for p in model.parameters()}
    assert not any(p.requires_grad for p in folded.parameters())
    assert not folded.training


# Modules that torch.fx cannot follow


class Branch(nn.Module):
    """Takes a branch that depends on the values."""

    def __init__(self, layer=None):
        super().__init__()
        self.layer = layer or nn.Identity()

    def forward(self, x):
        return self.layer(x) if x.sum() > 0 else self.layer(-x)


def test_a_module_that_cannot_be_traced_stays_as_it_is():
    model = nn.Sequential(nn.Conv2d(3, 8, 3), TensorProjection((8, 6, 6), (4, 6, 6)), Branch())
    folded = check(model, 3, 8, 8, became=[before("0")])
    assert [type(m) for m in folded.modules()].count(Branch) == 1


def test_projections_inside_of_it_are_frozen():
    inner = Branch(TensorProjection((4, 6, 6), (2, 3, 3)))
    model = nn.Sequential(nn.Conv2d(3, 8, 3), TensorProjection((8, 6, 6), (4, 6, 6)), inner)
    check(model, 3, 8, 8, became=[before("0"), FROZEN], needs_package=True)
    _, report = tp.fold_projections(model, torch.randn(2, 3, 8, 8))
    assert report.reason == "torch.fx cannot follow the module that calls 2.layer"


def aten_only(program):
    targets = [n.target for n in program.graph.nodes if n.op == "call_function"]
    return all(t.namespace == "aten" and "linalg" not in str(t) for t in targets)


def test_a_model_that_cannot_be_traced_is_frozen():
    class Counts(nn.Module):
        def __init__(self):
            super().__init__()
            self.layers = nn.ModuleList([TensorProjection((4, 3), (4, 2))])

        def forward(self, x, times=None):
            for _ in range(len(x.shape) - 2 if times is None else times):
                x = self.layers[0](x)
            return x

    folded, report = tp.fold_projections(model := Counts().eval(), x := torch.randn(5, 4, 3))
    assert [step.became for step in report.steps] == [FROZEN]
    assert report.needs_package
    assert report.parameters_after == report.parameters_before == 6
    assert "needs this package: torch.fx cannot follow Counts.forward" in str(report)
    assert isinstance(folded.layers[0], tp.FrozenProjection)
    assert isinstance(model.layers[0], TensorProjection)
    assert_close(folded(x), model(x), atol=1e-5, rtol=0)
    assert aten_only(torch.export.export(folded, (x,)))


class Cast(nn.Module):
    """An autocast block, which a graph of torch.fx does not hold."""

    def __init__(self):
        super().__init__()
        self.layer, self.dense = TensorProjection((6, 4), (3, 2)), nn.Linear(6, 5)

    def forward(self, x):
        with torch.autocast("cpu", torch.bfloat16):
            return self.dense(self.layer(x).flatten(1))


class Traced(nn.Module):
    """Gives other values if it is traced."""

    def __init__(self, factor, scale):
        super().__init__()
        self.layer, self.factor, self.scale = TensorProjection((4,), (2,)), factor, scale

    def forward(self, x):
        return self.scale * self.layer(x) * (self.factor if isinstance(x, torch.fx.Proxy) else 1)


class Calls(nn.Module):
    """Depends on the number of calls."""

    def __init__(self):
        super().__init__()
        self.layer, self.calls = TensorProjection((4,), (2,)), 0
        self.register_buffer("total", torch.zeros(()))

    def forward(self, x):
        self.calls += 1
        self.total += 1
        return self.layer(x) * self.calls + self.total


class OneSample(nn.Module):
    """Treats a batch of one sample in another way."""

    def __init__(self):
        super().__init__()
        self.layer = TensorProjection((4,), (2,))

    def forward(self, x):
        return self.layer(x) * (2 if x.shape == (1, 4) else 1)


@pytest.mark.parametrize(
    ("model", "shape"),
    [
        (Cast(), (3, 6, 4)),
        (Traced(1.39, 1.0), (3, 4)),
        (Traced(1.39, 1e-6), (3, 4)),  # volts of an EEG
        (Traced(float("nan"), 1.0), (3, 4)),
        (Calls(), (3, 4)),
        (OneSample(), (3, 4)),
        (hooked(nn.Sequential(TensorProjection((4,), (2,)))), (3, 4)),
    ],
)
def test_a_graph_that_differs_from_the_model_is_not_used(model, shape):
    x = torch.randn(*shape)
    folded, report = tp.fold_projections(model.eval(), x)
    assert [step.became for step in report.steps] == [FROZEN]
    assert report.reason
    for y in (x, x[:1], x):
        assert_close(folded(y), model(y), rtol=1e-5, atol=0)


def test_a_subclass_that_torch_fx_cannot_reach_is_left():
    class Doubled(TensorProjection):
        def forward(self, x):
            return 2 * super().forward(x)

    folded, report = tp.fold_projections(Branch(Doubled((4,), (2,))), torch.randn(3, 4))
    assert [step.became for step in report.steps] == ["left as it is"]
    assert report.needs_package
    assert isinstance(folded.layer, Doubled)


def test_a_random_model_is_refused():
    class Random(nn.Module):
        def __init__(self, scale):
            super().__init__()
            self.layer, self.scale = TensorProjection((4,), (2,)), scale

        def forward(self, x):
            return self.scale * (self.layer(x) + torch.rand(2))

    for scale in (1, 1e-6):
        with pytest.raises(ProjectionValueError, match=r"(?s)not close.* run twice\?"):
            tp.fold_projections(Random(scale), torch.randn(2, 4))


# The studies' networks, and life without this package


@pytest.mark.parametrize("head", ["tpl1", "tpl2"])
def test_the_oct_network(head):
    folded = check(oct_cnn(head, size=32), 3, 32, 32, became=[PRODUCTS])
    assert kinds(folded).count("Conv2d") == 4


def test_it_runs_where_this_package_cannot_be_imported(tmp_path):
    model = oct_cnn("tpl2", size=32).eval()
    x = torch.randn(3, 3, 32, 32)
    folded, _ = tp.fold_projections(model, x)
    torch.save(folded, tmp_path / "folded.pt")
    program = torch.export.export(folded, (x,), dynamic_shapes=({0: torch.export.Dim("batch")},))
    torch.export.save(program, tmp_path / "folded.pt2")
    y = torch.randn(5, 3, 32, 32)
    torch.save((y, model(y)), tmp_path / "data.pt")
    script = """
        import sys, torch
        sys.modules["tensorprojection"] = None  # an import raises
        x, z = torch.load("data.pt")
        saved = torch.load("folded.pt", weights_only=False)
        exported = torch.export.load("folded.pt2").module()
        for model in (saved, exported):
            assert (model(x) - z).abs().max() < 1e-5
        print("same")
    """
    done = subprocess.run(
        [sys.executable, "-I", "-c", textwrap.dedent(script)],
        cwd=tmp_path, capture_output=True, text=True, timeout=120,
    )  # fmt: skip
    assert done.stdout == "same\n", done.stderr


def test_the_unet_checks_its_input_in_a_branch_and_is_frozen():
    model = unet("tpl", channels=4, size=16)
    folded = check(model, 3, 16, 16, became=[FROZEN, FROZEN], needs_package=True)
    assert aten_only(torch.export.export(folded, (torch.randn(2, 3, 16, 16),)))


def every_kind():
    return nn.Sequential(
        nn.Conv2d(3, 8, 3),
        TensorProjection((8, 6, 6), (4, 3, 2)),
        nn.ReLU(),
        TensorProjection((4, 3, 2), (2, None, None)),
        nn.ReLU(),
        TransposeTensorProjection((2, 3, 2), (3, 4, 5)),
        nn.Flatten(),
        nn.Linear(60, 6),
    ).eval()


@pytest.mark.parametrize("strict", [False, True])
def test_torch_export(strict):
    x = torch.randn(3, 3, 8, 8)
    folded, _ = tp.fold_projections(model := every_kind(), x)
    batch = ({0: torch.export.Dim("batch")},)
    program = torch.export.export(folded, (x,), dynamic_shapes=batch, strict=strict)
    assert aten_only(program)
    y = torch.randn(5, 3, 8, 8)
    assert_close(program.module()(y), model(y), atol=1e-5, rtol=0)


# The exporter copies tree specs of a class that torch itself has deprecated.
@pytest.mark.filterwarnings("ignore:.isinstance.treespec, LeafSpec.. is deprecated:FutureWarning")
def test_onnx(tmp_path):
    import onnxruntime

    x = torch.randn(3, 3, 8, 8)
    folded, report = tp.fold_projections(model := every_kind(), x)
    became = [f"{before('0')}, {PRODUCTS}", PRODUCTS, after("7", "Linear")]
    assert [s.became for s in report.steps] == became
    batch = ({0: torch.export.Dim("batch")},)
    program = torch.onnx.export(folded, (x,), dynamo=True, dynamic_shapes=batch, verbose=False)
    assert {node.domain for node in program.model.graph} == {""}
    program.save(tmp_path / "folded.onnx")
    session = onnxruntime.InferenceSession(
        tmp_path / "folded.onnx", providers=["CPUExecutionProvider"]
    )
    name = session.get_inputs()[0].name
    for n in (3, 1, 7):
        y = torch.randn(n, 3, 8, 8)
        (z,) = session.run(None, {name: y.numpy()})
        assert_close(torch.from_numpy(z), model(y).detach(), atol=1e-5, rtol=0)


# The report, and bad input


def test_the_report():
    model = nn.Sequential(nn.Conv2d(3, 8, 3), TensorProjection((8, 6, 6), (4, 3, 3)), nn.ReLU())
    _, report = tp.fold_projections(model, torch.randn(2, 3, 8, 8))
    lines = str(report).splitlines()
    assert lines[:3] == [
        "folded  shapes                  became",
        f"1       (8, 6, 6) -> (4, 3, 3)  {before('0')}, {PRODUCTS}",
        "parameters of the model, then with constants U in place of W: 292 -> 148",
    ]
    assert lines[3].startswith("largest difference of the example's outputs: ")
    assert lines[4] == "the folded model needs torch only"


def test_no_projection_in_use():
    class Spare(nn.Module):
        def __init__(self):
            super().__init__()
            self.spare, self.used = TensorProjection((4,), (2,)), TensorProjection((4,), (2,))

        def forward(self, x):
            return self.used(x)

    _, report = tp.fold_projections(Spare(), torch.randn(2, 4))
    assert [step.name for step in report.steps] == ["used"]
    with pytest.raises(ProjectionValueError, match="with a projection to fold, got none"):
        tp.fold_projections(nn.Linear(3, 2), torch.randn(2, 3))


@pytest.mark.parametrize("example", [3, torch.randn(2, 5), (torch.randn(2, 4), 1)])
def test_an_example_that_the_model_cannot_take(example):
    with pytest.raises(ProjectionValueError, match=r"runs on example_input, got \w+Error"):
        tp.fold_projections(TensorProjection((4,), (2,)), example)
