"""tp.orthogonal: weights are orthonormal before, during and after training."""

import copy
import datetime
import io
import traceback
from pathlib import Path

import pytest
import torch
from torch import nn
from torch.func import functional_call, grad, stack_module_state, vmap
from torch.nn.parallel import DistributedDataParallel
from torch.nn.utils import parametrize
from torch.testing import assert_close

import tensorprojection as tp
import tensorprojection.parametrize
from tensorprojection import ProjectionTypeError, ProjectionValueError

# Of torch's compiler and of torch.jit, about themselves; and of the LSTM with projections.
pytestmark = [
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
    pytest.mark.filterwarnings("ignore:LSTM with projections:UserWarning"),
]

# A module, the name of its weight, an input, and the matrices that have to be orthonormal.
KINDS = {
    "Linear, tall": (lambda: nn.Linear(5, 9), "weight", (4, 5), lambda w: [w]),
    "Linear, wide": (lambda: nn.Linear(9, 5), "weight", (4, 9), lambda w: [w]),
    "Linear, square": (lambda: nn.Linear(6, 6), "weight", (4, 6), lambda w: [w]),
    "Linear, one row": (lambda: nn.Linear(6, 1), "weight", (4, 6), lambda w: [w]),
    "Linear, large": (lambda: nn.Linear(80, 70), "weight", (4, 80), lambda w: [w]),
    "Conv1d": (lambda: nn.Conv1d(3, 5, 4), "weight", (2, 3, 9), lambda w: [w.reshape(5, 12)]),
    "Conv2d": (lambda: nn.Conv2d(2, 30, 3), "weight", (2, 2, 6, 6), lambda w: [w.reshape(30, 18)]),
    "Conv3d": (lambda: nn.Conv3d(2, 4, 2), "weight", (1, 2, 3, 3, 3), lambda w: [w.reshape(4, 16)]),
    "Conv2d, groups": (
        lambda: nn.Conv2d(4, 6, 3, groups=2),
        "weight",
        (2, 4, 6, 6),
        lambda w: [w[:3].reshape(3, 18), w[3:].reshape(3, 18)],
    ),
    "Conv2d, depthwise": (
        lambda: nn.Conv2d(4, 4, 3, groups=4),
        "weight",
        (2, 4, 6, 6),
        lambda w: [w[k].reshape(1, 9) for k in range(4)],
    ),
    "ConvTranspose2d": (
        lambda: nn.ConvTranspose2d(5, 3, 2),
        "weight",
        (2, 5, 4, 4),
        lambda w: [w.reshape(5, 12)],
    ),
    "RNN": (lambda: nn.RNN(4, 6), "weight_hh_l0", (3, 2, 4), lambda w: [w]),
    "GRU": (
        lambda: nn.GRU(4, 6),
        "weight_hh_l0",
        (3, 2, 4),
        lambda w: [w[:6], w[6:12], w[12:]],
    ),
    "LSTM, input": (
        lambda: nn.LSTM(4, 6, num_layers=2, bidirectional=True),
        "weight_ih_l1_reverse",
        (3, 2, 4),
        lambda w: [w[:6], w[6:12], w[12:18], w[18:]],
    ),
    "LSTM, projection": (
        lambda: nn.LSTM(4, 6, proj_size=3),
        "weight_hr_l0",
        (3, 2, 4),
        lambda w: [w],
    ),
    "LSTMCell": (
        lambda: nn.LSTMCell(4, 6),
        "weight_ih",
        (2, 4),
        lambda w: [w[:6], w[6:12], w[12:18], w[18:]],
    ),
    "Bilinear, a batch": (lambda: nn.Bilinear(4, 6, 3), "weight", (2, 4), lambda w: list(w)),
}


def build(kind):
    make, name, shape, matrices = KINDS[kind]
    x = torch.randn(shape)
    inputs = (x, torch.randn(2, 6)) if kind.startswith("Bilinear") else (x,)
    return make(), name, inputs, matrices


def first(output):
    while isinstance(output, tuple):
        output = output[0]
    return output


def error(matrices):
    """The largest |QᵀQ - I|, of the smaller side."""
    worst = 0.0
    for Q in matrices:
        A = Q.detach().double()
        A = A if A.shape[0] >= A.shape[1] else A.T
        worst = max(worst, (A.T @ A - torch.eye(A.shape[1])).abs().max().item())
    return worst


def nearest(A):
    P, _, Vh = torch.linalg.svd(A.detach().double(), full_matrices=False)
    return (P @ Vh).to(A.dtype)


def W_of(module, name="weight"):
    return module.parametrizations[name].original


# What the weight is


@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_of_module_is_and_stays_orthonormal(kind):
    module, name, inputs, matrices = build(kind)
    plain = [A.detach().clone() for A in matrices(getattr(module, name))]
    assert tp.orthogonal(module, name) is module
    assert_close([*map(torch.clone, matrices(getattr(module, name)))], [*map(nearest, plain)])
    assert error(matrices(getattr(module, name))) < 2e-6
    before = getattr(module, name).detach().clone()

    optimizer = torch.optim.SGD(module.parameters(), lr=0.02, weight_decay=0.1)
    losses = []
    target = torch.randn_like(first(module(*inputs)))
    for _ in range(5):
        optimizer.zero_grad()
        with parametrize.cached():
            loss = (first(module(*inputs)) - target).square().mean()
            loss.backward()
        assert W_of(module, name).grad.isfinite().all()
        optimizer.step()
        losses.append(loss.item())
    assert losses[-1] < losses[0]
    assert (getattr(module, name) - before).norm() > 1e-4
    assert error(matrices(getattr(module, name))) < 2e-6
    assert tp.orthogonality_error(module) < 4e-6


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("training", [True, False])
def test_removing_leaves_a_plain_module_with_the_same_output(kind, training):
    module, name, inputs, _ = build(kind)
    cls, names = type(module), [n for n, _ in module.named_parameters()]
    tp.orthogonal(module, name).train(training)
    with torch.no_grad():
        expected = first(module(*inputs))
    parametrize.remove_parametrizations(module, name)
    assert type(module) is cls
    assert sorted(n for n, _ in module.named_parameters()) == sorted(names)
    assert getattr(module, name).is_contiguous()
    assert_close(first(module(*inputs)), expected)


def test_attention_has_orthonormal_queries_keys_and_values():
    attention = tp.orthogonal(nn.MultiheadAttention(8, 2, batch_first=True), "in_proj_weight")
    tp.orthogonal(attention.out_proj)
    x = torch.randn(2, 5, 8)
    attention(x, x, x)[0].square().sum().backward()
    assert W_of(attention, "in_proj_weight").grad.norm() > 0
    assert error(attention.in_proj_weight.split(8)) < 2e-6
    with torch.no_grad():
        expected = attention(x, x, x)[0]
        assert_close(attention.eval()(x, x, x, need_weights=False)[0], expected)
    separate = tp.orthogonal(nn.MultiheadAttention(8, 2, kdim=6), "k_proj_weight")
    assert error([separate.k_proj_weight]) < 2e-6


def test_the_rows_of_a_fused_linear_are_split_on_request():
    qkv = tp.orthogonal(nn.Linear(8, 24), blocks=3)
    assert error(qkv.weight.split(8)) < 2e-6
    assert error([qkv.weight]) > 0.5


def test_an_embedding_is_orthonormal_and_its_padding_stays_zero():
    embedding = tp.orthogonal(nn.Embedding(30, 6, padding_idx=3))
    optimizer = torch.optim.Adam(embedding.parameters(), lr=0.1)
    for _ in range(3):
        optimizer.zero_grad()
        embedding(torch.arange(30)).pow(3).sum().backward()
        optimizer.step()
    assert error([embedding.weight]) < 2e-6
    assert embedding.weight[3].abs().max() < 1e-6 < embedding.weight[4].abs().max()


@pytest.mark.parametrize("weight", [torch.zeros(5, 4), torch.ones(4, 5), torch.eye(4).repeat(1, 2)])
def test_a_weight_without_full_rank_becomes_orthonormal(weight):
    linear = nn.Linear(*reversed(weight.shape))
    linear.weight.data.copy_(weight)
    assert error([tp.orthogonal(linear).weight]) < 2e-6


@pytest.mark.parametrize("shape", [(3, 3), (7, 3), (3, 7), (2, 5, 3)])
def test_the_gradient_is_exact_at_an_orthonormal_W(shape):
    """Where all singular values coincide, and 1 / (λ_i - λ_j) is infinite."""
    polar = tp.Polar().train()
    W = polar.right_inverse(torch.eye(*shape[-2:], dtype=torch.float64).expand(shape))
    assert torch.autograd.gradcheck(polar, W.requires_grad_())
    assert torch.autograd.gradgradcheck(polar, W)


def test_weight_decay_alone_changes_nothing():
    linear = tp.orthogonal(nn.Linear(9, 5))
    before = linear.weight.detach().clone()
    with torch.no_grad():
        W_of(linear).mul_(1e-12)
    assert_close(linear.weight, before)
    absolute = tp.orthogonal(nn.Linear(9, 5), eps_mode="absolute", eps=0.5)
    assert tp.orthogonality_error(absolute).item() == pytest.approx(0.2)  # 1 - 1 / (1 + ε²)


# Assignment


@pytest.mark.parametrize("kind", ["Linear, tall", "Conv2d", "GRU", "Bilinear, a batch"])
def test_an_orthonormal_Q_can_be_assigned(kind):
    module, name, inputs, _ = build(kind)
    other = copy.deepcopy(module)
    with torch.no_grad():
        getattr(other, name).normal_()
    Q = getattr(tp.orthogonal(other, name), name).detach().clone()
    tp.orthogonal(module, name)
    parameter = W_of(module, name)
    setattr(module, name, Q)
    assert_close(getattr(module, name), Q)
    assert W_of(module, name) is parameter  # which the optimizer has
    Q.zero_()
    assert getattr(module, name).abs().max() > 0.1
    first(module(*inputs)).sum().backward()
    assert parameter.grad.isfinite().all()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_a_Q_that_is_orthonormal_up_to_rounding_is_taken(dtype):
    linear = tp.orthogonal(nn.Linear(6, 6).to(dtype))
    linear.weight = nearest(torch.randn(6, 6)).to(dtype)
    linear.weight = torch.eye(6, dtype=dtype)
    assert_close(linear.weight, torch.eye(6, dtype=dtype))


@pytest.mark.parametrize(
    ("Q", "message"),
    [
        (torch.eye(3, 5), r"shape \(3, 4\), got \(3, 5\)"),
        (2 * torch.eye(3, 4), r"\|QᵀQ - I\| up to 3\."),
        (torch.full((3, 4), torch.nan), r"\|QᵀQ - I\| up to nan"),
        (torch.eye(3, 4, dtype=torch.int64), r"Q to be a real floating-point.*got torch\.int64"),
    ],
)
def test_another_Q_is_refused_and_changes_nothing(Q, message):
    linear = tp.orthogonal(nn.Linear(4, 3))
    before = linear.weight.detach().clone()
    with pytest.raises((ProjectionTypeError, ProjectionValueError), match=message):
        linear.weight = Q
    assert torch.equal(linear.weight, before)


# Bad input


@pytest.mark.parametrize(
    ("make", "name", "error", "message"),
    [
        (lambda: nn.Linear(4, 3), "wieght", ProjectionValueError, "'weight' or 'bias', got 'wieg"),
        (lambda: nn.ReLU(), "weight", ProjectionValueError, "ReLU, which has none, got 'weight'"),
        (lambda: nn.Linear(4, 3), "bias", ProjectionValueError, r"two or more axes.*got \(3,\)"),
        (lambda: nn.Linear(4, 3, dtype=torch.cfloat), "weight", ProjectionTypeError, "complex64"),
        (lambda: nn.LazyLinear(3), "weight", ProjectionValueError, "LazyLinear has no shapes yet"),
        (
            lambda: tp.orthogonal(nn.Linear(4, 3)),
            "weight",
            ProjectionValueError,
            "'weight' is orthogonal already",
        ),
        (lambda: nn.Embedding(4, 3, sparse=True), "weight", ProjectionValueError, "sparse=False"),
    ],
)
def test_a_weight_that_cannot_be_orthogonal_is_refused(make, name, error, message):
    module = make()
    before = {k: v for k, v in module.state_dict().items() if not isinstance(module, nn.LazyLinear)}
    with pytest.raises(error, match=message):
        tp.orthogonal(module, name)
    assert before.keys() <= module.state_dict().keys()


def test_an_integer_weight_is_refused():
    module = nn.Module()
    module.register_buffer("weight", torch.ones(3, 3, dtype=torch.int64))
    with pytest.raises(ProjectionTypeError, match="floating-point tensor, got torch"):
        tp.orthogonal(module)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"blocks": 0}, "blocks to be 1, 2, … or None, got 0"),
        ({"blocks": 1.5}, "blocks to be 1, 2, … or None, got 1.5"),
        ({"blocks": 2}, "split into 2 blocks, got 3 rows"),
        ({"eps": -1.0}, "eps > 0, got -1.0"),
        ({"eps_mode": "none"}, "got 'none'"),
    ],
)
def test_options_that_make_no_sense_are_refused(options, message):
    linear = nn.Linear(4, 3)
    with pytest.raises(ProjectionValueError, match=message):
        tp.orthogonal(linear, **options)
    assert not parametrize.is_parametrized(linear)


# State dicts and copies


def test_a_state_dict_of_the_plain_module_is_loaded():
    plain = nn.Sequential(nn.Linear(5, 4), nn.Linear(4, 3))
    model = nn.Sequential(tp.orthogonal(nn.Linear(5, 4)), nn.Linear(4, 3))
    state = plain.state_dict()
    model.load_state_dict(state)
    assert "0.weight" in state  # the user's dictionary is left alone
    assert_close(model[0].weight, nearest(plain[0].weight))
    assert torch.equal(model[0].bias, plain[0].bias)
    with pytest.raises(RuntimeError, match="size mismatch for parametrizations"):
        tp.orthogonal(nn.Linear(5, 3)).load_state_dict({**nn.Linear(6, 3).state_dict()})
    parametrize.remove_parametrizations(model[0], "weight")
    model.load_state_dict(plain.state_dict())
    assert torch.equal(model[0].weight, plain[0].weight)


def test_a_state_dict_can_be_pickled():
    model, other = tp.orthogonal(nn.Conv2d(2, 4, 3)), tp.orthogonal(nn.Conv2d(2, 4, 3))
    file = io.BytesIO()
    torch.save(model.state_dict(), file)
    file.seek(0)
    other.load_state_dict(torch.load(file, weights_only=True))
    assert torch.equal(other.weight, model.weight)


@pytest.mark.parametrize("training", [True, False])
def test_a_deep_copy_is_independent(training):
    linear = tp.orthogonal(nn.Linear(6, 4)).train(training)
    linear(torch.randn(2, 6)).sum().backward()
    with torch.no_grad():
        linear(torch.randn(2, 6))
    copied = copy.deepcopy(linear)
    assert torch.equal(copied.weight, linear.weight)
    with torch.no_grad():
        W_of(linear).normal_()
    assert not torch.allclose(copied.weight, linear.weight)
    copied.weight = torch.eye(4, 6)
    plain = nn.Linear(6, 4)
    copied.load_state_dict(plain.state_dict())
    assert_close(copied.weight, nearest(plain.weight))


def test_a_weight_on_the_meta_device_gets_its_values_later():
    linear = tp.orthogonal(nn.Linear(6, 4, device="meta"))
    assert linear.weight.is_meta
    plain = nn.Linear(6, 4)
    linear.to_empty(device="cpu").load_state_dict(plain.state_dict())
    assert_close(linear.weight, nearest(plain.weight))


# Other parametrizations


class Scaled(nn.Module):
    def forward(self, U):
        return 3 * U

    def right_inverse(self, A):
        return A / 3


def test_NaN_in_one_gate_of_Q_is_refused():
    gru = tp.orthogonal(nn.GRU(4, 3), "weight_hh_l0")
    Q = gru.weight_hh_l0.detach().clone()
    Q[4] = torch.nan
    with pytest.raises(ProjectionValueError, match="up to nan"):
        gru.weight_hh_l0 = Q


def test_other_parametrizations_may_follow_or_come_first():
    after = parametrize.register_parametrization(tp.orthogonal(nn.Linear(5, 4)), "weight", Scaled())
    assert error([after.weight / 3]) < 2e-6
    after.weight = 3 * torch.eye(4, 5)
    assert_close(after.weight, 3 * torch.eye(4, 5))
    before = parametrize.register_parametrization(nn.Linear(5, 4), "weight", Scaled())
    tp.orthogonal(before)
    assert error([before.weight]) < 2e-6
    for module in (after, before):
        assert tp.orthogonality_error(module) < 4e-6


def test_the_error_of_a_model_is_its_largest():
    model = nn.Sequential(tp.orthogonal(nn.Linear(8, 8)), tp.TensorProjection((8,), (4,), eps=0.3))
    expected = model[1].orthogonality_error()
    assert expected > 1e-2
    assert torch.equal(tp.orthogonality_error(model), expected)
    with torch.no_grad():
        W_of(model[0])[0, 0] = torch.nan
    assert tp.orthogonality_error(model).isnan()
    with pytest.raises(ProjectionValueError, match="got Linear without one"):
        tp.orthogonality_error(nn.Linear(3, 3))


# The cache of eval mode


@pytest.fixture
def polar_calls(monkeypatch):
    calls = []
    projections = tensorprojection.parametrize.projections

    def counted(*args):
        calls.append(args)
        return projections(*args)

    monkeypatch.setattr(tensorprojection.parametrize, "projections", counted)
    return calls


def test_in_eval_mode_the_weight_is_computed_once(polar_calls):
    conv, x = tp.orthogonal(nn.Conv2d(2, 4, 3)).eval(), torch.randn(1, 2, 5, 5)
    polar_calls.clear()
    with torch.no_grad():
        assert torch.equal(conv(x), conv(x))
    assert len(polar_calls) == 1
    conv(x).sum().backward()
    assert W_of(conv).grad.norm() > 0
    conv.train()
    with torch.no_grad():
        conv(x), conv(x)
    assert len(polar_calls) == 4


@pytest.mark.parametrize(
    "change",
    [
        lambda m: W_of(m).data.neg_(),  # which no version counter counts
        lambda m: setattr(m, "weight", -m.weight),
        lambda m: m.load_state_dict({k: -v for k, v in m.state_dict().items()}),
        lambda m: m.load_state_dict({"weight": -W_of(m), "bias": m.bias}),
        lambda m: setattr(m.parametrizations.weight, "original", nn.Parameter(-W_of(m))),
    ],
)
@torch.no_grad()
def test_in_eval_mode_every_change_of_W_is_seen(change):
    linear = tp.orthogonal(nn.Linear(5, 4)).eval()
    before = linear.weight.clone()
    change(linear)
    assert_close(linear.weight, -before)


@torch.no_grad()
def test_an_edit_of_the_weight_in_place_is_not_cached():
    linear = tp.orthogonal(nn.Linear(5, 4)).eval()
    before = linear.weight.clone()
    linear.weight.zero_()
    assert torch.equal(linear.weight, before)


@torch.no_grad()
def test_in_eval_mode_a_change_of_eps_is_seen():
    linear = tp.orthogonal(nn.Linear(5, 4)).eval()
    before = linear.weight.clone()
    linear.parametrizations.weight[0].eps = 1.0
    assert_close(linear.weight, before / 2**0.5)


# Types, transforms, compilers, processes


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float64])
def test_other_types(dtype):
    linear = tp.orthogonal(nn.Linear(12, 8).to(dtype))
    assert linear.weight.dtype == dtype
    assert error([linear.weight]) < max(3 * torch.finfo(dtype).eps, 2e-10)  # ε² is 1e-10
    linear(torch.randn(3, 12, dtype=dtype)).square().sum().backward()
    assert W_of(linear).grad.dtype == dtype
    assert W_of(linear).grad.isfinite().all()
    other = tp.orthogonal(nn.Linear(12, 8)).to(dtype)
    assert other.weight.dtype == dtype


def test_autocast_casts_only_the_finished_weight():
    linear, x = tp.orthogonal(nn.Linear(12, 8)), torch.randn(3, 12)
    with torch.autocast("cpu", torch.bfloat16):
        assert error([linear.weight]) < 2e-6
        z = linear(x)
    assert z.dtype == torch.bfloat16
    z.square().sum().backward()
    assert W_of(linear).grad.dtype == torch.float32
    assert_close(z.float(), linear(x), rtol=2e-2, atol=2e-2)


def test_torch_func_maps_an_ensemble_and_takes_gradients_per_sample():
    models = [nn.Sequential(tp.orthogonal(nn.Linear(5, 4))) for _ in range(3)]
    parameters, buffers = stack_module_state(models)
    x = torch.randn(2, 5)

    def loss(parameters, x):
        return functional_call(models[0], (parameters, {}), (x,)).square().sum()

    assert not buffers
    losses = vmap(loss, (0, None))(parameters, x)
    assert_close(losses, torch.stack([m(x).square().sum() for m in models]))
    own = {name: p.detach() for name, p in models[0].named_parameters()}
    each = vmap(grad(loss), (None, 0))(own, x)
    models[0](x).square().sum().backward()
    name = "0.parametrizations.weight.original"
    assert_close(each[name].sum(0), W_of(models[0][0]).grad)


@pytest.mark.parametrize("training", [True, False])
def test_a_compiled_model_equals_the_eager_one(training):
    torch.compiler.reset()
    model = nn.Sequential(
        tp.orthogonal(nn.Conv2d(2, 4, 3)), nn.Flatten(), tp.orthogonal(nn.Linear(36, 3))
    ).train(training)
    x = torch.randn(2, 2, 5, 5)
    compiled = torch.compile(model, fullgraph=True, backend="aot_eager")
    expected = torch.autograd.grad(model(x).square().sum(), model.parameters())
    assert_close(torch.autograd.grad(compiled(x).square().sum(), model.parameters()), expected)
    with torch.no_grad():
        assert_close(compiled(x), model(x))


@pytest.mark.parametrize("removed", [True, False])
def test_an_exported_model_has_no_decomposition(removed):
    model = nn.Sequential(tp.orthogonal(nn.Conv2d(2, 4, 3)), nn.ReLU()).eval()
    x = torch.randn(2, 2, 5, 5)
    with torch.no_grad():
        expected = model(x)
    if removed:
        parametrize.remove_parametrizations(model[0], "weight")
    program = torch.export.export(model, (x,))
    used = {str(node.target) for node in program.graph.nodes if node.op == "call_function"}
    assert all("linalg" not in name and "tensorprojection" not in name for name in used)
    assert (used == {"aten.conv2d.default", "aten.relu.default"}) == removed
    assert_close(program.module()(x), expected)


def test_torch_jit_trace_holds_the_weight():
    linear, x = tp.orthogonal(nn.Linear(5, 4)).eval().requires_grad_(False), torch.randn(2, 5)
    assert_close(torch.jit.trace(linear, (x,))(x), linear(x))


class Recurrent(nn.Module):
    """An orthogonal convolution, an orthogonal GRU and an orthogonal head."""

    def __init__(self):
        super().__init__()
        self.conv = tp.orthogonal(nn.Conv1d(2, 6, 3))
        self.gru = tp.orthogonal(nn.GRU(6, 5, batch_first=True), "weight_hh_l0")
        tp.orthogonal(self.gru, "weight_ih_l0")
        self.head = tp.orthogonal(nn.Linear(5, 2))

    def forward(self, x):
        return self.head(self.gru(self.conv(x).mT)[0][:, -1])


def train(model, x, y, share):
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    for _ in range(4):
        optimizer.zero_grad()
        with parametrize.cached():
            (share * nn.functional.mse_loss(model(x), y, reduction="sum")).backward()
        optimizer.step()


def task():
    torch.manual_seed(3)
    return Recurrent().double(), torch.randn(8, 2, 7).double(), torch.randn(8, 2).double()


def test_cached_gives_the_gradients_of_four_computations():
    model, x, y = task()
    nn.functional.mse_loss(model(x), y).backward()
    expected = [p.grad.clone() for p in model.parameters()]
    model.zero_grad()
    with parametrize.cached():
        nn.functional.mse_loss(model(x), y).backward()
    assert_close([p.grad for p in model.parameters()], expected)


def on_both(rank, folder):
    """Train in one of two processes with half of the samples, as one process trains with all."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    torch.set_num_threads(1)
    torch.distributed.init_process_group(
        "gloo",
        init_method=f"file://{folder}/rendezvous",
        rank=rank,
        world_size=2,
        timeout=datetime.timedelta(seconds=60),
    )
    mesh, part = init_device_mesh("cpu", (2,)), slice(4 * rank, 4 * rank + 4)
    try:
        twin, x, y = task()
        train(twin, x, y, 1 / 8)
        parallel, sharded = task()[0], task()[0]
        train(DistributedDataParallel(parallel), x[part], y[part], 1 / 4)
        assert_close(parallel.state_dict(), twin.state_dict())
        for child in (sharded.conv, sharded.head, sharded):
            fully_shard(child, mesh=mesh)
        train(sharded, x[part], y[part], 1 / 4)
        sharded.reshard()
        found = {name: W.full_tensor() for name, W in sharded.state_dict().items()}
        assert_close(found, dict(twin.state_dict()))
        assert_close(sharded.head.weight, twin.head.weight)  # gathered outside of a forward pass
        assert tp.orthogonality_error(sharded) < 1e-9
        message = "passed"
    except Exception:
        message = traceback.format_exc()
    Path(folder, str(rank)).write_text(message)
    torch.distributed.destroy_process_group()


@pytest.mark.skipif(not torch.distributed.is_available(), reason="no torch.distributed")
def test_ddp_and_fsdp2_equal_one_process(tmp_path):
    torch.multiprocessing.spawn(on_both, (str(tmp_path),), nprocs=2)
    for rank in (0, 1):
        message = (tmp_path / str(rank)).read_text()
        assert message == "passed", message


def test_nan_in_the_weight_propagates():
    layer = nn.Linear(4, 3)
    with torch.no_grad():
        layer.weight[0, 0] = torch.nan
    assert tp.orthogonal(layer).weight.isnan().any()
