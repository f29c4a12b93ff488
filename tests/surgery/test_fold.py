"""fold: the same outputs from torch's own operations, merged where that is smaller."""

import copy
import io
import subprocess
import sys
import textwrap

import pytest
import torch
from torch import nn
from torch.testing import assert_close

import tensorprojection as tp
from tensorprojection import (
    HOPE,
    LazyTensorProjection,
    ProjectionTypeError,
    ProjectionValueError,
    TensorProjection,
    TransposeTensorProjection,
)
from tensorprojection.studies.models.oct_cnn import oct_cnn
from tensorprojection.studies.models.unet import unet


def size(model):
    return sum(p.numel() for p in model.parameters())


def targets(folded):
    """The operations, without the checks of the arguments."""
    names = [str(n.target).split(".") for n in folded.graph.nodes if n.op == "call_function"]
    return [n[1] for n in names if n[0] == "aten" and n[1] not in ("_assert_scalar", "sym_size")]


def check(model, *shape, became=None):
    """Folded for one batch and compared on others; the operations that are left."""
    folded, report = tp.fold(model, torch.randn(2, *shape))
    model = copy.deepcopy(model).eval()
    for n in (2, 1, 5):
        x = torch.randn(n, *shape)
        assert_close(folded(x), model(x), atol=1e-5, rtol=0)
    assert report.difference < 1e-5
    assert report.parameters_before == size(model)
    assert report.parameters_after == size(folded)
    if became is not None:
        assert [step.became for step in report.steps] == became
    assert not [t for t in map(str, folded.graph.nodes) if "tensorprojection" in t]
    return folded


BEFORE = "part of the convolution before it"
AFTER = "part of the convolution after it"
LINEAR = "part of the linear layer after it"
CONV = "a 1×1 convolution"
CONSTANTS = "products with constants"


# Channels and convolutions


@pytest.mark.parametrize(
    ("bias", "options"),
    [
        (True, {}),
        (False, {"padding": "same"}),
        (True, {"stride": 2, "padding": 1}),
        (False, {"dilation": 2}),
    ],
)
def test_channels_merge_into_the_convolution_before(bias, options):
    conv = nn.Conv2d(3, 8, 3, bias=bias, **options)
    _, *rest = conv(torch.randn(1, 3, 9, 9))[0].shape
    model = nn.Sequential(conv, TensorProjection((8, *rest), (4, None, None)), nn.ReLU())
    folded = check(model, 3, 9, 9, became=[BEFORE])
    assert targets(folded) == ["conv2d", "relu"]
    assert size(folded) == 4 * 3 * 9 + 4 * bias


@pytest.mark.parametrize("axes", [1, 3])
def test_in_one_and_three_spatial_axes(axes):
    conv = [nn.Conv1d, nn.Conv2d, nn.Conv3d][axes - 1](3, 6, 1)
    layer = TensorProjection((6, *[4] * axes), (2, *[None] * axes))
    assert targets(check(nn.Sequential(conv, layer), 3, *[4] * axes)) == [f"conv{axes}d"]
    assert targets(check(layer, 6, *[4] * axes, became=[CONV])) == [f"conv{axes}d"]


def test_channels_merge_and_the_map_becomes_constants():
    model = nn.Sequential(nn.Conv2d(3, 8, 3), TensorProjection((8, 6, 6), (4, 3, 2)))
    folded = check(model, 3, 8, 8, became=[f"{BEFORE}, {CONSTANTS}"])
    assert targets(folded) == ["conv2d", "matmul", "matmul"]
    assert size(folded) == 4 * 28 + 6 * 3 + 6 * 2


def test_channels_merge_into_the_convolution_after():
    model = nn.Sequential(
        nn.ReLU(), TensorProjection((8, 6, 6), (4, None, None)), nn.Conv2d(4, 2, 1)
    )
    folded = check(model, 8, 6, 6, became=[AFTER])
    assert targets(folded) == ["relu", "conv2d"]
    assert size(folded) == 2 * 8 + 2


def test_but_not_where_that_is_larger():
    model = nn.Sequential(
        nn.ReLU(),
        TensorProjection((8, 6, 6), (2, None, None)),
        nn.Conv2d(2, 9, 3, padding=1, padding_mode="zeros"),
    )
    folded = check(model, 8, 6, 6, became=[CONV])
    assert targets(folded) == ["relu", "conv2d", "conv2d"]
    assert size(folded) == size(model)


def test_a_transposed_one_merges_into_the_convolution_after():
    model = nn.Sequential(
        nn.ReLU(),
        TransposeTensorProjection((4, 6, 6), (8, None, None)),
        nn.Conv2d(8, 3, 3, padding=1),
    )
    assert targets(check(model, 4, 6, 6, became=[AFTER])) == ["relu", "conv2d"]


def test_channels_alone_become_a_1x1_convolution():
    folded = check(TensorProjection((8, 6, 6), (4, None, None)), 8, 6, 6, became=[CONV])
    assert targets(folded) == ["conv2d"]


@pytest.mark.parametrize(
    "between", [nn.ReLU(), nn.ReLU(inplace=True), nn.BatchNorm2d(8), nn.Sigmoid()]
)
def test_something_between(between):
    model = nn.Sequential(nn.Conv2d(3, 8, 3), between, TensorProjection((8, 6, 6), (4, None, None)))
    check(model, 3, 8, 8, became=[CONV])


def test_weights_that_are_computed_do_not_merge():
    model = nn.Sequential(
        nn.utils.parametrizations.weight_norm(nn.Conv2d(3, 8, 3)),
        TensorProjection((8, 2, 1), (4, None, None)),
        nn.ReLU(),
        TransposeTensorProjection((4, 2, 1), (4, 2, 2)),
        nn.Flatten(),
        nn.utils.parametrizations.weight_norm(nn.Linear(16, 2)),
    )
    check(model, 3, 4, 3, became=[CONV, CONSTANTS])


def test_groups_do_not_merge():
    model = nn.Sequential(
        nn.Conv2d(4, 8, 3, groups=2),
        TensorProjection((8, 6, 6), (4, None, None)),
        nn.Conv2d(4, 4, 3, groups=4),
    )
    check(model, 4, 8, 8, became=[CONV])


class Twice(nn.Module):
    """The convolution's result, or weight, is wanted elsewhere as well."""

    def __init__(self, how):
        super().__init__()
        self.conv = nn.Conv2d(3, 8, 3, padding=1)
        self.layer = TensorProjection((8, 6, 6), (4, None, None))
        self.conv2 = nn.Conv2d(3, 8, 3, padding=1)
        self.how = how
        if how == "tied":
            self.conv2.weight = self.conv.weight

    def forward(self, x):
        y = self.conv(x)
        z = self.layer(y)
        if self.how == "result":
            return z.sum(1) + y.sum(1)
        if self.how == "in_place":
            y.relu_()
            return z.sum(1) + y.sum(1)
        if self.how == "called_twice":
            return z.sum(1) + self.layer(self.conv(z[:, :3])).sum(1)
        return z.sum(1) + self.conv2(x).sum(1)


@pytest.mark.parametrize("how", ["result", "in_place", "tied", "called_twice"])
def test_what_is_used_elsewhere_stays(how):
    folded = check(Twice(how), 3, 6, 6)
    assert size(folded) >= 8 * 28 + 8 * 4


def test_an_input_that_is_written_to_later():
    class Late(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = TensorProjection((8, 4), (2, 2))
            self.dense = nn.Linear(4, 1)

        def forward(self, x):
            y = x + 1
            z = self.layer(y)
            y.zero_()
            return self.dense(z.flatten(1)), y

    folded, _ = tp.fold(model := Late().eval(), x := torch.randn(2, 8, 4))
    assert_close(folded(x), model(x), atol=1e-5, rtol=0)


def test_the_example_is_not_written_to():
    model = nn.Sequential(nn.ReLU(inplace=True), TensorProjection((8, 4), (2, 2)))
    x = torch.randn(2, 8, 4)
    before = x.clone()
    tp.fold(model, x)
    tp.replace(nn.Sequential(nn.ReLU(inplace=True), nn.MaxPool1d(2)), "1", example_input=x)
    assert torch.equal(x, before)


# Linear layers


@pytest.mark.parametrize(
    "flatten", [nn.Flatten(), nn.Flatten(-3), nn.Sequential(nn.Dropout(), nn.Flatten())]
)
def test_a_linear_layer_takes_the_projection_in_where_this_is_smaller(flatten):
    layer = TensorProjection((64, 2, 1), (32, 1, None))
    few = nn.Sequential(nn.ReLU(), layer, flatten, nn.Linear(32, 4))
    folded = check(few, 64, 2, 1, became=[LINEAR])
    assert targets(folded) == ["relu", "flatten", "linear"]
    assert size(folded) == 4 * 128 + 4 < size(few)
    many = nn.Sequential(nn.ReLU(), layer, flatten, nn.Linear(32, 40))
    assert size(check(many, 64, 2, 1, became=[CONSTANTS])) == size(many)


@pytest.mark.parametrize("batch", [(), (3,)])
def test_a_linear_layer_right_after(batch):
    model = nn.Sequential(TensorProjection((30,), (20,)), nn.Linear(20, 5, bias=False))
    folded = check(model, *batch, 30, became=[LINEAR])
    assert targets(folded) == ["linear"]


def test_a_transposed_one_always_merges():
    model = nn.Sequential(
        TransposeTensorProjection((2, 3, 3), (4, 6, 6)), nn.Flatten(), nn.Linear(144, 7)
    )
    assert size(check(model, 2, 3, 3, became=[LINEAR])) == 7 * 18 + 7


def test_another_reshape_does_not_merge():
    class Reshaped(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = TransposeTensorProjection((2, 3), (4, 6))
            self.dense = nn.Linear(12, 5)

        def forward(self, x):
            return self.dense(self.layer(x).reshape(-1, 12))

    check(Reshaped(), 2, 3, became=[CONSTANTS])


# Everything else


@pytest.mark.parametrize("batch", [(), (3,)])
@pytest.mark.parametrize(
    ("order", "transposed"), [(1, False), (2, True), (3, False), (4, True), (5, False)]
)
def test_any_order_and_batch_axes(order, transposed, batch):
    large, small = (7, 6, 5, 4, 3)[:order], (4, 4, 5, 3, 1)[:order]
    layer = (
        TransposeTensorProjection(small, large) if transposed else TensorProjection(large, small)
    )
    check(layer, *batch, *layer.in_shape, became=[CONSTANTS])


def test_a_layer_without_a_parameter():
    model = nn.Sequential(nn.ReLU(), TensorProjection((4, 3), (None, None)), nn.ReLU())
    assert targets(check(model, 4, 3)) == ["relu", "relu"]


def test_lazy_and_frozen_layers():
    lazy = LazyTensorProjection((2, 2))
    lazy(torch.randn(1, 4, 4))
    frozen = TensorProjection((2, 2), (1, None)).freeze()
    check(nn.Sequential(lazy, frozen), 4, 4, became=[CONSTANTS, CONV])


@pytest.mark.parametrize(
    ("layer", "became"),
    [
        (HOPE((3, 6, 8), 4, patch=(2, 3), stride=(1, 2)), "a convolution"),
        (HOPE((3, 6, 8), 4), "a linear layer"),
    ],
)
def test_hope(layer, became):
    check(layer, 3, 6, 8, became=[became])
    folded = check(nn.Sequential(nn.ReLU(), layer), 3, 6, 8, became=[became])
    assert not [t for t in targets(folded) if "norm" in t]


def test_a_tied_autoencoder():
    encoder = TensorProjection((8, 6, 6), (4, 3, 3))
    check(nn.Sequential(encoder, nn.ReLU(), encoder.transpose(tied=True)), 8, 6, 6)


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
def test_other_types(dtype):
    model = nn.Sequential(nn.Conv2d(3, 8, 3), TensorProjection((8, 6, 6), (4, 3, None)))
    model.to(dtype).eval()
    x = torch.randn(2, 3, 8, 8, dtype=dtype)
    folded, _ = tp.fold(model, x)
    atol = 1e-12 if dtype is torch.float64 else 0.05
    assert folded(x).dtype == dtype
    assert_close(folded(x), model(x), atol=atol, rtol=0)


def test_channels_last():
    model = nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU(), TensorProjection((8, 6, 6), (4, 3, 2)))
    folded = check(model, 3, 8, 8)
    x = torch.randn(2, 3, 8, 8).to(memory_format=torch.channels_last)
    assert_close(folded(x), model.eval()(x), atol=1e-5, rtol=0)


# The given model stays; the new one is finished


def test_the_given_model_stays_as_it_was():
    model = nn.Sequential(
        nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), TensorProjection((8, 6, 6), (4, 3, 3)), nn.Dropout()
    )
    state = copy.deepcopy(model.state_dict())
    folded, _ = tp.fold(model, torch.randn(2, 3, 8, 8))
    assert model.training
    assert isinstance(model[2], TensorProjection)
    assert all(torch.equal(v, state[k]) for k, v in model.state_dict().items())
    theirs = {p.data_ptr() for p in folded.parameters()}
    assert not theirs & {p.data_ptr() for p in model.parameters()}


def test_the_folded_model_does_not_learn_and_has_one_mode():
    model = nn.Sequential(nn.Conv2d(3, 8, 3), nn.Dropout(), TensorProjection((8, 6, 6), (4, 3, 3)))
    x = torch.randn(2, 3, 8, 8)
    folded, _ = tp.fold(model, x)
    assert not any(p.requires_grad for p in folded.parameters())
    expected = folded(x)
    assert torch.equal(folded.train()(x), expected)


def test_an_example_of_one_sample_gives_a_model_for_any_batch():
    model = nn.Sequential(nn.Conv2d(3, 8, 3), TensorProjection((8, 6, 6), (4, 3, 3)), nn.Flatten())
    folded, _ = tp.fold(model.eval(), torch.randn(1, 3, 8, 8))
    x = torch.randn(7, 3, 8, 8)
    assert_close(folded(x), model(x), atol=1e-5, rtol=0)


def test_several_inputs_and_outputs():
    class Two(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = TensorProjection((4, 3), (2, 2))

        def forward(self, x, y):
            return {"sum": self.layer(x + y), "first": self.layer(x)}

    x, y = torch.randn(2, 5, 4, 3)
    folded, report = tp.fold(model := Two().eval(), (x, y))
    assert_close(folded(x, y), model(x, y), atol=1e-5, rtol=0)
    assert len(report.steps) == 2


# The studies' networks, and a life without this package


@pytest.mark.parametrize("head", ["tpl1", "tpl2"])
def test_the_oct_network(head):
    folded = check(oct_cnn(head, size=32), 3, 32, 32, became=[CONSTANTS])
    assert targets(folded).count("conv2d") == 4


def test_the_unet():
    check(unet("tpl", channels=4, size=32), 3, 32, 32, became=[CONSTANTS, CONSTANTS])


def test_it_runs_where_this_package_cannot_be_imported(tmp_path):
    model = unet("tpl", channels=4, size=16).eval()
    x = torch.randn(3, 3, 16, 16)
    folded, _ = tp.fold(model, x)
    torch.save(folded, tmp_path / "folded.pt")
    program = torch.export.export(folded, (x,), dynamic_shapes=({0: torch.export.Dim("batch")},))
    torch.export.save(program, tmp_path / "folded.pt2")
    y = torch.randn(5, 3, 16, 16)
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


@pytest.mark.parametrize("strict", [False, True])
def test_torch_export(strict):
    model = nn.Sequential(nn.Conv2d(3, 8, 3), TensorProjection((8, 6, 6), (4, 3, 2)), nn.Flatten())
    x = torch.randn(3, 3, 8, 8)
    folded, _ = tp.fold(model.eval(), x)
    batch = ({0: torch.export.Dim("batch")},)
    program = torch.export.export(folded, (x,), dynamic_shapes=batch, strict=strict)
    y = torch.randn(5, 3, 8, 8)
    assert_close(program.module()(y), model(y), atol=1e-5, rtol=0)


# The exporter copies tree specs of a class that torch itself has deprecated.
@pytest.mark.filterwarnings("ignore:.isinstance.treespec, LeafSpec.. is deprecated:FutureWarning")
def test_onnx(tmp_path):
    import onnxruntime

    model = nn.Sequential(
        nn.Conv2d(3, 8, 3),
        TensorProjection((8, 6, 6), (4, 3, 2)),
        nn.ReLU(),
        TensorProjection((4, 3, 2), (2, None, None)),
        nn.ReLU(),
        TransposeTensorProjection((2, 3, 2), (3, 4, 5)),
    )
    x = torch.randn(3, 3, 8, 8)
    folded, report = tp.fold(model.eval(), x)
    assert [s.became for s in report.steps] == [f"{BEFORE}, {CONSTANTS}", CONV, CONSTANTS]
    batch = ({0: torch.export.Dim("batch")},)
    program = torch.onnx.export(folded, (x,), dynamo=True, dynamic_shapes=batch, verbose=False)
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
    _, report = tp.fold(model, torch.randn(2, 3, 8, 8))
    lines = str(report).splitlines()
    assert lines[:3] == [
        "folded  shapes                  became",
        f"1       (8, 6, 6) -> (4, 3, 3)  {BEFORE}, {CONSTANTS}",
        "parameters of the model: 292 -> 148",
    ]
    assert lines[3].startswith("largest difference of the example's outputs: ")


def test_nothing_to_fold():
    with pytest.raises(ProjectionValueError, match="with a projection to fold, got none"):
        tp.fold(nn.Linear(3, 2), torch.randn(2, 3))


class Branch(nn.Module):
    """Which way it goes depends on the values."""

    def __init__(self):
        super().__init__()
        self.layer = TensorProjection((4,), (2,))

    def forward(self, x):
        return self.layer(x) if x.sum() > 0 else self.layer(-x)


def test_a_model_that_cannot_be_followed():
    with pytest.raises(ProjectionValueError, match=r"torch\.export can follow.*got"):
        tp.fold(Branch(), torch.randn(2, 4))


class ByHand(nn.Module):
    """Calls the library's functions in its own forward."""

    def __init__(self):
        super().__init__()
        self.W = nn.Parameter(torch.randn(4, 3))
        self.layer = TensorProjection((3,), (2,))

    def forward(self, x):
        return self.layer(x @ tp.functional.polar(self.W))


def test_a_model_that_calls_the_librarys_functions():
    with pytest.raises(ProjectionValueError, match=r"as modules.*got.*functions itself.*polar"):
        tp.fold(ByHand(), torch.randn(2, 4))


class Random(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = TensorProjection((4,), (2,))

    def forward(self, x):
        return self.layer(x) + torch.rand(x.shape[0], 2)


def test_a_model_that_gives_something_else_each_time():
    with pytest.raises(ProjectionValueError, match=r"got a difference of .* run twice\?"):
        tp.fold(Random(), torch.randn(2, 4))


def test_bad_arguments():
    with pytest.raises(ProjectionTypeError, match=r"torch.nn.Module, got Tensor"):
        tp.fold(torch.ones(2), torch.ones(2))
    with pytest.raises(ProjectionTypeError, match=r"tensor or a tuple.*got int"):
        tp.fold(TensorProjection((4,), (2,)), 3)
    with pytest.raises(ProjectionValueError, match=r"runs on example_input, got Projection"):
        tp.fold(TensorProjection((4,), (2,)), torch.randn(2, 5))


def test_a_projection_with_two_names_is_one():
    class Twice(nn.Module):
        def __init__(self):
            super().__init__()
            self.a = tp.TensorProjection((6, 4), (3, 2))
            self.b = self.a

        def forward(self, x):
            return self.a(x) + self.b(2 * x)

    model, x = Twice(), torch.randn(3, 6, 4)
    folded, report = tp.fold(model, x)
    assert len(report.steps) == 2  # it is called twice
    torch.testing.assert_close(folded(x), model.eval()(x), rtol=0, atol=1e-5)


def test_nan_is_no_small_difference():
    model = nn.Sequential(tp.TensorProjection((6,), (3,)), Unsteady())
    with pytest.raises(ProjectionValueError, match="difference of nan"):
        tp.fold(model, torch.randn(4, 6))


class Unsteady(nn.Module):
    """NaN once it is exported, which no module should be."""

    def forward(self, x):
        return x * float("nan") if torch.compiler.is_exporting() else x


# What the example fixes is checked at every call


class Flagged(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = TensorProjection((6, 4), (3, 2))

    def forward(self, x, negative=True, factor=2.0, bias=None):
        z = self.layer(x) / x.shape[0] if x.shape[0] % 2 == 0 else self.layer(x)
        z = -factor * z if negative else factor * z
        return z if bias is None else z + bias


def saved(model):
    """As a user keeps it: what the documentation of fold says."""
    file = io.BytesIO()
    torch.save(model, file)
    file.seek(0)
    return torch.load(file, weights_only=False)


# torch itself stores tree specs of a class that it has deprecated.
old_specs = pytest.mark.filterwarnings(
    "ignore:.isinstance.treespec, LeafSpec.. is deprecated:FutureWarning"
)


@old_specs
@pytest.mark.parametrize("kept", [lambda m: m, saved, copy.deepcopy], ids=["new", "saved", "copy"])
def test_other_arguments_than_the_examples_are_refused(kept):
    x = torch.randn(4, 6, 4)
    folded = kept(tp.fold(model := Flagged().eval(), (x, True, 2.0, None)).model)
    assert_close(folded(x[:2], True, 2.0, None), model(x[:2]), atol=1e-5, rtol=0)
    for args, named in [
        ((x, False, 2.0, None), "negative == True"),
        ((x, True, 3.0, None), "factor == 2.0"),
        ((x, True, 2.0, torch.ones(2)), "bias == None"),
        ((x[:3], True, 2.0, None), r"\(x.shape\[0\] % 2\) == 0"),
        ((x[:1], True, 2.0, None), r"x.shape\[0\]"),
        ((x[..., :3], True, 2.0, None), r"x.shape\[2\] == 4"),
    ]:
        with pytest.raises(RuntimeError, match=f"Expected {named}.*when the model was folded"):
            folded(*args)


def test_the_checks_stay_where_assertions_are_off(tmp_path):
    folded, _ = tp.fold(Flagged(), (torch.randn(4, 6, 4), True, 2.0, None))
    torch.save(folded, tmp_path / "folded.pt")
    script = """
        import torch
        folded = torch.load("folded.pt", weights_only=False)
        try:
            folded(torch.ones(4, 6, 4), False, 2.0, None)
        except RuntimeError as error:
            print(error)
    """
    done = subprocess.run(
        [sys.executable, "-I", "-O", "-W", "ignore", "-c", textwrap.dedent(script)],
        cwd=tmp_path, capture_output=True, text=True, timeout=120,
    )  # fmt: skip
    assert "Expected negative == True" in done.stdout, done.stderr


@pytest.mark.parametrize("size", [0, 1])
def test_a_size_of_which_no_graph_knows(size):
    class Special(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = TensorProjection((6, 4), (3, 2))

        def forward(self, x):
            z = self.layer(x)
            return z.sum(0) + 1 if x.shape[0] == size else z

    folded, _ = tp.fold(model := Special().eval(), x := torch.randn(4, 6, 4))
    with pytest.raises(RuntimeError, match=rf"Expected x.shape\[0\] != {size}"):
        folded(x[:size])
    other = x[: 1 - size]
    assert_close(folded(other), model(other), atol=1e-5, rtol=0)


def test_arguments_in_a_dict_and_any_number_of_them():
    class Any(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = TensorProjection((6, 4), (3, 2))

        def forward(self, *args):
            x, options = args
            return self.layer(x + options["y"][0]) * options["factor"]

    x, y, z = torch.randn(3, 4, 6, 4)
    folded, _ = tp.fold(model := Any().eval(), (x, {"y": [y], "factor": 2}))
    args = (z[:3], {"y": [y[:3]], "factor": 2})
    assert_close(folded(*args), model(*args), atol=1e-5, rtol=0)
    with pytest.raises(RuntimeError, match=r"factor == 2"):
        folded(x, {"y": [y], "factor": 3})


def test_sizes_that_depend_on_each_other():
    class Pairs(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = TensorProjection((6, 4), (3, 2))

        def forward(self, x, y):
            return self.layer(x) + self.layer(y).unflatten(0, (2, -1)).sum(0) * (y.shape[0] > 3)

    x, y = torch.randn(4, 6, 4), torch.randn(8, 6, 4)
    for first in (True, False):
        model = Pairs().eval() if first else Swapped(Pairs().eval())
        folded, _ = tp.fold(model, (x, y) if first else (y, x))
        args = (x[:3], y[:6])
        args = args if first else args[::-1]
        assert_close(folded(*args), model(*args), atol=1e-5, rtol=0)
        args = (x[:3], y[:4]) if first else (y[:4], x[:3])
        with pytest.raises(RuntimeError):
            folded(*args)


class Swapped(nn.Module):
    def __init__(self, model):
        super().__init__()
        self.model = model

    def forward(self, x, y):
        return self.model(y, x)


# Writes into tensors


class WritesThroughAView(nn.Module):
    """Between reading and writing, a merged layer would read too late."""

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
    folded, _ = tp.fold(model := WritesThroughAView(what).eval(), x)
    for y in (x, 100 * x):  # the example shows nothing, larger values do
        for got, expected in zip(folded(y), model(y), strict=True):
            assert_close(got, expected, atol=1e-3, rtol=1e-5)


def test_a_layer_that_changes_nothing_still_makes_a_tensor_of_its_own():
    model = nn.Sequential(TensorProjection((4, 3), (None, None)), nn.ReLU(inplace=True))
    folded, _ = tp.fold(model, x := torch.randn(2, 4, 3))
    before = x.clone()
    assert torch.equal(folded(x), before.relu())
    assert torch.equal(x, before)


def test_a_model_that_counts_its_calls():
    class Counts(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = TensorProjection((4, 3), (2, 2))
            self.register_buffer("calls", torch.zeros(()))

        def forward(self, x):
            self.calls += 1
            return self.layer(x) * self.calls

    x = torch.randn(2, 4, 3)
    folded, _ = tp.fold(model := Counts().eval(), x)
    assert model.calls == 0
    for _ in range(3):
        assert_close(folded(x), model(x), atol=1e-5, rtol=0)


# What was refused, and can be folded


@pytest.mark.parametrize("patch", [None, (2, 3)])
@pytest.mark.parametrize("batch", [(), (5,), (5, 2)])
def test_hope_with_any_batch_axes(patch, batch):
    model = HOPE((3, 6, 8), 4, patch=patch)
    folded, _ = tp.fold(model, torch.randn(2, *batch, 3, 6, 8))
    x = torch.randn(3, *batch, 3, 6, 8)
    assert_close(folded(x), model(x), atol=1e-5, rtol=0)


def test_a_hope_that_is_not_called_is_not_reported():
    class Spare(nn.Module):
        def __init__(self):
            super().__init__()
            self.used, self.spare = HOPE((4,), 2), HOPE((4,), 2)

        def forward(self, x):
            return self.used(x)

    _, report = tp.fold(Spare(), torch.randn(2, 4))
    assert [step.name for step in report.steps] == ["used"]


class Blocks(nn.Module):
    """Autocast and no_grad blocks, one in another."""

    def __init__(self):
        super().__init__()
        self.layer = TensorProjection((6, 4), (3, 2))
        self.hope = HOPE((6, 4), 3)
        self.dense = nn.Linear(6, 5)

    def forward(self, x):
        x = 2 * x
        with torch.autocast("cpu", torch.bfloat16):
            z = self.dense(self.layer(x).flatten(1))
            h = self.hope(x)
            total = torch.nn.functional.mse_loss(z, z.flip(0)).reshape(1)  # in float32
            with torch.autocast("cpu", enabled=False), torch.no_grad():
                y = self.dense(self.layer(x).flatten(1))
        with torch.no_grad():
            w = self.layer(x)
        return z, h, total, y, w


@old_specs
def test_projections_in_autocast_and_no_grad_blocks():
    x = torch.randn(4, 6, 4)
    folded, report = tp.fold(model := Blocks().eval(), x)
    assert [step.name for step in report.steps] == ["layer", "layer", "layer", "hope"]
    for model_ in (folded, saved(folded)):
        for n in (4, 1, 7):
            x = torch.randn(n, 6, 4)
            for got, expected in zip(model_(x), model(x), strict=True):
                assert got.dtype == expected.dtype
                coarse = n if expected.dtype == torch.bfloat16 or expected.numel() == 1 else 0
                assert_close(got, expected, atol=0.05 if coarse else 1e-5, rtol=0.05)


def test_autocast_around_fold_is_refused():
    with (
        torch.autocast("cpu", torch.bfloat16),
        pytest.raises(ProjectionValueError, match=r"outside of an autocast block, got.*cpu"),
    ):
        tp.fold(TensorProjection((4,), (2,)), torch.randn(2, 4))


@pytest.mark.parametrize("n", [1, 4])
def test_an_argument_of_one_entry_that_is_no_batch(n):
    class Scaled(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = TensorProjection((6, 4), (3, 3))

        def forward(self, x, scale):
            return self.layer(x) * scale

    x = torch.randn(n, 6, 4)
    folded, _ = tp.fold(model := Scaled().eval(), (x, torch.ones(1)))
    for m in (1, n, 5):
        args = (torch.randn(m, 6, 4), torch.full((1,), 3.0))
        assert_close(folded(*args), model(*args), atol=1e-5, rtol=0)


def test_forward_hooks():
    layer = TensorProjection((8, 6, 6), (4, None, None))
    model = nn.Sequential(nn.Conv2d(3, 8, 3), layer, HOPE((4, 6, 6), 3), nn.Linear(3, 2))
    layer.register_forward_hook(lambda module, args, z: z + module.W1.shape[1])
    layer.register_forward_pre_hook(lambda module, args: (args[0].relu(),))
    model[2].register_forward_hook(lambda module, args, z: 2 * z)
    model.register_forward_hook(lambda module, args, z: z - 1)
    folded = check(model, 3, 8, 8)
    assert "relu" in targets(folded)


def test_large_values_that_cancel():
    class Cancels(nn.Module):
        def __init__(self):
            super().__init__()
            self.conv = nn.Conv2d(16, 16, 3, padding=1)
            self.layer = TensorProjection((16, 8, 8), (8, None, None))

        def forward(self, x):
            z = self.layer(self.conv(x))
            return z - z.roll(1, 0)

    x = 1e4 + torch.rand(3, 16, 8, 8)
    folded, report = tp.fold(model := Cancels().eval(), x)
    assert report.difference > 1e-5 * model(x).abs().max()  # or there was nothing to allow for
    exact = copy.deepcopy(model).double()(x.double())
    own = (model(x) - exact).abs().max()
    assert (folded(x) - exact).abs().max() < 8 * own


def test_a_wrong_fold_is_refused_though_values_cancel(monkeypatch):
    from tensorprojection.surgery import projection_node

    right = projection_node.into_conv_before
    monkeypatch.setattr(
        projection_node, "into_conv_before", lambda W, b, A: right(W * (1 + 1e-4), b, A)
    )
    model = nn.Sequential(nn.Conv2d(3, 8, 3), TensorProjection((8, 6, 6), (4, None, None)))
    with pytest.raises(ProjectionValueError, match="got a difference of"):
        tp.fold(model, 10 + torch.randn(2, 3, 8, 8))


def test_an_output_of_another_shape_or_type_is_refused():
    class Exported(nn.Module):
        def forward(self, x):
            return x[:, :1] if torch.compiler.is_exporting() else x

    model = nn.Sequential(TensorProjection((6,), (3,)), Exported())
    with pytest.raises(ProjectionValueError, match=r"got \(4, 1\) of torch.float32 for \(4, 3\)"):
        tp.fold(model, torch.randn(4, 6))


def test_a_subclass_with_a_forward_of_its_own():
    class Doubled(TensorProjection):
        def forward(self, x):
            return 2 * super().forward(x)

    check(nn.Sequential(TensorProjection((6, 4), (5, 4)), Doubled((5, 4), (3, 2))), 6, 4)


def test_parameters_of_a_coarser_type_than_the_input():
    # U is as exact as the input's type, whatever W's is.
    check(TensorProjection((6, 4), (3, 2), dtype=torch.bfloat16), 6, 4)


def test_names_that_are_taken():
    class Taken(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer, self.folded1 = TensorProjection((6, 4), (3, 2)), nn.Linear(2, 2)

        def forward(self, x):
            return self.folded1(self.layer(x))

    check(Taken(), 6, 4)


def test_a_model_without_values():
    model = TensorProjection((6, 4), (3, 2), device="meta")
    with pytest.raises(ProjectionValueError, match="with values, got tensors on the meta device"):
        tp.fold(model, torch.randn(2, 6, 4, device="meta"))


def test_no_batch_axis():
    model = nn.Sequential(nn.Conv2d(3, 8, 1), TensorProjection((8, 4, 4), (4, None, None))).eval()
    x = torch.randn(3, 4, 4)
    folded, _ = tp.fold(model, x)
    assert_close(folded(x), model(x), atol=1e-5, rtol=0)
    with pytest.raises(RuntimeError, match=r"Expected input.shape\[0\] == 3"):
        folded(x[:2])
