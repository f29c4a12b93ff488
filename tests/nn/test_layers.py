"""The two layers as users see them: shapes, parameters, inits, transposes and inspection."""

import copy

import pytest
import torch
from implementations import implementation
from torch import nn
from torch.nn.utils import parametrize
from torch.testing import assert_close

import tensorprojection as tp
from tensorprojection import TensorProjection, TransposeTensorProjection

IN = (7, 6, 5, 4, 3)
OUT = (4, None, 2, 4, 1)


def names(layer):
    return [name for name, _ in layer.named_parameters()]


def count(layer):
    return sum(W.numel() for W in layer.parameters())


# Shapes and parameters


@pytest.mark.parametrize("order", [1, 2, 3, 4, 5])
@pytest.mark.parametrize("batch", [(), (2,), (2, 3), (2, 1, 3)])
def test_any_order_and_any_batch_axes(order, batch, reference):
    layer = TensorProjection(IN[:order], OUT[:order])
    x = torch.randn(*batch, *IN[:order])
    z = layer(x)
    assert z.shape == (*batch, *layer.out_shape)
    assert_close(z.double(), reference(layer, x), rtol=0, atol=1e-5)


@pytest.mark.parametrize("order", [1, 2, 3, 4, 5])
@pytest.mark.parametrize("batch", [(), (2,), (2, 3), (2, 1, 3)])
def test_transposed_any_order_and_any_batch_axes(order, batch, reference):
    small = tuple(p if q is None else q for p, q in zip(IN, OUT, strict=True))[:order]
    layer = TransposeTensorProjection(small, IN[:order])
    z = torch.randn(*batch, *small)
    x = layer(z)
    assert x.shape == (*batch, *IN[:order])
    assert_close(x.double(), reference(layer, z), rtol=0, atol=1e-5)


def test_shapes_are_tuples_with_none_filled_in():
    layer = TensorProjection([7, 6, 5], [4, None, 5])
    assert layer.in_shape == (7, 6, 5)
    assert layer.out_shape == (4, 6, 5)
    assert layer.order == 3


@pytest.mark.parametrize("eps", [1e-3, [1e-3, 0.1, 1e-3]])
@pytest.mark.parametrize("cls", [TensorProjection, TransposeTensorProjection])
def test_modes_of_one_size_keep_their_own_W(cls, eps, reference):
    large, small = (6, 6, 6), (3, 3, 3)
    layer = cls(*((large, small) if cls is TensorProjection else (small, large)), eps=eps)
    x = torch.randn(4, *layer.in_shape)
    assert_close(layer(x).double(), reference(layer, x), rtol=0, atol=1e-5)


@pytest.mark.parametrize("left_alone", [None, 6])
def test_a_mode_left_alone_has_no_parameter(left_alone):
    layer = TensorProjection((7, 6, 5), (4, left_alone, 2))
    assert names(layer) == ["W1", "W3"]
    assert layer.W2 is None
    assert [None if W is None else tuple(W.shape) for W in layer.Ws] == [(7, 4), None, (5, 2)]


@pytest.mark.parametrize("left_alone", [None, 6])
def test_a_mode_left_alone_has_no_parameter_transposed(left_alone):
    layer = TransposeTensorProjection((4, 6, 2), (7, left_alone, 5))
    assert names(layer) == ["W1", "W3"]
    assert [None if W is None else tuple(W.shape) for W in layer.Ws] == [(7, 4), None, (5, 2)]


def test_a_layer_that_leaves_every_mode_alone_is_the_identity():
    layer = TensorProjection((7, 6), (None, 6))
    x = torch.randn(3, 7, 6)
    assert names(layer) == []
    assert torch.equal(layer(x), x)
    assert layer.projections() == [None, None]


@pytest.mark.parametrize(
    ("in_shape", "out_shape", "expected"),
    [
        ((32, 12, 12), (32, 6, 6), 144),  # OCT, model 1
        ((32, 12, 12), (20, 6, 6), 784),  # OCT, model 2
        ((1024, 5, 5), (64, None, None), 65_536),  # chest
    ],
)
def test_parameter_counts_of_the_paper(in_shape, out_shape, expected):
    assert count(TensorProjection(in_shape, out_shape)) == expected


def test_device_and_dtype_of_the_parameters():
    layer = TensorProjection((7, 6), (4, 3), dtype=torch.float64, device="cpu")
    assert {W.dtype for W in layer.parameters()} == {torch.float64}
    assert {W.dtype for W in TensorProjection((7,), (4,)).parameters()} == {torch.float32}


def test_training_moves_every_parameter():
    layer = TensorProjection((7, 6, 5), (4, 3, 2))
    before = copy.deepcopy(layer.state_dict())
    optimizer = torch.optim.SGD(layer.parameters(), lr=0.1)
    x = torch.randn(8, 7, 6, 5)
    loss = -layer(x).square().mean()
    loss.backward()
    optimizer.step()
    assert all(not torch.equal(W, before[name]) for name, W in layer.named_parameters())
    assert -layer(x).square().mean() < loss


# projections(), and eps


def test_projections_are_the_Us_of_the_Ws():
    layer = TensorProjection((7, 6, 5), (4, None, 2))
    U1, U2, U3 = layer.projections()
    assert U2 is None
    assert torch.equal(U1, tp.functional.polar(layer.W1, 1e-3))
    assert torch.equal(U3, tp.functional.polar(layer.W3, 1e-3))


def test_projections_are_differentiable_and_take_a_dtype():
    layer = TensorProjection((7,), (4,))
    (U,) = layer.projections(torch.float64)
    assert U.dtype == torch.float64
    U.square().sum().backward()
    assert layer.W1.grad is not None
    assert layer.W1.grad.dtype == torch.float32


def singular_values_of_U(layer):
    with torch.no_grad():
        return [torch.linalg.svdvals(U) for U in layer.projections()]


@pytest.mark.parametrize("cls", [TensorProjection, TransposeTensorProjection])
def test_eps_per_mode(cls):
    small, large = (3, 3, 3), (6, 6, 6)
    shapes = (large, small) if cls is TensorProjection else (small, large)
    layer = cls(*shapes, eps=[0.5, None, 2], init="orthogonal", dtype=torch.float64)
    assert layer.eps == (0.5, 1e-3, 2.0)
    for values, eps in zip(singular_values_of_U(layer), (0.5, 1e-3, 2.0), strict=True):
        expected = torch.full((3,), 1 / (1 + eps**2) ** 0.5, dtype=torch.float64)
        assert_close(values, expected, rtol=0, atol=1e-12)


def test_eps_defaults():
    assert TensorProjection((6, 6), (3, 3)).eps == (1e-3, 1e-3)
    assert TensorProjection((6, 6), (3, 3), eps_mode="relative").eps == (1e-5, 1e-5)


def test_relative_eps_does_not_see_the_scale_of_W():
    layer = TensorProjection((6, 5), (3, 2), eps=0.3, eps_mode="relative", dtype=torch.float64)
    before = layer.projections()
    with torch.no_grad():
        layer.W1.mul_(1e-4)
        layer.W2.mul_(1e4)
    for U, V in zip(before, layer.projections(), strict=True):
        assert_close(U, V, rtol=0, atol=1e-12)


# Starts


def test_normal_init_has_the_papers_deviation():
    layer = TensorProjection((1024,), (256,))
    assert abs(layer.W1.std().item() - 0.05) < 0.001
    assert abs(layer.W1.mean().item()) < 0.001


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.float16])
def test_orthogonal_init_is_orthonormal_to_its_own_precision(dtype):
    layer = TensorProjection((40,), (12,), init="orthogonal", dtype=dtype)
    W = layer.W1.detach().double()
    assert layer.W1.dtype == dtype
    tolerance = 8 * torch.finfo(dtype).eps
    assert_close(W.T @ W, torch.eye(12, dtype=torch.float64), rtol=0, atol=tolerance)


def test_orthogonal_init_is_uniform():
    # QR alone would give the diagonal of R, and so of Q, a preferred sign.
    diagonals = [TensorProjection((3,), (2,), init="orthogonal").W1.diagonal() for _ in range(100)]
    share = (torch.stack(diagonals) > 0).double().mean(0)
    assert ((share - 0.5).abs() < 0.2).all()


def test_init_per_mode():
    layer = TensorProjection((40, 40), (12, 12), init=["orthogonal", "normal"])
    assert_close(layer.W1.T @ layer.W1, torch.eye(12), rtol=0, atol=1e-5)
    assert abs(layer.W2.std().item() - 0.05) < 0.01


@pytest.mark.parametrize("init", ["normal", "orthogonal"])
def test_reset_parameters_initializes_in_place(init):
    layer = TensorProjection((9, 8), (4, None), init=init)
    W = layer.W1
    old = W.detach().clone()
    layer.reset_parameters()
    assert layer.W1 is W
    assert not torch.equal(W, old)


@pytest.mark.parametrize("init", ["normal", "orthogonal"])
def test_a_seed_fixes_the_init(init):
    torch.manual_seed(5)
    first = TensorProjection((9, 8), (4, 3), init=init)
    torch.manual_seed(5)
    second = TensorProjection((9, 8), (4, 3), init=init)
    torch.manual_seed(6)
    third = TensorProjection((9, 8), (4, 3), init=init)
    assert torch.equal(first.W2, second.W2)
    assert not torch.equal(first.W2, third.W2)


# The transposed layer of a projection, and back


@pytest.fixture
def down():
    options = {"eps": [0.1, 1e-3, 0.2], "eps_mode": "relative", "dtype": torch.float64}
    return TensorProjection((7, 6, 5), (4, None, 2), **options)


def test_tied_transpose_is_the_transpose_of_the_map(down):
    up = down.transpose()
    assert type(up) is TransposeTensorProjection
    assert (up.in_shape, up.out_shape) == ((4, 6, 2), (7, 6, 5))
    x, z = torch.randn(7, 6, 5).double(), torch.randn(4, 6, 2).double()
    # ⟨down(x), z⟩ = ⟨x, up(z)⟩ is what makes it the transpose.
    assert_close((down(x) * z).sum(), (x * up(z)).sum(), rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("tied", [True, False])
def test_there_and_back(down, tied):
    back = down.transpose(tied=tied).transpose(tied=tied)
    assert type(back) is TensorProjection
    assert repr(back) == repr(down)
    assert (back.W1 is down.W1) == tied
    assert (back.W3 is down.W3) == tied
    assert back.W2 is None


def test_untied_transpose_has_its_own_parameters(down):
    up = down.transpose(tied=False)
    assert (up.eps, up.eps_mode, up.init) == (down.eps, down.eps_mode, down.init)
    assert [W.shape for W in up.parameters()] == [W.shape for W in down.parameters()]
    assert {W.dtype for W in up.parameters()} == {torch.float64}
    assert not torch.equal(up.W1, down.W1)


@pytest.mark.parametrize("tied", [True, False])
def test_transpose_keeps_the_mode_of_training(down, tied):
    assert down.transpose(tied=tied).training
    assert not down.eval().transpose(tied=tied).training


def test_transpose_of_a_layer_without_parameters():
    up = TensorProjection((7, 6), (None, None)).transpose()
    x = torch.randn(2, 7, 6)
    assert torch.equal(up(x), x)


def test_a_tied_pair_trains_one_parameter(down):
    pair = nn.Sequential(down, down.transpose())
    assert names(pair) == ["0.W1", "0.W3"]
    x = torch.randn(9, 7, 6, 5).double()
    pair(x).square().sum().backward()
    both = down.W1.grad.clone()

    # The gradient is the sum of what each half gets with a parameter of its own.
    halves = nn.Sequential(copy.deepcopy(down), copy.deepcopy(down).transpose())
    halves(x).square().sum().backward()
    assert halves[0].W1 is not halves[1].W1
    assert_close(both, halves[0].W1.grad + halves[1].W1.grad, rtol=1e-12, atol=1e-12)

    torch.optim.SGD(pair.parameters(), lr=0.1).step()
    assert pair[1].W1 is down.W1
    assert torch.equal(pair[1].projections()[0], down.projections()[0])


def test_a_tied_pair_stays_tied(down):
    pair = nn.Sequential(down, down.transpose())
    twin = copy.deepcopy(pair)
    assert twin[1].W1 is twin[0].W1
    assert twin[0].W1 is not down.W1

    with torch.no_grad():
        down.W1.mul_(2).add_(0.1)
    assert set(pair.state_dict()) == {"0.W1", "0.W3", "1.W1", "1.W3"}
    twin.load_state_dict(pair.state_dict())
    assert twin[1].W1 is twin[0].W1
    assert torch.equal(twin[1].W1, down.W1)

    twin.to(torch.float32)
    assert twin[1].W1 is twin[0].W1
    assert twin[1].W1.dtype == torch.float32


# Looking at a layer


@pytest.mark.parametrize(
    ("layer", "expected"),
    [
        (
            TensorProjection((32, 12, 12), (None, 6, 6)),
            "TensorProjection((32, 12, 12) -> (32, 6, 6), eps=0.001, "
            "init=('normal', 'block', 'block'), init_scale=(1.0, 3.0, 3.0), 144 parameters)",
        ),
        (
            TensorProjection((1024, 5), (64, 5), eps=[0.1, 0.2], init="orthogonal"),
            "TensorProjection((1024, 5) -> (64, 5), eps=(0.1, 0.2), init='orthogonal', "
            "65,536 parameters)",
        ),
        (
            TransposeTensorProjection((8,), (16,), eps_mode="relative"),
            "TransposeTensorProjection((8,) -> (16,), eps=1e-05, eps_mode='relative', "
            "init='normal', 128 parameters)",
        ),
        (
            TensorProjection((8, 7), (8, 7), init=["normal", "orthogonal"]),
            "TensorProjection((8, 7) -> (8, 7), eps=0.001, init=('normal', 'orthogonal'), "
            "0 parameters)",
        ),
    ],
)
def test_repr(layer, expected):
    assert repr(layer) == expected


@pytest.mark.parametrize("cls", [TensorProjection, TransposeTensorProjection])
@pytest.mark.parametrize("eps_mode", ["absolute", "relative"])
def test_orthogonality_error_is_what_eps_predicts(cls, eps_mode):
    shapes = ((12, 9), (6, 4)) if cls is TensorProjection else ((6, 4), (12, 9))
    layer = cls(*shapes, eps=0.02, eps_mode=eps_mode)
    predicted = 0.0
    for W in layer.parameters():
        squares = torch.linalg.svdvals(W.detach().double()).square()
        shift = 0.02**2 * (squares.mean() if eps_mode == "relative" else 1)
        predicted = max(predicted, (shift / (squares.min() + shift)).item())
    assert abs(layer.orthogonality_error().item() - predicted) < 1e-6
    assert predicted > 1e-5


def test_orthogonality_error_sees_the_worst_mode_and_takes_no_gradient():
    layer = TensorProjection((12, 9), (6, 4), init="orthogonal", eps=[1e-3, 1.0])
    error = layer.orthogonality_error()
    assert abs(error.item() - 0.5) < 1e-6
    assert not error.requires_grad


def test_orthogonality_error_without_parameters_is_zero():
    assert TensorProjection((12, 9), (None, None)).orthogonality_error() == 0


@pytest.mark.parametrize("batch", [(), (5,), (2, 5)])
def test_captured_energy_is_one_number_a_sample(batch):
    layer = TensorProjection((7, 6, 5), (4, None, 2))
    x = torch.randn(*batch, 7, 6, 5)
    energy = layer.captured_energy(x)
    expected = layer(x).square().sum((-3, -2, -1)) / x.square().sum((-3, -2, -1))
    assert energy.shape == batch
    assert energy.dtype == x.dtype
    assert_close(energy, expected)
    assert ((energy > 0) & (energy < 1)).all()


def test_captured_energy_of_what_lies_inside_and_outside_of_the_subspace():
    layer = TensorProjection((7, 6), (4, None), init="orthogonal", dtype=torch.float64)
    inside = layer.transpose()(torch.randn(5, 4, 6).double())
    x = torch.randn(5, 7, 6).double()
    outside = x - layer.W1 @ (layer.W1.T @ x)
    assert_close(layer.captured_energy(inside), torch.ones(5).double(), rtol=0, atol=1e-5)
    assert_close(layer.captured_energy(outside), torch.zeros(5).double(), rtol=0, atol=1e-12)


@pytest.mark.parametrize("training", [True, False])
def test_reconstruct_is_the_projection_there_and_back(training):
    layer = TensorProjection((7, 6, 5), (4, None, 2)).train(training)
    x = torch.randn(3, 7, 6, 5)
    back = layer.reconstruct(x)
    assert back.shape == x.shape
    assert_close(back, layer.transpose()(layer(x)))
    assert (back - x).norm() > 0.1


def test_reconstruct_returns_what_lies_in_the_subspace():
    layer = TensorProjection((7, 6, 5), (4, None, 2), init="orthogonal", dtype=torch.float64)
    x = layer.transpose()(torch.randn(3, 4, 6, 2).double())
    assert_close(layer.reconstruct(x), x, rtol=0, atol=1e-5)


# freeze()


@pytest.fixture(params=[TensorProjection, TransposeTensorProjection])
def either(request):
    large, small = (7, 6, 5), (4, 6, 2)
    shapes = (large, small) if request.param is TensorProjection else (small, large)
    return request.param(*shapes)


def test_frozen_layer_is_the_same_map_without_parameters(either):
    frozen = either.freeze()
    x = torch.randn(3, *either.in_shape)
    assert isinstance(frozen, tp.FrozenProjection)
    assert list(frozen.parameters()) == []
    assert [name for name, _ in frozen.named_buffers()] == ["U1", "U3"]
    assert_close(frozen(x), either(x), rtol=0, atol=1e-6)
    assert not frozen(x).requires_grad


def test_frozen_layer_does_not_follow_the_layer(either):
    frozen = either.freeze()
    x = torch.randn(3, *either.in_shape)
    before = frozen(x)
    either.reset_parameters()
    assert torch.equal(frozen(x), before)
    assert not torch.allclose(either(x), before)


def test_frozen_layer_state_dict_and_deepcopy(either):
    frozen, x = either.freeze(), torch.randn(3, *either.in_shape)
    either.reset_parameters()
    other = either.freeze()
    assert not torch.allclose(other(x), frozen(x))
    other.load_state_dict(frozen.state_dict())
    assert torch.equal(other(x), frozen(x))
    assert torch.equal(copy.deepcopy(frozen)(x), frozen(x))


def test_frozen_layer_passes_the_gradient_of_the_input(either):
    x = torch.randn(3, *either.in_shape, requires_grad=True)
    weight = torch.randn(3, *either.out_shape)
    (expected,) = torch.autograd.grad((either(x) * weight).sum(), x)
    (grad,) = torch.autograd.grad((either.freeze()(x) * weight).sum(), x)
    assert_close(grad, expected, rtol=0, atol=1e-6)


def test_frozen_repr():
    down = TensorProjection((7, 6), (4, None))
    assert repr(down.freeze()) == "FrozenProjection((7, 6) -> (4, 6), no parameters)"
    expected = "FrozenProjection((4, 6) -> (7, 6), transposed, no parameters)"
    assert repr(down.transpose().freeze()) == expected


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("kind", [TensorProjection, TransposeTensorProjection])
def test_a_layer_that_changes_no_mode_still_returns_a_tensor_of_its_own(kind, training):
    layer, x = kind((4, 3), (4, None)).train(training), torch.randn(2, 4, 3)
    before = x.clone()
    z = layer(x)
    assert torch.equal(z, before)
    z.zero_()
    assert torch.equal(x, before)


def test_captured_energy_of_zeros_is_all_of_it():
    layer = TensorProjection((4, 3), (2, 2))
    energy = layer.captured_energy(torch.stack([torch.zeros(4, 3), torch.randn(4, 3)]))
    assert energy[0] == 1
    assert 0 < energy[1] < 1


def test_a_sample_of_zeros_leaves_the_gradient_of_captured_energy_finite():
    layer = TensorProjection((4, 3), (2, 2))
    x = torch.stack([torch.zeros(4, 3), torch.randn(4, 3)])
    layer.captured_energy(x).sum().backward()
    with_zeros, layer.W1.grad = layer.W1.grad, None
    layer.captured_energy(x[1:]).sum().backward()
    torch.testing.assert_close(with_zeros, layer.W1.grad)


@pytest.mark.parametrize("kernels", [True, False])
@pytest.mark.parametrize("training", [True, False])
def test_channels_beside_the_layers_modes_keep_their_place_in_memory(training, kernels, reference):
    layer = TensorProjection((12, 10), (6, 5)).train(training)
    x = torch.randn(3, 7, 12, 10).to(memory_format=torch.channels_last).requires_grad_()
    with implementation("kernels" if kernels else "torch"):
        z = layer(x)
        (dx,) = torch.autograd.grad(z.sum(), x)
    assert z.is_contiguous(memory_format=torch.channels_last)
    assert dx.is_contiguous(memory_format=torch.channels_last)
    torch.testing.assert_close(z.double(), reference(layer, x), rtol=1e-5, atol=1e-5)


class Counted(nn.Module):
    """A parametrization that counts how often it is evaluated, as one with a state would notice."""

    def __init__(self):
        super().__init__()
        self.count = 0

    def forward(self, W):
        self.count += 1
        return W


@pytest.mark.parametrize("kind", [tp.TensorProjection, tp.TransposeTensorProjection])
@pytest.mark.parametrize("training", [True, False])
def test_a_parametrization_is_evaluated_once_per_call(kind, training):
    shapes = ((4, 4), (8, 8)) if kind.transposed else ((8, 8), (4, 4))
    layer, counted = kind(*shapes), Counted()
    parametrize.register_parametrization(layer.train(training), "W1", counted)
    counted.count = 0
    layer(torch.randn(2, *layer.in_shape))
    assert counted.count == 1
