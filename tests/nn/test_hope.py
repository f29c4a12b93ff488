"""HOPE: a convolution, or one product, with unit columns; and the errors of its constructor."""

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn.functional import conv2d, mse_loss, unfold
from torch.testing import assert_close

from tensorprojection import ProjectionTypeError, ProjectionValueError, penalties
from tensorprojection.nn.hope import HOPE


def unit(U):
    """By NumPy in float64."""
    U = U.detach().double().numpy()
    return U / np.linalg.norm(U, axis=0)


# The map


@pytest.mark.parametrize("batch", [(), (4,), (2, 3)])
@pytest.mark.parametrize("in_shape", [(7,), (3, 4), (3, 4, 2), (2, 3, 2, 2)])
def test_whole_tensor(in_shape, batch):
    layer = HOPE(in_shape, 5)
    x = torch.randn(*batch, *in_shape)
    z = layer(x)
    assert z.shape == (*batch, 5)
    expected = [
        unit(layer.U).T @ sample.reshape(-1, order="F")
        for sample in x.double().reshape(-1, *in_shape).numpy()
    ]
    assert_close(z.double().reshape(-1, 5), torch.tensor(np.stack(expected)), atol=1e-6, rtol=0)


@pytest.mark.parametrize("batch", [(), (4,), (2, 3)])
@pytest.mark.parametrize(
    ("patch", "stride", "out"),
    [(2, None, (3, 4)), (3, 1, (4, 6)), ((2, 3), (1, 2), (5, 3)), (1, None, (6, 8))],
)
def test_patches_one_by_one(patch, stride, out, batch):
    layer = HOPE((3, 6, 8), 3, patch=patch, stride=stride)
    x = torch.randn(*batch, 3, 6, 8)
    z = layer(x)
    assert z.shape == (*batch, 3, *out)
    assert layer.out_shape == (3, *out)
    U, (h, w), (dh, dw) = unit(layer.U), layer.patch, layer.stride
    for sample, got in zip(x.reshape(-1, 3, 6, 8), z.reshape(-1, 3, *out), strict=True):
        for i in range(out[0]):
            for j in range(out[1]):
                window = sample[:, i * dh : i * dh + h, j * dw : j * dw + w].double().numpy()
                expected = torch.tensor(U.T @ window.reshape(-1, order="F"))
                assert_close(got[:, i, j].double(), expected, atol=1e-6, rtol=0)


def test_patches_are_a_convolution_with_unit_filters():
    layer = HOPE((3, 6, 8), 4, patch=2)
    x = torch.randn(5, 3, 6, 8)
    filters = layer.filters()
    assert_close(filters.flatten(1).norm(dim=1), torch.ones(4))
    assert_close(layer(x), conv2d(x, filters, stride=2))
    windows = unfold(x, 2, stride=2)  # rows in C order
    assert_close(layer(x).flatten(2), filters.flatten(1) @ windows)


def test_rows_that_no_window_reaches_are_left_out():
    layer = HOPE((3, 7, 8), 4, patch=2)
    x = torch.randn(5, 3, 7, 8)
    changed = x.clone()
    changed[:, :, 6] += 1
    assert layer.out_shape == (4, 3, 4)
    assert torch.equal(layer(x), layer(changed))


def test_it_takes_the_place_of_the_oct_networks_pool():
    layer = HOPE((32, 12, 12), 32, patch=2, stride=2)
    x = torch.randn(3, 32, 12, 12)
    assert layer(x).shape == nn.MaxPool2d(2)(x).shape
    assert sum(p.numel() for p in layer.parameters()) == 32 * 2 * 2 * 32


def test_the_length_of_a_column_does_not_matter():
    layer = HOPE((3, 6, 8), 4, patch=2)
    x = torch.randn(5, 3, 6, 8)
    z, penalty = layer(x), layer.penalty()
    layer.U.data *= torch.tensor([1e-3, 1.0, 7.0, 1e3])
    assert_close(layer(x), z)
    assert_close(layer.penalty(), penalty)


def test_a_column_of_zeros_gives_zeros_and_a_finite_gradient():
    layer = HOPE((3, 6, 8), 4, patch=2)
    layer.U.data[:, 1] = 0
    z = layer(torch.randn(5, 3, 6, 8))
    (z.square().sum() + layer.penalty()).backward()
    assert not z[:, 1].any()
    assert not layer.U.grad[:, 1].any()
    assert layer.U.grad.isfinite().all()
    assert layer.U.grad[:, 0].any()


# Training with its penalty


def test_the_penalty_makes_training_almost_orthogonal():
    x = torch.randn(64, 6, 1) * torch.randn(5) + 0.1 * torch.randn(64, 6, 5)
    target = x.mean((1, 2))

    def train(beta):
        torch.manual_seed(1)
        layer = HOPE((6, 5), 4)
        head = nn.Linear(4, 1)
        optimizer = torch.optim.Adam([*layer.parameters(), *head.parameters()], lr=0.003)
        for _ in range(150):
            optimizer.zero_grad()
            loss = mse_loss(head(layer(x)).squeeze(1), target)
            (loss + beta * layer.penalty()).backward()
            optimizer.step()
        return layer.penalty().item()

    assert train(beta=1.0) < 0.1 * train(beta=0.0)


def test_the_penalty_is_that_of_the_parameter():
    layer = HOPE((6, 5), 4)
    assert torch.equal(layer.penalty(), penalties.hope(layer.U))
    assert HOPE((6, 5), 4, init="orthogonal").penalty() < 1e-5


# Types, formats, exporting


@pytest.mark.parametrize("of_x", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
@pytest.mark.parametrize("patch", [None, 2])
def test_output_has_the_type_of_the_input(of_x, patch):
    layer = HOPE((3, 6, 8), 4, patch=patch)
    x = torch.randn(2, 3, 6, 8).to(of_x)
    z = layer(x)
    assert z.dtype == of_x
    assert_close(z.float(), layer(x.float()), atol=0.05, rtol=0.05)


def test_autocast_does_not_round_the_penalty():
    layer = HOPE((3, 6, 8), 4, patch=2)
    x = torch.randn(2, 3, 6, 8)
    expected = layer.penalty()
    with torch.autocast("cpu", torch.bfloat16):
        assert torch.equal(layer.penalty(), expected)
        assert layer(x).dtype == torch.bfloat16


def test_channels_last_in_channels_last_out():
    layer = HOPE((4, 6, 8), 4, patch=2)
    x = torch.randn(2, 4, 6, 8)
    z = layer(x.to(memory_format=torch.channels_last))
    assert z.is_contiguous(memory_format=torch.channels_last)
    assert_close(z, layer(x))


@pytest.mark.parametrize("patch", [None, 2])
def test_empty_batch(patch):
    layer = HOPE((3, 6, 8), 4, patch=patch)
    assert layer(torch.empty(0, 3, 6, 8)).shape == (0, *layer.out_shape)


@pytest.mark.parametrize("patch", [None, 2])
def test_gradients_by_finite_differences(patch):
    layer = HOPE((2, 4, 4), 3, patch=patch, dtype=torch.float64)
    x = torch.randn(2, 2, 4, 4, dtype=torch.float64, requires_grad=True)

    def run(x, U):
        return torch.func.functional_call(layer, {"U": U}, (x,))

    assert torch.autograd.gradcheck(run, (x, layer.U))


@pytest.mark.parametrize("patch", [None, 2])
def test_export(patch):
    layer = HOPE((3, 6, 8), 4, patch=patch)
    x = torch.randn(3, 3, 6, 8)
    batch = ({0: torch.export.Dim("batch")},)
    program = torch.export.export(layer, (x,), dynamic_shapes=batch)
    y = torch.randn(5, 3, 6, 8)
    assert_close(program.module()(y), layer(y))


def test_what_it_prints():
    assert repr(HOPE((4, 5), 3, init="orthogonal")) == (
        "HOPE((4, 5) -> (3,), init='orthogonal', 60 parameters)"
    )


# Bad input


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"in_shape": (2, 3), "features": 7}, r"at most 6 features.*got 7"),
        ({"patch": 1, "features": 4}, r"at most 3 features.*\(3, 1, 1\).*got 4"),
        ({"features": 0}, r"features to hold sizes of at least 1, got 0"),
        ({"in_shape": (6, 8), "patch": 2}, r"\(channels, height, width\).*got \(6, 8\)"),
        ({"patch": 7}, r"fits into \(6, 8\), got \(7, 7\)"),
        ({"patch": (2, 2, 2)}, r"patch to be one size or two, got \(2, 2, 2\)"),
        ({"patch": 0}, r"patch to hold sizes of at least 1"),
        ({"patch": 2, "stride": 0}, r"stride to hold sizes of at least 1"),
        ({"stride": 2}, r"stride only with a patch"),
        ({"init": "zeros"}, r"init to be one of 'normal', 'orthogonal', got 'zeros'"),
    ],
)
def test_values_that_break_a_rule(arguments, message):
    with pytest.raises(ProjectionValueError, match=message):
        HOPE(**{"in_shape": (3, 6, 8), "features": 2, **arguments})


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"in_shape": 3}, r"in_shape to be a sequence"),
        ({"features": 2.0}, r"features to hold integers, got 2.0"),
        ({"patch": 2.0}, r"patch to be a sequence"),
        ({"dtype": torch.int64}, r"real floating-point dtype, got torch.int64"),
    ],
)
def test_types_that_break_a_rule(arguments, message):
    with pytest.raises(ProjectionTypeError, match=message):
        HOPE(**{"in_shape": (3, 6, 8), "features": 2, **arguments})


def test_an_input_of_another_shape():
    layer = HOPE((3, 6, 8), 2, patch=2)
    with pytest.raises(ProjectionValueError, match=r"input of shape \(\.\.\., 3, 6, 8\).*swapped"):
        layer(torch.randn(5, 6, 8, 3))
    with pytest.raises(ProjectionTypeError, match="floating-point"):
        layer(torch.ones(5, 3, 6, 8, dtype=torch.int64))
    with pytest.raises(RuntimeError, match="one device"):
        layer(torch.empty(5, 3, 6, 8, device="meta"))


def test_filters_need_a_patch():
    with pytest.raises(ProjectionValueError, match="with a patch"):
        HOPE((3, 6, 8), 2).filters()


@pytest.mark.parametrize("size", [1e20, 1e-30])
@pytest.mark.parametrize("patch", [None, 2])
def test_columns_of_any_size(size, patch):
    layer = HOPE((3, 4, 4), 3, patch=patch)
    with torch.no_grad():
        layer.U[:, 1] *= size
    assert_close(layer.columns().double(), torch.from_numpy(unit(layer.U)), rtol=0, atol=1e-6)
    x = torch.randn(2, 3, 4, 4)
    layer(x).square().sum().backward()
    exact = HOPE((3, 4, 4), 3, patch=patch, dtype=torch.float64)
    exact.load_state_dict(layer.state_dict())
    exact(x.double()).square().sum().backward()
    scale = exact.U.grad.abs().amax(0)
    assert_close(layer.U.grad.double() / scale, exact.U.grad / scale, rtol=0, atol=1e-5)
