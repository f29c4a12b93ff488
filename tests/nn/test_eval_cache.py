"""In eval mode U is computed once and cached, and every change of W is noticed."""

import copy
import pickle

import pytest
import torch
from torch import nn
from torch.func import functional_call, grad, hessian, stack_module_state, vmap
from torch.testing import assert_close

import tensorprojection.nn.layers
from tensorprojection import TensorProjection, TransposeTensorProjection
from tensorprojection.nn.cache import EvalCache


@pytest.fixture
def polar_calls(monkeypatch):
    """How many W's were decomposed, by call."""
    calls = []
    projections = tensorprojection.nn.layers.projections

    def counted(Ws, *args, **options):
        calls.append(sum(W is not None for W in Ws))
        return projections(Ws, *args, **options)

    monkeypatch.setattr(tensorprojection.nn.layers, "projections", counted)
    return calls


@pytest.fixture
def layer():
    return TensorProjection((7, 6, 5), (4, None, 2)).eval()


@pytest.fixture
def x():
    return torch.randn(3, 7, 6, 5)


# It is used


@pytest.mark.parametrize("guard", [torch.no_grad, torch.inference_mode])
def test_U_is_computed_once_in_eval_mode(layer, x, polar_calls, guard, reference):
    with guard():
        results = [layer(x) for _ in range(3)]
    assert polar_calls == [2]
    for z in results:
        assert_close(z.double(), reference(layer, x), rtol=0, atol=1e-5)


def test_U_is_computed_once_where_W_takes_no_gradient(layer, x, polar_calls):
    layer.requires_grad_(False)
    x.requires_grad_()
    layer(x)
    (gradient,) = torch.autograd.grad(layer(x).square().sum(), x)
    assert polar_calls == [2]
    layer.train()
    (expected,) = torch.autograd.grad(layer(x).square().sum(), x)
    assert_close(gradient, expected)


def test_U_follows_W_at_every_call_in_training(layer, x):
    layer.train()
    with torch.no_grad():
        before = layer(x)
        layer.W1.data.neg_()  # which no version counter tells of
        assert_close(layer(x), -before)


def test_transposed_layer_keeps_U_as_well(polar_calls):
    layer = TransposeTensorProjection((4,), (7,)).eval()
    with torch.no_grad():
        assert torch.equal(layer(torch.ones(4)), layer(torch.ones(4)))
    assert polar_calls == [1]


def test_cached_U_serves_other_methods(layer, x, polar_calls):
    with torch.no_grad():
        layer(x)
        layer.captured_energy(x)
        layer.reconstruct(x)
    assert polar_calls == [2]


# It notices every change of W


def optimizer_step(layer):
    optimizer = torch.optim.SGD(layer.parameters(), lr=1.0)
    layer(torch.ones(layer.in_shape)).sum().backward()
    optimizer.step()


def adam_step(layer):
    optimizer = torch.optim.Adam(layer.parameters(), lr=0.1, foreach=True)
    layer(torch.ones(layer.in_shape)).sum().backward()
    optimizer.step()


def load(layer, **options):
    layer.load_state_dict(TensorProjection(layer.in_shape, layer.out_shape).state_dict(), **options)


def edit_in_place(layer):
    with torch.no_grad():
        layer.W1[0, 0] += 1


def copy_into(layer):
    with torch.no_grad():
        layer.W3.copy_(torch.randn(5, 2))


def edit_data(layer):
    layer.W1.data.mul_(torch.rand(7, 4))


def set_one_entry_of_data(layer):
    layer.W3.data[4, 1] = 1.0


def replace_data(layer):
    layer.W1.data = torch.randn(7, 4)


def edit_detached(layer):
    layer.W1.detach().add_(1)


def edit_numpy_view(layer):
    layer.W1.detach().numpy()[...] = 1 + torch.rand(7, 4).numpy()


def replace_parameter(layer):
    layer.W3 = nn.Parameter(torch.randn(5, 2))


def swap_data(layer):
    # As weight averaging does: the average goes in for the evaluation, the weights come back.
    other = torch.randn(7, 4)
    layer.W1.data, _ = other, layer.W1.data


CHANGES = [
    optimizer_step,
    adam_step,
    load,
    pytest.param(lambda layer: load(layer, assign=True), id="load_assign"),
    edit_in_place,
    copy_into,
    edit_data,
    set_one_entry_of_data,
    replace_data,
    edit_detached,
    edit_numpy_view,
    replace_parameter,
    swap_data,
    pytest.param(lambda layer: layer.reset_parameters(), id="reset_parameters"),
    pytest.param(lambda layer: layer.to(torch.bfloat16), id="to_bfloat16"),
    pytest.param(lambda layer: layer.half(), id="half"),
]


@pytest.mark.parametrize("change", CHANGES)
def test_every_change_of_W_is_noticed(layer, x, reference, change):
    with torch.no_grad():
        before = layer(x)
        layer(x)  # from what is kept
    change(layer)
    with torch.no_grad():
        after = layer(x)
    assert_close(after.double(), reference(layer, x), rtol=0, atol=1e-5)
    assert (after - before).abs().max() > 1e-4


@pytest.mark.parametrize("change", CHANGES)
def test_every_change_of_W_is_noticed_in_inference_mode(layer, x, reference, change):
    with torch.inference_mode():
        before = layer(x)
    change(layer)
    with torch.inference_mode():
        after = layer(x)
    assert_close(after.double(), reference(layer, x), rtol=0, atol=1e-5)
    assert (after - before).abs().max() > 1e-4


def test_a_change_there_and_back(layer, x):
    with torch.no_grad():
        before = layer(x)
        layer.W1.data.add_(1)
        assert not torch.allclose(layer(x), before)
        layer.W1.data.sub_(1)
        assert_close(layer(x), before, rtol=0, atol=1e-5)


def test_to_float64_keeps_the_map(layer, x, reference):
    with torch.no_grad():
        layer(x)
        layer.double()
        z = layer(x.double())
    assert_close(z, reference(layer, x), rtol=0, atol=1e-12)


def test_training_between_two_evaluations(layer, x, reference):
    optimizer = torch.optim.SGD(layer.parameters(), lr=1.0)
    for _ in range(3):
        layer.train()
        optimizer.zero_grad()
        layer(x).sum().backward()
        optimizer.step()
        layer.eval()
        with torch.no_grad():
            assert_close(layer(x).double(), reference(layer, x), rtol=0, atol=1e-5)


def test_weight_averaging(layer, x, reference):
    average = torch.optim.swa_utils.AveragedModel(layer).eval()
    seen = []
    for _ in range(3):
        layer.reset_parameters()
        average.update_parameters(layer)
        with torch.no_grad():
            seen.append(average(x))
        assert_close(seen[-1].double(), reference(average.module, x), rtol=0, atol=1e-5)
    assert not torch.allclose(seen[0], seen[1])
    assert not torch.allclose(seen[1], seen[2])


def test_a_tied_partner_notices_too(layer, x, reference):
    up = layer.transpose()
    z = torch.randn(3, *up.in_shape)
    with torch.no_grad():
        before = up(z)
        layer.W1.data.add_(torch.randn(7, 4))
        assert_close(up(z).double(), reference(up, z), rtol=0, atol=1e-5)
        assert not torch.allclose(up(z), before)


# It is not used where gradients of W are asked for


def test_gradients_of_W_in_eval_mode(layer, x):
    with torch.no_grad():
        layer(x)  # U is kept from here on
    layer(x).square().sum().backward()
    twin = copy.deepcopy(layer).train()
    twin.zero_grad()
    twin(x).square().sum().backward()
    assert layer.W1.grad.abs().max() > 0
    assert torch.equal(layer.W1.grad, twin.W1.grad)
    assert torch.equal(layer.W3.grad, twin.W3.grad)


def test_gradient_of_one_W_in_eval_mode(layer, x):
    layer.W1.requires_grad_(False)
    with torch.no_grad():
        layer(x)
    layer(x).square().sum().backward()
    assert layer.W1.grad is None
    twin = copy.deepcopy(layer).train()
    twin.zero_grad()
    twin(x).square().sum().backward()
    assert torch.equal(layer.W3.grad, twin.W3.grad)


def test_backward_after_inference_mode(layer, x):
    layer.requires_grad_(False)
    with torch.inference_mode():
        layer(x)
    x.requires_grad_()
    layer(x).square().sum().backward()
    kept, x.grad = x.grad, None
    layer.train()
    layer(x).square().sum().backward()
    assert_close(kept, x.grad)


def test_training_after_inference_mode(layer, x):
    with torch.inference_mode():
        layer(x)
    layer(x).sum().backward()
    assert layer.W1.grad.isfinite().all()


# Under torch.func


def test_functional_call_with_other_values(layer, x, reference):
    other = TensorProjection((7, 6, 5), (4, None, 2)).eval()
    with torch.no_grad():
        own = layer(x)
        z = functional_call(layer, dict(other.named_parameters()), (x,))
        assert_close(z.double(), reference(other, x), rtol=0, atol=1e-5)
        assert torch.equal(layer(x), own)


def test_gradient_of_W_under_func(layer, x, assert_same_gradients):
    with torch.no_grad():
        layer(x)

    def loss(parameters):
        return functional_call(layer, parameters, (x,)).square().sum()

    gradients = grad(loss)({name: W.detach() for name, W in layer.named_parameters()})
    layer.train()(x).square().sum().backward()
    expected = [layer.W1.grad, layer.W3.grad]
    assert_same_gradients([gradients["W1"], gradients["W3"]], expected)


def test_ensemble_in_eval_mode(x, reference):
    layers = [TensorProjection((7, 6, 5), (4, None, 2)).eval() for _ in range(3)]
    parameters, _ = stack_module_state(layers)
    with torch.no_grad():
        layers[0](x)
        out = vmap(lambda p: functional_call(layers[0], p, (x,)))(parameters)
        own = layers[0](x)
    for z, layer in zip(out, layers, strict=True):
        assert_close(z.double(), reference(layer, x), rtol=0, atol=1e-5)
    assert_close(own.double(), reference(layers[0], x), rtol=0, atol=1e-5)


# torch loads forward-mode rules by torch.jit.script on first use, and warns about itself.
@pytest.mark.filterwarnings(r"ignore:`torch.jit.script` is deprecated:DeprecationWarning")
@pytest.mark.parametrize("transform", [grad, hessian])
def test_nothing_cached_inside_a_transform_escapes_from_it(layer, x, transform):
    layer.requires_grad_(False)

    def loss(sample):
        return layer(sample).square().sum()

    first = transform(loss)(x[0])
    assert_close(transform(loss)(x[0]), first)
    outer = grad(lambda sample: transform(loss)(sample).sum())(x[0])
    fresh = copy.deepcopy(layer)
    expected = grad(lambda s: transform(lambda t: fresh(t).square().sum())(s).sum())(x[0])
    assert_close(outer, expected)
    assert torch.equal(layer(x), fresh(x))


def test_vmap_over_inputs_in_eval_mode(layer, x):
    layer.requires_grad_(False)
    assert_close(vmap(layer)(x), layer(x))


# Copies, dtypes


@pytest.mark.parametrize("twin_of", [copy.deepcopy, lambda m: pickle.loads(pickle.dumps(m))])
def test_copies_have_an_empty_cache(layer, x, polar_calls, twin_of):
    size = len(pickle.dumps(layer))
    with torch.no_grad():
        z = layer(x)
        assert len(pickle.dumps(layer)) == size
        polar_calls.clear()
        twin = twin_of(layer)
        assert torch.equal(twin(x), z)
        assert polar_calls == [2]
        polar_calls.clear()
        layer(x)  # the original still has its own
        assert polar_calls == []


def test_the_cache_is_not_in_the_state_dict(layer, x):
    with torch.no_grad():
        layer(x)
    assert list(layer.state_dict()) == ["W1", "W3"]
    assert list(layer.buffers()) == []


def test_inputs_of_different_types_in_turn(layer, x, reference):
    layer.double()
    tolerance = {torch.float64: 1e-12, torch.float32: 1e-5, torch.bfloat16: 0.1}
    types = [torch.float32, torch.float64, torch.bfloat16, torch.float64, torch.float32]
    with torch.no_grad():
        for dtype in types:
            z = layer(x.to(dtype))
            assert z.dtype == dtype
            expected = reference(layer, x.to(dtype))
            assert_close(z.double(), expected, rtol=0, atol=tolerance[dtype])


def test_after_autocast_full_precision_is_back(layer, x, reference):
    with torch.no_grad():
        with torch.autocast("cpu", torch.bfloat16):
            assert layer(x).dtype == torch.bfloat16
        z = layer(x)
    assert z.dtype == torch.float32
    assert_close(z.double(), reference(layer, x), rtol=0, atol=1e-5)


def test_what_another_thread_puts_in_place_is_not_read_back():
    """Two threads in eval mode, one of them under autocast, share a layer."""

    class Interrupted(EvalCache):
        busy = False

        def __setattr__(self, name, value):
            super().__setattr__(name, value)
            if value is not None and not self.busy:
                super().__setattr__("busy", True)
                with torch.autocast("cpu", torch.bfloat16), torch.no_grad():
                    layer(torch.randn(2, *layer.in_shape))  # the other thread's turn

    layer = TensorProjection((8, 6), (4, 3))
    layer._cache = Interrupted()
    layer.eval()
    x = torch.randn(2, 8, 6)
    with torch.no_grad():
        z = layer(x)
    assert layer._cache.busy
    assert z.dtype == torch.float32
    right = TensorProjection((8, 6), (4, 3))
    right.load_state_dict(layer.state_dict())
    assert torch.equal(z, right.eval()(x))
