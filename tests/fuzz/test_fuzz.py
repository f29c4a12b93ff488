"""A short fuzz: failures of the past, and some random cases, the same in every run."""

import os
from dataclasses import replace

import oracle as kronecker
import pytest
import torch
from torch.testing import assert_close

from . import oracle
from .cases import Case, draw, program
from .check import complaints
from .shrink import shrink

SEED = 0
GROUPS, IN_A_GROUP = 8, 10


def fails(case):
    return bool(complaints(case))


@pytest.mark.parametrize("group", range(GROUPS))
def test_random_cases(group):
    for index in range(group * IN_A_GROUP, (group + 1) * IN_A_GROUP):
        case = draw(SEED, index)
        if fails(case):
            case = shrink(case, fails)
            pytest.fail("\n".join([program(case), *(f"# {line}" for line in complaints(case))]))


half = Case(large=(64,), small=(16,), batch=(4,), x_dtype="bfloat16", W_dtype="bfloat16")
pair = Case(large=(6, 6), small=(4, 4), mode="create_graph", wanted=("x", "W1"))
asleep = Case(large=(9, 8), small=(5, 3), batch=(5,), training=False)
alone = Case(large=(3, 4), small=(3, 4))

# One or more for each way in which the layer was wrong in silence.
KNOWN = {
    "the gradient of a sum, bfloat16": replace(half, grad_layout="scalar", wanted=("x", "W1")),
    "the gradient of a sum, bfloat16, x alone": replace(half, grad_layout="scalar"),
    "an expanded x, bfloat16": replace(half, x_layout="scalar", mode="no_grad", wanted=()),
    "a permuted x, bfloat16": replace(half, batch=(3, 5), x_layout="permuted", x_twist=1),
    "a permuted gradient, bfloat16": replace(
        half, batch=(3, 5), grad_layout="permuted", grad_twist=1
    ),
    "an expanded x without kernels": replace(
        half, x_dtype="float32", W_dtype="float32", x_layout="scalar", kernels=False
    ),
    "second derivatives of a layer used twice": replace(pair, use="twice"),
    "second derivatives of a tied autoencoder": replace(pair, use="tied"),
    "second derivatives where W2 is W1": replace(pair, use="shared"),
    "the same in float64": replace(pair, use="shared", x_dtype="float64", W_dtype="float64"),
    "float64 by default, in eval mode": replace(asleep, default_dtype="float64"),
    "bfloat16 by default, in eval mode": replace(asleep, default_dtype="bfloat16"),
    "float64 by default, in training": replace(
        asleep, default_dtype="float64", training=True, wanted=("x", "W1", "W2")
    ),
    "float64 by default, W's gradient in eval mode": replace(
        asleep, default_dtype="float64", wanted=("W1",)
    ),
    "a negated x": Case(x_layout="negated"),
    "a negated x, in eval mode": replace(asleep, x_layout="negated"),
    "a negated gradient": Case(grad_layout="negated", wanted=("x", "W1")),
    "the imaginary part of a conjugate": Case(x_layout="imaginary part"),
    "no mode changed, in eval mode": replace(alone, training=False),
    "no mode changed, in training": alone,
    "channels last, the channels left out of the layer": Case(
        large=(6, 6), small=(3, 3), batch=(2, 5), x_layout="channels last"
    ),
    "another W than that of the call before": replace(asleep, warm=True),
    "a frozen layer": replace(asleep, use="frozen", x_layout="permuted"),
    "more columns than the kernels take": Case(large=(97,), small=(66,), wanted=("x", "W1")),
    "no rows": replace(asleep, batch=(0,), training=True, wanted=("x", "W1", "W2")),
}


@pytest.mark.parametrize("name", KNOWN)
def test_what_was_wrong_once(name):
    assert KNOWN[name].is_valid
    assert complaints(KNOWN[name]) == []


# The fuzz itself


@pytest.mark.parametrize("eps_mode", ["absolute", "relative"])
@pytest.mark.parametrize("sigma", [(1, 1, 1), (2, 1, 1e-3), (1e3, 1, 0)])
def test_the_oracle_agrees_with_the_papers_formulas(sigma, eps_mode):
    W = torch.tensor(kronecker.with_singular_values(5, sigma), requires_grad=True)
    dL_dU = torch.randn(5, 3, dtype=torch.float64)
    U = oracle.polar(W, 1e-2, eps_mode)
    (dL_dW,) = torch.autograd.grad(U, W, dL_dU)
    values = W.detach().numpy()
    expected = kronecker.polar_gradient(values, 1e-2, dL_dU.numpy(), eps_mode)
    assert_close(U, torch.tensor(kronecker.polar_by_svd(values, 1e-2, eps_mode)))
    assert_close(U, oracle.polar_by_svd(W, 1e-2, eps_mode))
    assert_close(dL_dW, torch.tensor(expected))


def test_the_oracles_second_derivative():
    W = torch.randn(4, 3, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradgradcheck(lambda W: oracle.polar(W, 0.1, "relative"), (W,))


@pytest.mark.parametrize("transposed", [False, True])
def test_the_oracles_map(transposed):
    Us = [torch.randn(p, q, dtype=torch.float64) for p, q in [(4, 2), (3, 2)]]
    X = torch.randn([U.shape[1 if transposed else 0] for U in Us], dtype=torch.float64)
    matrices = [U.numpy() for U in Us]
    map_ = kronecker.back_project if transposed else kronecker.project
    assert_close(oracle.multilinear(X, Us, transposed), torch.tensor(map_(X.numpy(), matrices)))


@pytest.mark.parametrize(
    ("x_dtype", "factor"), [("float32", 1 + 1e-4), ("bfloat16", 1.5), ("float64", 1 + 1e-12)]
)
@pytest.mark.parametrize("what", ["z", "first"])
def test_a_wrong_number_is_noticed(monkeypatch, x_dtype, factor, what):
    from fuzz import check

    case = Case(x_dtype=x_dtype, W_dtype=x_dtype, wanted=("x", "W1"), seed=1)
    results = check._results

    def spoilt(case, names):
        found = results(case, names)
        for name, (result, dtype) in found.items():
            if name.startswith(what):
                found[name] = (result.detach() * factor, dtype)
        return found

    assert check.complaints(case) == []
    monkeypatch.setattr(check, "_results", spoilt)
    assert len(check.complaints(case)) == (1 if what == "z" else 2)


def test_a_case_becomes_smaller_while_it_fails():
    case = replace(draw(SEED, 0), transposed=True, threads=2)
    least = shrink(case, lambda other: other.transposed)
    assert least.transposed
    assert len(least.large) == 1
    assert least.threads == 1
    assert shrink(case, lambda _: False) == case


def test_a_program_stands_alone():
    names = {}
    exec(program(replace(pair, use="tied")), names)
    assert [d.shape for d in names["first"]] == [names["x"].shape, names["layer"].W1.shape]


def test_a_case_without_kernels_leaves_this_process_alone():
    case = replace(half, kernels=False)
    assert "TENSORPROJECTION_COMPILED" in program(case)
    assert complaints(case) == []
    assert "TENSORPROJECTION_COMPILED" not in os.environ
